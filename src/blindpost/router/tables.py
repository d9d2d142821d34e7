"""The router's tables in the embedded store: one read for a batch, one commit for a batch.

A small cache holds decoded queue records; there is one writer, so it always matches the store. Unknown ids
are cached separately and cost one decoded row when first seen, so that the time of a refusal does not reveal
which ids exist.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from blindpost.crypto.authorizers import DUMMY_KEYS
from blindpost.crypto.secret import Secret
from blindpost.router.changes import (
    HEADS_OF_ACK,
    AddMessage,
    AddNotification,
    Change,
    DeleteLink,
    DeleteMessage,
    DeleteNotifications,
    DeleteQueue,
    DeleteService,
    Needed,
    PutEnds,
    PutLink,
    PutMark,
    PutQueue,
    PutService,
    SetMember,
    SetPending,
    Wanted,
)
from blindpost.router.model import ID_SIZE, Domain, Ends, Notification, QueueRecord
from blindpost.router.records import (
    behind_notifications,
    ends_from_row,
    ends_to_row,
    is_expired_row,
    link_from_row,
    link_key,
    link_owner,
    link_to_row,
    message_from_row,
    message_key,
    message_prefix,
    message_to_row,
    notification_from_row,
    notification_key,
    notification_to_row,
    notifier_of,
    queue_from_row,
    queue_to_row,
    service_from_row,
    service_prefix,
    service_to_row,
)
from blindpost.router.view import View
from blindpost.store.contract import Durability
from blindpost.store.lmdb import META, LmdbStore, Migration, Read, Write
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.values import QueueMode

(
    QUEUES,
    SENDERS,
    LINKS,
    NOTIFIERS,
    ENDS,
    MESSAGES,
    NOTIFICATIONS,
    SERVICES,
    FINGERPRINTS,
    MEMBERS,
    PENDING,
) = TABLES = (
    "queues",
    "senders",
    "links",
    "notifiers",
    "ends",
    "messages",
    "notifications",
    "services",
    "fingerprints",
    "members",
    "pending",
)
log = logging.getLogger(__name__)

UNREADABLE = (WireError, KeyError, ValueError)
"""What decoding a damaged row may raise."""
CACHE_MAX = 20_000
"""How many decoded queue records are kept (about 20 MB), and how many unknown ids (3 MB)."""
STRANGER = queue_to_row(
    QueueRecord(
        bytes(ID_SIZE),
        bytes(ID_SIZE),
        (DUMMY_KEYS[Algorithm.ED25519],),
        DUMMY_KEYS[Algorithm.X25519].raw,
        Secret(bytes(32)),
        DUMMY_KEYS[Algorithm.X25519].raw,
        QueueMode.MESSAGING,
        sender_key=DUMMY_KEYS[Algorithm.ED25519],
    )
)
"""A typical queue row, decoded when there is none, so that it takes as long."""


OWNER = "router"


class RouterStore(Protocol):
    """What the router asks of a store, whichever it is."""

    async def load(self, wanted: Wanted, view: View) -> None:
        """Fill in the queues that these ids name."""

    async def load_needed(self, needed: Needed, view: View) -> None:
        """Fill in ends, messages, link data and notifications."""

    async def commit(self, changes: Sequence[Change]) -> None:
        """Make all changes durable, or raise `StoreFailedError` and none of them."""

    async def waiting(
        self, domain: Domain, service_id: bytes, start: bytes, limit: int
    ) -> tuple[tuple[bytes, ...], bytes | None]:
        """Up to `limit` queues of a service in which something waits, from `start` on, and what follows."""

    async def expired(
        self, before: int, start: bytes, limit: int
    ) -> tuple[list[tuple[bytes, int]], bytes | None]:
        """Up to `limit` queues from `start` on: those with expired messages at the head, and how many."""

    async def notified(self, start: bytes, limit: int) -> tuple[tuple[bytes, ...], bytes | None]:
        """Up to `limit` notifiers from `start` on for which notifications wait, and what follows."""

    def counts(self) -> dict[str, int]:
        """How many rows each table has."""

    @property
    def loaded(self) -> int:
        """How many queues' records are kept in memory."""

    async def probe(self) -> None:
        """Write something that changes nothing; `StoreFailedError` if the store takes no writes."""

    def close(self) -> None: ...


