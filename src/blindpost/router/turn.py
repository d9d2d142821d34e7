"""What the decisions of one batch share: what was loaded, what they changed, what they answer.

Reads see the writes of earlier commands of the same batch. Everything leaves its inverse in the
engine's `Undo`; the changes themselves become durable in one commit, and only then are answers sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from blindpost.crypto.entropy import Entropy
from blindpost.engine.undo import Table, Undo
from blindpost.router.config import RouterRules
from blindpost.router.meters import Meter, RouterMeters
from blindpost.router.model import EMPTY, Ends, Notification, QueueRecord, Secret, StoredMessage
from blindpost.router.state import Client, State
from blindpost.wire.smp.responses import Response
from blindpost.wire.smp.values import LinkData
from blindpost.wire.value import Value


@dataclass(frozen=True, slots=True, repr=False)
class PutQueue(Value):
    """A queue is new or changed; `before` is what was stored."""

    record: QueueRecord
    before: QueueRecord | None


@dataclass(frozen=True, slots=True, repr=False)
class DeleteQueue(Value):
    """A queue goes with its messages, link data and notifications."""

    record: QueueRecord
    ends: Ends


@dataclass(frozen=True, slots=True, repr=False)
class PutEnds(Value):
    recipient_id: bytes
    ends: Ends


@dataclass(frozen=True, slots=True, repr=False)
class AddMessage(Value):
    recipient_id: bytes
    number: int
    message: StoredMessage


@dataclass(frozen=True, slots=True, repr=False)
class DeleteMessage(Value):
    recipient_id: bytes
    number: int


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
)


@dataclass(frozen=True, slots=True, repr=False)
class Delivery(Value):
    """A message to be encrypted to its recipient and sent as MSG."""

    secret: Secret
    message: StoredMessage


@dataclass(frozen=True, slots=True, repr=False)
class Outgoing(Value):
    """A response, or an event if `corr_id` is empty, for one connection."""

    client_id: int
    corr_id: bytes
    entity_id: bytes
    response: Response | Delivery


@dataclass(slots=True)
class Wanted:
    """What a batch needs to know, by the ids that its commands name."""

    recipients: set[bytes] = field(default_factory=set)
    senders: set[bytes] = field(default_factory=set)
    notifiers: set[bytes] = field(default_factory=set)
    links: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class Needed:
    """What the authorized commands of a batch may reach beside the queue records themselves."""

    ends: set[bytes] = field(default_factory=set)
    messages: dict[bytes, int] = field(default_factory=dict)
    """Of which queues, and how many from the head."""
    expire: set[bytes] = field(default_factory=set)
    """Of which queues the messages that expired before `expire_before`, and the first that did not."""
    expire_before: int = 0
    link_data: set[bytes] = field(default_factory=set)
    notifications: set[bytes] = field(default_factory=set)

    def head(self, recipient_id: bytes, count: int = 1) -> None:
        """So many more messages from the head of a queue."""
        self.ends.add(recipient_id)
        self.messages[recipient_id] = self.messages.get(recipient_id, 0) + count


class View:
    """The part of the store that this batch touches, with its own changes on top."""

    def __init__(self, undo: Undo) -> None:
        self._undo = undo
        self.changes: list[Change] = []
        self.records: Table[bytes, QueueRecord] = Table(undo)
        self.senders: Table[bytes, bytes] = Table(undo)
        self.notifiers: Table[bytes, bytes] = Table(undo)
        self.links: Table[bytes, bytes] = Table(undo)
        self.link_data: Table[bytes, LinkData] = Table(undo)
        self._ends: Table[bytes, Ends] = Table(undo)
        self._messages: Table[tuple[bytes, int], StoredMessage] = Table(undo)
        self._pending: Table[bytes, tuple[Notification, ...]] = Table(undo)

    def fill_ends(self, recipient_id: bytes, ends: Ends) -> None:
        self._ends.fill(recipient_id, ends)

    def fill_message(self, recipient_id: bytes, number: int, message: StoredMessage) -> None:
        self._messages.fill((recipient_id, number), message)

    def fill_pending(self, notifier_id: bytes, notifications: tuple[Notification, ...]) -> None:
        self._pending.fill(notifier_id, notifications)

    def ends(self, recipient_id: bytes) -> Ends:
        return self._ends.get(recipient_id) or EMPTY

    def message(self, recipient_id: bytes, number: int) -> StoredMessage:
        """A message of a queue. The batch loaded every one that its commands may reach."""
        message = self._messages.get((recipient_id, number))
        assert message is not None, "a message that was not loaded"
        return message

    def pending(self, notifier_id: bytes) -> tuple[Notification, ...]:
        return self._pending.get(notifier_id) or ()

    def put_queue(self, record: QueueRecord) -> None:
        before = self.records.put(record.recipient_id, record)
        self.senders.put(record.sender_id, record.recipient_id)
        if before is not None and before.notifier is not None and before.notifier != record.notifier:
            self.notifiers.pop(before.notifier.notifier_id)
        if record.notifier is not None:
            self.notifiers.put(record.notifier.notifier_id, record.recipient_id)
        self._change(PutQueue(record, before))

    def delete_queue(self, record: QueueRecord) -> None:
        recipient_id = record.recipient_id
        self._change(DeleteQueue(record, self.ends(recipient_id)))
        self.records.pop(recipient_id)
        self.senders.pop(record.sender_id)
        self._ends.pop(recipient_id)
        if record.notifier is not None:
            self.notifiers.pop(record.notifier.notifier_id)
            self._pending.pop(record.notifier.notifier_id)
        if record.link_id is not None:
            self.links.pop(record.link_id)
            self.link_data.pop(record.link_id)

    def put_ends(self, recipient_id: bytes, ends: Ends) -> None:
        self._ends.put(recipient_id, ends)
        self._change(PutEnds(recipient_id, ends))

    def add_message(self, recipient_id: bytes, number: int, message: StoredMessage) -> None:
        self._messages.put((recipient_id, number), message)
        self._change(AddMessage(recipient_id, number, message))

    def delete_message(self, recipient_id: bytes, number: int) -> None:
        self._messages.pop((recipient_id, number))
        self._change(DeleteMessage(recipient_id, number))

    def put_link(self, link_id: bytes, recipient_id: bytes, data: LinkData) -> None:
        self.links.put(link_id, recipient_id)
        self.link_data.put(link_id, data)
        self._change(PutLink(link_id, recipient_id, data))

    def delete_link(self, link_id: bytes) -> None:
        self.links.pop(link_id)
        self.link_data.pop(link_id)
        self._change(DeleteLink(link_id))

    def add_notification(self, notification: Notification) -> None:
        notifier_id = notification.notifier_id
        self._pending.put(notifier_id, (*self.pending(notifier_id), notification))
        self._change(AddNotification(notification))

    def delete_notifications(self, notifier_id: bytes) -> None:
        self._pending.pop(notifier_id)
        self._change(DeleteNotifications(notifier_id))

    def _change(self, change: Change) -> None:
        self.changes.append(change)
        self._undo.add(self.changes.pop)


class Turn:
    """One batch, as the decisions see it."""

    def __init__(
        self,
        state: State,
        rules: RouterRules,
        meters: RouterMeters,
        entropy: Entropy,
        now: int,
    ) -> None:
        self.state = state
        self.rules = rules
        self.meters = meters
        self.entropy = entropy
        self.now = now
        self.view = View(state.undo)
        self.outbox: list[Outgoing] = []
        self.outcomes: list[tuple[Callable[[str], None], str]] = []
        """What operators are told once the commit is done."""

    def answer(self, client: Client, corr_id: bytes, entity_id: bytes, response: Response | Delivery) -> None:
        self.outbox.append(Outgoing(client.client_id, corr_id, entity_id, response))
        self.state.undo.add(self.outbox.pop)

    def push(self, client: Client, entity_id: bytes, event: Response | Delivery) -> None:
        self.answer(client, b"", entity_id, event)

    def tell(self, operator: Callable[[str], None], outcome: str) -> None:
        self.outcomes.append((operator, outcome))
        self.state.undo.add(self.outcomes.pop)

    def count(self, meter: Meter, by: int = 1) -> None:
        """Count something that happened; it did not happen if the batch is taken back."""
        self.meters.add(meter, by)
        self.state.undo.add(lambda: self.meters.add(meter, -by))
