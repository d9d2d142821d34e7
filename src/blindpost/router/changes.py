"""What a batch asks of the store, and what it changes there: values that any store can carry out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from blindpost.router.model import (
    Domain,
    Ends,
    Notification,
    QueueRecord,
    ServiceRecord,
    StoredMessage,
)
from blindpost.wire.smp.values import LinkData
from blindpost.wire.value import Value, shown

HEADS_OF_ACK = 2
"""An ACK looks at the message that it removes and at the next."""


@dataclass(slots=True)
class Wanted:
    """What a batch needs to know, by the ids that its commands name."""

    recipients: set[bytes] = field(default_factory=set)
    senders: set[bytes] = field(default_factory=set)
    notifiers: set[bytes] = field(default_factory=set)
    links: set[bytes] = field(default_factory=set)
    services: set[bytes] = field(default_factory=set)
    fingerprints: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class Needed:
    """What the authorized commands of a batch may reach beside the queue records themselves."""

    ends: set[bytes] = field(default_factory=set)
    messages: dict[bytes, int] = field(default_factory=dict)
    """Of which queues, and how many from the head."""
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    """By queue, the number of the message that an ACK removes. It need not be loaded if nothing else in the
    batch looks at messages of the queue, that is, if `HEADS_OF_ACK` are asked for."""
    expire: set[bytes] = field(default_factory=set)
    """Of which queues the messages that expired before `expire_before`, and the first that did not."""
    expire_before: int = 0
    link_data: set[bytes] = field(default_factory=set)
    notifications: set[bytes] = field(default_factory=set)

    def head(self, recipient_id: bytes, count: int = 1) -> None:
        """Ask for this many more messages from the head of a queue."""
        self.ends.add(recipient_id)
        self.messages[recipient_id] = self.messages.get(recipient_id, 0) + count


@dataclass(frozen=True, slots=True, repr=False)
class PutQueue(Value):
    """A queue is new or changed; `before` is what was stored."""

    record: QueueRecord
    before: QueueRecord | None


@dataclass(frozen=True, slots=True, repr=False)
class DeleteQueue(Value):
    """A queue is deleted, with its messages, link data and notifications."""

    record: QueueRecord
    ends: Ends


class PutEnds(NamedTuple):
    recipient_id: bytes
    ends: Ends

    def __repr__(self) -> str:
        return shown(self)


class AddMessage(NamedTuple):
    recipient_id: bytes
    number: int
    message: StoredMessage

    def __repr__(self) -> str:
        return shown(self)


class DeleteMessage(NamedTuple):
    recipient_id: bytes
    number: int

    def __repr__(self) -> str:
        return shown(self)


@dataclass(frozen=True, slots=True, repr=False)
class PutLink(Value):
    link_id: bytes
    recipient_id: bytes
    data: LinkData


@dataclass(frozen=True, slots=True, repr=False)
class DeleteLink(Value):
    link_id: bytes


@dataclass(frozen=True, slots=True, repr=False)
class AddNotification(Value):
    notification: Notification


@dataclass(frozen=True, slots=True, repr=False)
class DeleteNotifications(Value):
    """All notifications that wait for this notifier."""

    notifier_id: bytes


@dataclass(frozen=True, slots=True, repr=False)
class PutService(Value):
    """A service is new, or the set of its queues changed."""

    service: ServiceRecord


@dataclass(frozen=True, slots=True, repr=False)
class DeleteService(Value):
    """A service without queues is deleted."""

    service_id: bytes
    fingerprint: bytes


@dataclass(frozen=True, slots=True, repr=False)
class SetMember(Value):
    """A queue joins or leaves the set of a service; always beside the `PutService` that counts it."""

    domain: Domain
    service_id: bytes
    entity_id: bytes
    member: bool


@dataclass(frozen=True, slots=True, repr=False)
class SetPending(Value):
    """Whether something waits in a queue of a service: what its next subscription walks over."""

    domain: Domain
    service_id: bytes
    entity_id: bytes
    pending: bool


@dataclass(frozen=True, slots=True, repr=False)
class PutMark(Value):
    """The progress of a long job, committed together with its changes."""

    name: bytes
    value: bytes


Change = (
    PutQueue
    | DeleteQueue
    | PutEnds
    | AddMessage
    | DeleteMessage
    | PutLink
    | DeleteLink
    | AddNotification
    | DeleteNotifications
    | PutService
    | DeleteService
    | SetMember
    | SetPending
    | PutMark
)