def _first(write: Write) -> None:
    """Version 1 of the schema: the tables, empty."""


MIGRATIONS: tuple[Migration, ...] = (_first,)


class LmdbTables:
    """The embedded store of a router."""

    def __init__(self, folder: Path, durability: Durability = Durability.FULL) -> None:
        self.store = LmdbStore(folder, TABLES, owner=OWNER, durability=durability, migrations=MIGRATIONS)
        self._cache: OrderedDict[bytes, QueueRecord] = OrderedDict()
        self._unknown: OrderedDict[bytes, None] = OrderedDict()
        """Ids without a queue."""
        self.reads = 0
        """Rows looked up, for the test that refusals cost the same."""

    async def load(self, wanted: Wanted, view: View) -> None:
        with self.store.read() as read:
            named = set(wanted.recipients)
            for table, ids, found in (
                (SENDERS, wanted.senders, view.senders),
                (NOTIFIERS, wanted.notifiers, view.notifiers),
            ):
                if not ids:
                    continue
                self.reads += len(ids)
                owners = read.get_many(table, ids)
                for entity_id, recipient_id in owners.items():
                    found.fill(entity_id, recipient_id)
                named.update(owners.get(entity_id, entity_id) for entity_id in ids)
            for link_id in wanted.links:
                self.reads += 1
                row = read.get(LINKS, link_key(link_id))
                if row is not None:
                    view.links.fill(link_id, link_owner(row))
                named.add(link_id if row is None else link_owner(row))
            self._load_records(read, view, named)
            for fingerprint in wanted.fingerprints:
                service_id = read.get(FINGERPRINTS, fingerprint)
                if service_id is not None:
                    view.fingerprints.fill(fingerprint, service_id)
                    _load_service(read, view, service_id)
            for service_id in wanted.services:
                _load_service(read, view, service_id)

    def _load_records(self, read: Read, view: View, recipient_ids: set[bytes]) -> None:
        """Unknown ids are looked up too, so that refusals cost the same."""
        self.reads += len(recipient_ids)
        cache, unknown, missing = self._cache, self._unknown, set()
        fill = view.records.fill
        for recipient_id in recipient_ids:
            record = cache.get(recipient_id)
            if record is not None:
                fill(recipient_id, record)
                _load_services_of(read, view, record)
            elif recipient_id not in unknown:
                missing.add(recipient_id)
        if not missing:
            return
        rows = read.get_many(QUEUES, missing)
        for recipient_id in missing:
            row = rows.get(recipient_id)
            if row is None:
                queue_from_row(STRANGER)
                unknown[recipient_id] = None
                continue
            try:
                record = queue_from_row(row)
            except UNREADABLE:
                log.exception("the row of a queue cannot be read")
                view.damaged.add(recipient_id)
                continue
            cache[recipient_id] = record
            fill(recipient_id, record)
            _load_services_of(read, view, record)
        _trim(cache)
        _trim(unknown)

    async def load_needed(self, needed: Needed, view: View) -> None:
        if not (needed.ends or needed.link_data or needed.notifications):
            return
        with self.store.read() as read:
            # Queues that never had a message have no row, and the view takes them for empty.
            for recipient_id, row in read.get_many(ENDS, needed.ends).items():
                ends = ends_from_row(row)
                view.fill_ends(recipient_id, ends)
                if ends.size:
                    _load_messages(read, view, needed, recipient_id, ends)
            for link_id in needed.link_data:
                link = read.get(LINKS, link_key(link_id))
                if link is not None:
                    view.link_data.fill(link_id, link_from_row(link)[1])
            for notifier_id in needed.notifications:
                view.fill_pending(notifier_id, tuple(_notifications(read, notifier_id)))

    async def commit(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        self.store.write(lambda write: _apply(write, changes))
        for change in changes:
            if isinstance(change, PutQueue):
                self._cache.pop(change.record.recipient_id, None)
                self._unknown.pop(change.record.recipient_id, None)
                self._cache[change.record.recipient_id] = change.record
            elif isinstance(change, DeleteQueue):
                self._cache.pop(change.record.recipient_id, None)
        _trim(self._cache)

    async def waiting(
        self, domain: Domain, service_id: bytes, start: bytes, limit: int
    ) -> tuple[tuple[bytes, ...], bytes | None]:
        prefix = service_prefix(domain, service_id)
        with self.store.read() as read:
            page = read.page(PENDING, prefix + start, limit, prefix)
        following = None if page.following is None else page.following[len(prefix) :]
        return tuple(key[len(prefix) :] for key, _ in page.rows), following

    async def expired(
        self, before: int, start: bytes, limit: int
    ) -> tuple[list[tuple[bytes, int]], bytes | None]:
        found: list[tuple[bytes, int]] = []
        with self.store.read() as read:
            page = read.page(ENDS, start, limit)
            for recipient_id, row in page.rows:
                ends = ends_from_row(row)
                count = 0
                while count < ends.size:
                    message = read.get(MESSAGES, message_key(recipient_id, ends.head + count))
                    if message is None or not is_expired_row(message, before):
                        break
                    count += 1
                if count:
                    found.append((recipient_id, count))
        return found, page.following

    async def notified(self, start: bytes, limit: int) -> tuple[tuple[bytes, ...], bytes | None]:
        found: list[bytes] = []
        with self.store.read() as read:
            while page := read.page(NOTIFICATIONS, start, 1).rows:
                notifier_id = notifier_of(page[0][0])
                if len(found) == limit:
                    return tuple(found), notifier_id
                found.append(notifier_id)
                start = behind_notifications(notifier_id)
        return tuple(found), None

    def mark(self, name: bytes) -> bytes | None:
        """The progress of a long job."""
        with self.store.read() as read:
            return read.get(META, mark_key(name))

    @property
    def loaded(self) -> int:
        return len(self._cache)

    def counts(self) -> dict[str, int]:
        with self.store.read() as read:
            return {table: read.count(table) for table in TABLES}

    async def probe(self) -> None:
        self.store.probe()

    def close(self) -> None:
        self.store.close()


def _trim(cache: OrderedDict[bytes, Any]) -> None:
    """Evict the oldest entry for a new one; a plain dict would have to search for it."""
    while len(cache) > CACHE_MAX:
        cache.popitem(last=False)


def _load_services_of(read: Read, view: View, record: QueueRecord) -> None:
    if record.service_id is not None:
        _load_service(read, view, record.service_id)
    if record.notifier is not None and record.notifier.service_id is not None:
        _load_service(read, view, record.notifier.service_id)


def _load_messages(read: Read, view: View, needed: Needed, recipient_id: bytes, ends: Ends) -> None:
    count = needed.messages.get(recipient_id, 0)
    unseen = needed.acknowledged.get(recipient_id) if count == HEADS_OF_ACK else None
    expire = recipient_id in needed.expire
    for number in range(ends.head, ends.tail):
        if not expire:
            if number >= ends.head + count:
                break
            if number == unseen:
                continue
        message = read.get(MESSAGES, message_key(recipient_id, number))
        if message is not None:
            expire = expire and is_expired_row(message, needed.expire_before)
            _fill_message(view, recipient_id, number, message)


def _fill_message(view: View, recipient_id: bytes, number: int, row: bytes) -> None:
    """An unreadable message is missing for the command that needs it; the rest of the batch is unaffected."""
    try:
        view.fill_message(recipient_id, number, message_from_row(row))
    except UNREADABLE:
        log.exception("the row of a message cannot be read")


def _load_service(read: Read, view: View, service_id: bytes) -> None:
    if service_id not in view.services:
        row = read.get(SERVICES, service_id)
        if row is not None:
            view.services.fill(service_id, service_from_row(row))


def _notifications(read: Read, notifier_id: bytes) -> Iterator[Notification]:
    for _, row in read.page(NOTIFICATIONS, notifier_id, 256, prefix=notifier_id).rows:
        yield notification_from_row(notifier_id, row)


def _apply(write: Write, changes: Sequence[Change]) -> None:
    """Changes made by every message come first, without pattern matching, which costs as much as the rest."""
    put_ends, put_message = write.putter(ENDS), write.putter(MESSAGES)
    for change in changes:
        if isinstance(change, PutEnds):
            put_ends(change.recipient_id, ends_to_row(change.ends))
        elif isinstance(change, AddMessage):
            put_message(message_key(change.recipient_id, change.number), message_to_row(change.message))
        elif isinstance(change, DeleteMessage):
            write.delete(MESSAGES, message_key(change.recipient_id, change.number))
        else:
            _apply_other(write, change)


def _apply_other(write: Write, change: Change) -> None:
    match change:
        case PutQueue(record, before):
            _put_queue(write, record, before)
        case DeleteQueue(record, _):
            _delete_queue(write, record)
        case PutLink(link_id, recipient_id, data):
            write.put(LINKS, link_key(link_id), link_to_row(recipient_id, data))
        case DeleteLink(link_id):
            write.delete(LINKS, link_key(link_id))
        case AddNotification(notification):
            key = notification_key(notification.notifier_id, notification.number)
            write.put(NOTIFICATIONS, key, notification_to_row(notification))
        case DeleteNotifications(notifier_id):
            _delete_notifications(write, notifier_id)
        case PutService(service):
            write.put(SERVICES, service.service_id, service_to_row(service))
            write.put(FINGERPRINTS, service.fingerprint, service.service_id)
        case DeleteService(service_id, fingerprint):
            write.delete(SERVICES, service_id)
            write.delete(FINGERPRINTS, fingerprint)
        case SetMember(domain, service_id, entity_id, member):
            _set(write, MEMBERS, service_prefix(domain, service_id) + entity_id, member)
        case SetPending(domain, service_id, entity_id, pending):
            _set(write, PENDING, service_prefix(domain, service_id) + entity_id, pending)
        case PutMark(name, value):
            write.put(META, mark_key(name), value)


def mark_key(name: bytes) -> bytes:
    return b"mark " + name


def _set(write: Write, table: str, key: bytes, there: bool) -> None:
    if there:
        write.put(table, key, b"")
    else:
        write.delete(table, key)


def _put_queue(write: Write, record: QueueRecord, before: QueueRecord | None) -> None:
    recipient_id = record.recipient_id
    write.put(QUEUES, recipient_id, queue_to_row(record))
    if before is None:
        write.put(SENDERS, record.sender_id, recipient_id)
    old = None if before is None else before.notifier
    new = record.notifier
    if old is not None and (new is None or new.notifier_id != old.notifier_id):
        write.delete(NOTIFIERS, old.notifier_id)
    if new is not None and (old is None or new.notifier_id != old.notifier_id):
        write.put(NOTIFIERS, new.notifier_id, recipient_id)


def _delete_queue(write: Write, record: QueueRecord) -> None:
    recipient_id = record.recipient_id
    write.delete(QUEUES, recipient_id)
    write.delete(SENDERS, record.sender_id)
    write.delete(ENDS, recipient_id)
    if record.link_id is not None:
        write.delete(LINKS, link_key(record.link_id))
    if record.notifier is not None:
        write.delete(NOTIFIERS, record.notifier.notifier_id)
        _delete_notifications(write, record.notifier.notifier_id)
    for key in write.keys(MESSAGES, message_prefix(recipient_id)):
        write.delete(MESSAGES, key)


def _delete_notifications(write: Write, notifier_id: bytes) -> None:
    for key in write.keys(NOTIFICATIONS, notifier_id):
        write.delete(NOTIFICATIONS, key)
