"""What the replies to a batch of SUBs mean, queue by queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from blindpost.agent.failures import Kind, is_auth_error, kind_of
from blindpost.agent.store.subscriptions import SubQueue
from blindpost.client.calls import Failure
from blindpost.client.errors import ClientError, UnexpectedResponseError
from blindpost.transport.errors import TransportError
from blindpost.wire.smp.responses import MSG, OK, SOK, Response


@dataclass(slots=True)
class Sorted:
    """A batch after its replies."""

    subscribed: list[tuple[SubQueue, bytes | None]] = field(default_factory=list)
    """With the service that the router counts the queue for, if it is ours."""
    messages: list[tuple[bytes, MSG]] = field(default_factory=list)
    refused: list[tuple[SubQueue, Failure]] = field(default_factory=list)
    retried: list[tuple[SubQueue, Failure]] = field(default_factory=list)

    @property
    def joined(self) -> list[bytes]:
        """Queues that are of our service and were not."""
        return [q.rcv_id for q, service_id in self.subscribed if service_id is not None and not q.associated]

    @property
    def left(self) -> list[bytes]:
        """Queues that were of our service and are not: the router does not know them, or knows them as
        belonging to nobody."""
        plain = [q.rcv_id for q, service_id in self.subscribed if service_id is None and q.associated]
        return plain + [q.rcv_id for q, failure in self.refused if q.associated and is_auth_error(failure)]

    @property
    def first_time(self) -> list[bytes]:
        return [q.rcv_id for q, _ in self.subscribed if q.to_subscribe]


def sort_replies(
    queues: Sequence[SubQueue], results: Sequence[Response | Failure], service_id: bytes | None
) -> Sorted:
    """Each queue with its reply; `service_id` is ours on the session, if we are a service there."""
    done = Sorted()
    for queue, result in zip(queues, results, strict=True):
        match result:
            case OK():
                done.subscribed.append((queue, None))
            case SOK(theirs):
                done.subscribed.append((queue, service_id if theirs == service_id else None))
            case MSG():
                done.subscribed.append((queue, service_id))
                done.messages.append((queue.rcv_id, result))
            case ClientError() | TransportError():
                listed = done.refused if kind_of(result) is Kind.PERMANENT else done.retried
                listed.append((queue, result))
            case _:
                done.refused.append((queue, UnexpectedResponseError(result)))
    return done
