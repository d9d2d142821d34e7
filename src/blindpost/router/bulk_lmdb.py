"""The embedded store in chunks."""

from __future__ import annotations

from blindpost.router.bulk import Chunk, HeldMessage, Member, WholeQueue
from blindpost.router.model import Domain, Ends, Notification, ServiceRecord
from blindpost.router.records import (
    ends_from_row,
    link_from_row,
    link_key,
    message_from_row,
    notification_from_row,
    queue_from_row,
    service_from_row,
)
from blindpost.router.tables import (
    ENDS,
    LINKS,
    MEMBERS,
    MESSAGES,
    NOTIFICATIONS,
    PENDING,
    QUEUES,
    SERVICES,
    LmdbTables,
)
from blindpost.store.lmdb import Read


class LmdbBulk:
    """`BulkStore` over a router's embedded store; starts of chunks are keys."""

    def __init__(self, tables: LmdbTables) -> None:
        self._tables = tables
        self._store = tables.store

    async def mark(self, name: bytes) -> bytes | None:
        return self._tables.mark(name)

    async def services(self, start: bytes, limit: int) -> Chunk[ServiceRecord]:
        with self._store.read() as read:
            page = read.page(SERVICES, start, limit)
        return Chunk(tuple(service_from_row(row) for _, row in page.rows), page.following)

    async def queues(self, start: bytes, limit: int) -> Chunk[WholeQueue]:
        with self._store.read() as read:
            page = read.page(QUEUES, start, limit)
            return Chunk(tuple(_whole(read, row) for _, row in page.rows), page.following)

    async def messages(self, start: bytes, limit: int) -> Chunk[HeldMessage]:
        with self._store.read() as read:
            page = read.page(MESSAGES, start, limit)
        return Chunk(tuple(_held(key, row) for key, row in page.rows), page.following)

    async def notifications(self, start: bytes, limit: int) -> Chunk[Notification]:
        with self._store.read() as read:
            page = read.page(NOTIFICATIONS, start, limit)
        return Chunk(tuple(notification_from_row(key[:-1], row) for key, row in page.rows), page.following)

    async def members(self, start: bytes, limit: int) -> Chunk[Member]:
        return self._members(MEMBERS, start, limit)

    async def pending(self, start: bytes, limit: int) -> Chunk[Member]:
        return self._members(PENDING, start, limit)

    def _members(self, table: str, start: bytes, limit: int) -> Chunk[Member]:
        with self._store.read() as read:
            page = read.page(table, start, limit)
        return Chunk(tuple(_member(key) for key, _ in page.rows), page.following)


def _whole(read: Read, row: bytes) -> WholeQueue:
    record = queue_from_row(row)
    link = None if record.link_id is None else read.get(LINKS, link_key(record.link_id))
    ends = read.get(ENDS, record.recipient_id)
    return WholeQueue(
        record,
        None if link is None else link_from_row(link)[1],
        Ends() if ends is None else ends_from_row(ends),
    )


def _held(key: bytes, row: bytes) -> HeldMessage:
    size = key[0]
    return HeldMessage(key[1 : 1 + size], int.from_bytes(key[1 + size :], "big"), message_from_row(row))


def _member(key: bytes) -> Member:
    size = key[1]
    return Member(Domain(key[:1]), key[2 : 2 + size], key[2 + size :])
