"""What shows that everything arrived: counts and hashes that do not depend on any order.

A tally is taken of the source, from its own lines or rows, and of the result, from the rows that are stored.
Of a queue it covers everything that one line of the store log says; of a message its queue, its place there
and all of its content.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field

from blindpost.crypto.ids_hash import NO_IDS, QueueSet, id_hash
from blindpost.router.bulk import CHUNK_ITEMS, CHUNK_MESSAGES, BulkStore, HeldMessage, chunks
from blindpost.router.model import Domain, Notification, ServiceRecord, StoredMessage
from blindpost.router.moving.values import as_told, can_be_told, created_of, new_service_of
from blindpost.router.records import message_to_row
from blindpost.wire.primitives import Writer
from blindpost.wire.store_log import CreateQueue, NewService, encode_store_line
from blindpost.wire.text import b64

Certificate = dict[str, int | str]
"""Counts and hashes by name, as printed side by side."""


class IdSet:
    """A set of ids as count and hash; an id added twice or removed again leaves no trace."""

    __slots__ = ("_hash", "count")

    def __init__(self) -> None:
        self.count = 0
        self._hash = 0

    def add(self, entity_id: bytes) -> None:
        self.count += 1
        self._hash ^= int.from_bytes(id_hash(entity_id), "big")

    def remove(self, entity_id: bytes) -> None:
        self.count -= 1
        self._hash ^= int.from_bytes(id_hash(entity_id), "big")

    @property
    def value(self) -> QueueSet:
        return QueueSet(self.count, self._hash.to_bytes(len(NO_IDS), "big"))


class Contents:
    """A set of contents as count and XOR of SHA-256."""

    __slots__ = ("_hash", "count")

    def __init__(self) -> None:
        self.count = 0
        self._hash = 0

    def add(self, content: bytes) -> None:
        self.count += 1
        self._hash ^= int.from_bytes(hashlib.sha256(content).digest(), "big")

    def remove(self, content: bytes) -> None:
        self.count -= 1
        self._hash ^= int.from_bytes(hashlib.sha256(content).digest(), "big")

    @property
    def hash(self) -> str:
        return f"{self._hash:064x}"


def _sets() -> defaultdict[tuple[bytes, Domain], IdSet]:
    return defaultdict(IdSet)


@dataclass(slots=True)
class Tally:
    """Everything that was seen so far."""

    queues: IdSet = field(default_factory=IdSet)
    records: Contents = field(default_factory=Contents)
    notifiers: IdSet = field(default_factory=IdSet)
    links: int = 0
    services: Contents = field(default_factory=Contents)
    of_services: defaultdict[tuple[bytes, Domain], IdSet] = field(default_factory=_sets)
    messages: Contents = field(default_factory=Contents)
    markers: int = 0
    full: IdSet = field(default_factory=IdSet)
    """Queues that accept no message until they are empty."""
    notifications: Contents = field(default_factory=Contents)
    disagreeing: int = 0
    """Rows that disagree with what they were derived from."""

    def add_queue(self, created: CreateQueue) -> None:
        self.queues.add(created.recipient_id)
        self.records.add(encode_store_line(created))
        self.links += created.link is not None
        if created.service_id is not None:
            self.of_services[created.service_id, Domain.MESSAGES].add(created.recipient_id)
        if created.notifier is not None:
            self.notifiers.add(created.notifier.notifier_id)
            if created.notifier.service_id is not None:
                owner = created.notifier.service_id, Domain.NOTIFICATIONS
                self.of_services[owner].add(created.notifier.notifier_id)

    def remove_queue(self, created: CreateQueue) -> None:
        self.queues.remove(created.recipient_id)
        self.records.remove(encode_store_line(created))
        self.links -= created.link is not None
        if created.service_id is not None:
            self.of_services[created.service_id, Domain.MESSAGES].remove(created.recipient_id)
        if created.notifier is not None:
            self.notifiers.remove(created.notifier.notifier_id)
            if created.notifier.service_id is not None:
                owner = created.notifier.service_id, Domain.NOTIFICATIONS
                self.of_services[owner].remove(created.notifier.notifier_id)

    def add_service(self, service: NewService) -> None:
        self.services.add(encode_store_line(service))

    def add_message(self, recipient_id: bytes, place: int, message: StoredMessage) -> None:
        """`place` counts the messages of the queue from its head."""
        self.markers += message.is_marker
        head = Writer().short(recipient_id).i64(place).done()
        self.messages.add(head + message_to_row(message))

    def add_notification(self, notification: Notification) -> None:
        """Its number is not part of its content."""
        writer = Writer().short(notification.notifier_id).i64(notification.seconds)
        self.notifications.add(writer.short(notification.nonce).short(notification.enc_meta).done())

    def certificate(self) -> Certificate:
        counted = {
            "queues": self.queues.value,
            "notifiers": self.notifiers.value,
            "full queues": self.full.value,
        }
        found: Certificate = {}
        for name, members in counted.items():
            found[name] = members.count
            found[f"{name}: ids hash"] = members.ids_hash.hex()
        found["queues: content hash"] = self.records.hash
        found["links"] = self.links
        found["services"] = self.services.count
        found["services: content hash"] = self.services.hash
        found["messages"] = self.messages.count
        found["messages: markers"] = self.markers
        found["messages: content hash"] = self.messages.hash
        found["notifications"] = self.notifications.count
        found["notifications: content hash"] = self.notifications.hash
        found["derived rows that disagree"] = self.disagreeing
        for (service_id, domain), ids in sorted(self.of_services.items(), key=lambda item: item[0][0]):
            if ids.count:
                name = f"service {b64(service_id)}: {domain.name.lower()}"
                found[name] = ids.count
                found[f"{name}: ids hash"] = ids.value.ids_hash.hex()
        return found


async def certificate_of(store: BulkStore, *, as_lines: bool = False) -> Certificate:
    """The certificate of everything that a store holds, or of as much of it as the reference's files can."""
    tally = Tally()
    services: list[ServiceRecord] = []
    async for found in chunks(store.services, CHUNK_ITEMS):
        for service in found.items:
            tally.add_service(new_service_of(service))
            services.append(service)
    sizes = 0
    waiting = _sets()
    async for queues in chunks(store.queues, CHUNK_ITEMS):
        for queue in queues.items:
            record, ends = queue.record, queue.ends
            created = created_of(queue)
            tally.add_queue(as_told(created) if as_lines else created)
            tally.disagreeing += (record.link_id is None) is not (queue.link is None)
            sizes += ends.size
            if ends.size and not ends.can_write:
                tally.full.add(record.recipient_id)
            if ends.size and record.service_id is not None:
                waiting[record.service_id, Domain.MESSAGES].add(record.recipient_id)
    tally.disagreeing += sizes != await _tally_messages(tally, store, as_lines=as_lines)
    async for notifications in chunks(store.notifications, CHUNK_ITEMS):
        for notification in notifications.items:
            tally.add_notification(notification)
    await _compare_derived(tally, store, services, waiting)
    return tally.certificate()


