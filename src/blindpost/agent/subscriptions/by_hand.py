"""Subscribing connections explicitly: the result of each, those that need no router first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from blindpost.agent.errors import AgentError, network_error
from blindpost.agent.model import ConnId, QueueStatus, Whole
from blindpost.agent.store import connections
from blindpost.agent.store.database import AgentStore
from blindpost.agent.subscriptions.engine import Subscriptions
from blindpost.client.calls import Failure


async def subscribe(
    store: AgentStore, subscriptions: Subscriptions, conn_ids: Iterable[ConnId]
) -> AsyncIterator[tuple[ConnId, AgentError | None]]:
    """Subscribe the queues of these connections.

    A connection without a queue to receive from is answered at once. One that fails temporarily is retried
    automatically.
    """
    receiving: list[Whole] = []
    for conn_id in conn_ids:
        whole = connections.load_whole(store.reading, conn_id)
        if whole.rcv:
            receiving.append(whole)
        else:
            yield conn_id, None
    results = await subscriptions.subscribe(queue for whole in receiving for queue in whole.rcv)
    for whole in receiving:
        yield whole.conn_id, _result(whole, results)


def _result(whole: Whole, results: dict[bytes, Failure | None]) -> AgentError | None:
    """What counts when a connection has several queues: those in use before those that are not, and of
    these any that is subscribed."""

    def rank(number: int) -> tuple[bool, bool]:
        queue = whole.rcv[number]
        return queue.status is not QueueStatus.ACTIVE, results[queue.rcv_id] is not None

    best = whole.rcv[min(range(len(whole.rcv)), key=rank)]
    failure = results[best.rcv_id]
    return None if failure is None else network_error(best.server, failure)
