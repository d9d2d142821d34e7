"""The store in PostgreSQL in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from blindpost.router.bulk import Chunk, HeldMessage, Member, WholeQueue
from blindpost.router.model import EMPTY, Domain, Ends, Notification, ServiceRecord, StoredMessage
from blindpost.router.records import link_from_row, notification_from_row, queue_from_row, service_from_row
from blindpost.wire.primitives import Reader, Writer

_MARK = "SELECT value FROM marks WHERE name = $1"
_SERVICES = "SELECT service_id, record FROM services WHERE service_id >= $1 ORDER BY service_id LIMIT $2"
_QUEUES = """
SELECT queues.recipient_id, queues.record, links.record AS link, head, tail, can_write
FROM (SELECT * FROM queues WHERE recipient_id >= $1 ORDER BY recipient_id LIMIT $2) AS queues
LEFT JOIN ends USING (recipient_id)
LEFT JOIN links ON links.link_id = queues.link_id
ORDER BY queues.recipient_id
"""
_MESSAGES = """
SELECT recipient_id, number, seconds, msg_id, notify, body FROM messages
WHERE (recipient_id, number) >= ($1, $2) ORDER BY recipient_id, number LIMIT $3
"""
_NOTIFICATIONS = """
SELECT notifier_id, place, record FROM notifications
WHERE (notifier_id, place) >= ($1, $2) ORDER BY notifier_id, place LIMIT $3
"""
_MEMBERS = """
SELECT domain, service_id, entity_id FROM {table}
WHERE (domain, service_id, entity_id) >= ($1, $2, $3) ORDER BY domain, service_id, entity_id LIMIT $4
"""


class Fetching(Protocol):
    """What sends statements."""

    async def fetch(self, statement: str, /, *arguments: Any) -> list[Any]: ...


class PostgresBulk:
    """`BulkStore` over a router's database; starts of chunks are keys, their parts one after another."""

    def __init__(self, store: Fetching) -> None:
        """Over the store that a router owns, or a snapshot of one that runs."""
        self._store = store

    async def mark(self, name: bytes) -> bytes | None:
        rows = await self._store.fetch(_MARK, name)
        return rows[0]["value"] if rows else None

    async def services(self, start: bytes, limit: int) -> Chunk[ServiceRecord]:
        rows, following = await self._page(_SERVICES, (start,), limit)
        return Chunk(tuple(service_from_row(row["record"]) for row in rows), _plain(following))

    async def queues(self, start: bytes, limit: int) -> Chunk[WholeQueue]:
        rows, following = await self._page(_QUEUES, (start,), limit)
        return Chunk(tuple(map(_whole, rows)), _plain(following))

    async def messages(self, start: bytes, limit: int) -> Chunk[HeldMessage]:
        rows, following = await self._page(_MESSAGES, _numbered(start), limit)
        return Chunk(tuple(map(_held, rows)), None if following is None else _from_numbered(following))

    async def notifications(self, start: bytes, limit: int) -> Chunk[Notification]:
        rows, following = await self._page(_NOTIFICATIONS, _numbered(start), limit)
        found = tuple(notification_from_row(row["notifier_id"], row["record"]) for row in rows)
        return Chunk(found, None if following is None else _from_numbered(following))

    async def members(self, start: bytes, limit: int) -> Chunk[Member]:
        return await self._members("members", start, limit)

    async def pending(self, start: bytes, limit: int) -> Chunk[Member]:
        return await self._members("pending", start, limit)

    async def _members(self, table: str, start: bytes, limit: int) -> Chunk[Member]:
        reader = Reader(start)
        key = (reader.short(), reader.short(), reader.short()) if start else (b"", b"", b"")
        rows, following = await self._page(_MEMBERS.format(table=table), key, limit)
        found = tuple(Member(Domain(domain), service_id, entity_id) for domain, service_id, entity_id in rows)
        if following is None:
            return Chunk(found, None)
        writer = Writer()
        for part in following:
            writer.short(part)
        return Chunk(found, writer.done())

    async def _page(self, statement: str, start: Sequence[Any], limit: int) -> tuple[list[Any], Any]:
        """Up to `limit` rows from a key on, and the row that follows them."""
        rows = await self._store.fetch(statement, *start, limit + 1)
        return rows[:limit], rows[limit] if len(rows) > limit else None


def _plain(following: Sequence[Any] | None) -> bytes | None:
    """Where the key is one column, the first."""
    return None if following is None else following[0]


def _numbered(start: bytes) -> tuple[bytes, int]:
    if not start:
        return b"", 0
    reader = Reader(start)
    return reader.short(), reader.i64()


def _from_numbered(following: Sequence[Any]) -> bytes:
    return Writer().short(following[0]).i64(following[1]).done()


def _whole(row: Any) -> WholeQueue:
    link, head = row["link"], row["head"]
    return WholeQueue(
        queue_from_row(row["record"]),
        None if link is None else link_from_row(link)[1],
        EMPTY if head is None else Ends(head, row["tail"], row["can_write"]),
    )


def _held(row: Any) -> HeldMessage:
    recipient_id, number, seconds, msg_id, notify, body = row
    return HeldMessage(recipient_id, number, StoredMessage(msg_id, seconds, notify, body))