async def _tally_messages(tally: Tally, store: BulkStore, *, as_lines: bool) -> int:
    """How many there are, exportable or not."""
    last: HeldMessage | None = None
    place = count = 0
    async for messages in chunks(store.messages, CHUNK_MESSAGES):
        for held in messages.items:
            count += 1
            if as_lines and not can_be_told(held.message):
                continue
            same = last is not None and last.recipient_id == held.recipient_id
            place = place + 1 if same else 0
            tally.add_message(held.recipient_id, place, held.message)
            last = held
    return count


async def _compare_derived(
    tally: Tally,
    store: BulkStore,
    services: list[ServiceRecord],
    waiting: defaultdict[tuple[bytes, Domain], IdSet],
) -> None:
    """Count where services and queues disagree about membership."""
    members, pending = _sets(), _sets()
    async for rows in chunks(store.members, CHUNK_ITEMS):
        for row in rows.items:
            members[row.service_id, row.domain].add(row.entity_id)
    async for rows in chunks(store.pending, CHUNK_ITEMS):
        for row in rows.items:
            pending[row.service_id, row.domain].add(row.entity_id)
    for service in services:
        for domain in Domain:
            owner = service.service_id, domain
            true = tally.of_services[owner].value
            tally.disagreeing += service.members(domain) != true
            tally.disagreeing += members[owner].value != true
            if domain is Domain.MESSAGES:
                tally.disagreeing += pending[owner].value != waiting[owner].value


def differences(source: Certificate, result: Certificate) -> list[str]:
    """The names of what differs between both sides."""
    names = [*source, *(name for name in result if name not in source)]
    return [name for name in names if source.get(name) != result.get(name)]
