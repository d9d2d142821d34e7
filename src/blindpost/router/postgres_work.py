"""The changes of a batch, grouped by table and key, as steps of one commit in PostgreSQL.

Only the last change of a key counts, so that their order within a batch is no longer needed. The one
exception: an id that a deleted queue gives back may be taken by another queue, which starts a new phase.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from blindpost.router import postgres_schema as schema
from blindpost.router.changes import (
    AddMessage,
    AddNotification,
    Change,
    DeleteLink,
    DeleteMessage,
    DeleteNotifications,
    DeleteQueue,
    DeleteService,
    PutEnds,
    PutLink,
    PutMark,
    PutQueue,
    PutService,
    SetMember,
    SetPending,
)
from blindpost.router.model import Ends, QueueRecord, ServiceRecord, StoredMessage
from blindpost.router.records import (
    link_to_row,
    notification_place,
    notification_to_row,
    queue_to_row,
    service_to_row,
)
from blindpost.store.postgres import Step, Work


class Batch:
    """All changes of one commit."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self.notifiers = 0
        """How many more queues have a notifier after it."""
        self._phases = [_Phase()]
        for change in changes:
            self._take(change)

    @property
    def phases(self) -> list[Work]:
        return [list(phase.steps()) for phase in self._phases]

    def _take(self, change: Change) -> None:
        phase = self._phases[-1]
        match change:
            case AddMessage(recipient_id, number, message):
                phase.messages[recipient_id][number] = message
            case PutEnds(recipient_id, ends):
                phase.ends[recipient_id] = ends
            case DeleteMessage(recipient_id, number):
                phase.messages[recipient_id][number] = None
            case PutQueue(record, before):
                self._put_queue(record, before)
            case DeleteQueue(record, _):
                self._delete_queue(record)
            case PutLink(link_id, recipient_id, data):
                phase.links[link_id] = (recipient_id, link_to_row(recipient_id, data))
            case DeleteLink(link_id):
                phase.links[link_id] = None
            case AddNotification(notification):
                place = notification_place(notification.number)
                phase.notifications[notification.notifier_id][place] = notification_to_row(notification)
            case DeleteNotifications(notifier_id):
                phase.silence(notifier_id)
            case PutService(service):
                phase.services[service.service_id] = service
                phase.fingerprints[service.fingerprint] = service.service_id
            case DeleteService(service_id, fingerprint):
                phase.services[service_id] = None
                phase.fingerprints[fingerprint] = None
            case SetMember(domain, service_id, entity_id, member):
                phase.members[domain.value, service_id, entity_id] = member
            case SetPending(domain, service_id, entity_id, pending):
                phase.pending[domain.value, service_id, entity_id] = pending
            case PutMark(name, value):
                phase.marks[name] = value

    def _put_queue(self, record: QueueRecord, before: QueueRecord | None) -> None:
        phase = self._phases[-1]
        taken = {record.sender_id}
        if record.notifier is not None:
            taken.add(record.notifier.notifier_id)
        if not phase.freed.isdisjoint(taken):
            phase = _Phase()
            self._phases.append(phase)
        phase.queues[record.recipient_id] = record
        old = None if before is None else before.notifier
        self.notifiers += (record.notifier is not None) - (old is not None)
        if old is not None and (record.notifier is None or record.notifier.notifier_id != old.notifier_id):
            phase.freed.add(old.notifier_id)

    def _delete_queue(self, record: QueueRecord) -> None:
        phase, recipient_id = self._phases[-1], record.recipient_id
        phase.queues[recipient_id] = None
        phase.ends[recipient_id] = None
        phase.empty(recipient_id)
        phase.freed.add(record.sender_id)
        if record.link_id is not None:
            phase.links[record.link_id] = None
        if record.notifier is not None:
            self.notifiers -= 1
            phase.freed.add(record.notifier.notifier_id)
            phase.silence(record.notifier.notifier_id)


class _Phase:
    """The new row of each key; None if it is deleted."""

    def __init__(self) -> None:
        self.queues: dict[bytes, QueueRecord | None] = {}
        self.freed: set[bytes] = set()
        self.ends: dict[bytes, Ends | None] = {}
        self.messages: defaultdict[bytes, dict[int, StoredMessage | None]] = defaultdict(dict)
        self.emptied: set[bytes] = set()
        self.links: dict[bytes, tuple[bytes, bytes] | None] = {}
        self.notifications: defaultdict[bytes, dict[int, bytes]] = defaultdict(dict)
        self.silenced: set[bytes] = set()
        self.services: dict[bytes, ServiceRecord | None] = {}
        self.fingerprints: dict[bytes, bytes | None] = {}
        self.members: dict[tuple[bytes, bytes, bytes], bool] = {}
        self.pending: dict[tuple[bytes, bytes, bytes], bool] = {}
        self.marks: dict[bytes, bytes] = {}

    def empty(self, recipient_id: bytes) -> None:
        """Delete all messages of a queue, including those of this batch so far."""
        self.messages.pop(recipient_id, None)
        self.emptied.add(recipient_id)

    def silence(self, notifier_id: bytes) -> None:
        self.notifications.pop(notifier_id, None)
        self.silenced.add(notifier_id)

    def steps(self) -> Iterator[tuple[Step, Sequence[Any]]]:
        yield from _of(self.queues, schema.PUT_QUEUES, _queue_columns, schema.DELETE_QUEUES)
        yield from _of(self.links, schema.PUT_LINKS, lambda owned: owned, schema.DELETE_LINKS)
        yield from _of(self.ends, schema.PUT_ENDS, _ends_columns, schema.DELETE_ENDS)
        yield from self._message_steps()
        yield from self._notification_steps()
        yield from _of(
            self.services,
            schema.PUT_SERVICES,
            lambda service: (service_to_row(service),),
            schema.DELETE_SERVICES,
        )
        yield from _of(
            self.fingerprints,
            schema.PUT_FINGERPRINTS,
            lambda service_id: (service_id,),
            schema.DELETE_FINGERPRINTS,
        )
        yield from _of_set(self.members, schema.PUT_MEMBERS, schema.DELETE_MEMBERS)
        yield from _of_set(self.pending, schema.PUT_PENDING, schema.DELETE_PENDING)
        yield from _of(self.marks, schema.PUT_MARKS, lambda value: (value,))

    def _message_steps(self) -> Iterator[tuple[Step, Sequence[Any]]]:
        put, gone, kept = [], [], []
        for recipient_id, messages in self.messages.items():
            emptied = recipient_id in self.emptied
            for number, message in messages.items():
                if message is not None:
                    columns = (message.seconds, message.msg_id, message.notify, message.body)
                    put.append((recipient_id, number, *columns))
                    if emptied:
                        kept.append((recipient_id, number))
                elif not emptied:
                    gone.append((recipient_id, number))
        if put:
            yield schema.PUT_MESSAGES, _columns(put, 6)
        if gone:
            yield schema.DELETE_MESSAGES, _columns(gone, 2)
        if self.emptied:
            yield schema.EMPTY_QUEUES, [list(self.emptied), *_columns(kept, 2)]

    def _notification_steps(self) -> Iterator[tuple[Step, Sequence[Any]]]:
        put = [
            (notifier_id, place, row)
            for notifier_id, places in self.notifications.items()
            for place, row in places.items()
        ]
        if put:
            yield schema.PUT_NOTIFICATIONS, _columns(put, 3)
        if self.silenced:
            kept = [(notifier_id, place) for notifier_id, place, _ in put if notifier_id in self.silenced]
            yield schema.EMPTY_NOTIFIERS, [list(self.silenced), *_columns(kept, 2)]


def _of(
    rows: Mapping[bytes, Any], put: Step, columns: Callable[[Any], Sequence[Any]], delete: Step | None = None
) -> Iterator[tuple[Step, Sequence[Any]]]:
    present = [(key, *columns(row)) for key, row in rows.items() if row is not None]
    if present:
        yield put, _columns(present, len(present[0]))
    gone = [key for key, row in rows.items() if row is None]
    if gone and delete is not None:
        yield delete, [gone]


def _of_set(
    keys: Mapping[tuple[bytes, bytes, bytes], bool], put: Step, delete: Step
) -> Iterator[tuple[Step, Sequence[Any]]]:
    for step, there in ((put, True), (delete, False)):
        chosen = [key for key, is_there in keys.items() if is_there is there]
        if chosen:
            yield step, _columns(chosen, 3)


def _columns(rows: Sequence[Sequence[Any]], width: int) -> list[Sequence[Any]]:
    """Rows turned into one array for each column."""
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _queue_columns(record: QueueRecord) -> Sequence[Any]:
    notifier = record.notifier
    return (
        record.sender_id,
        None if notifier is None else notifier.notifier_id,
        record.link_id,
        record.service_id,
        None if notifier is None else notifier.service_id,
        queue_to_row(record),
    )


def _ends_columns(ends: Ends) -> Sequence[Any]:
    return ends.head, ends.tail, ends.can_write
