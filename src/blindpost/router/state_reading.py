"""The state of all queues without keys and messages, from a consistent view of a store that may be in use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from blindpost.router import postgres_schema
from blindpost.router.bulk import Chunk
from blindpost.router.model import EMPTY, Ends, QueueRecord, ServiceRecord
from blindpost.router.records import (
    ends_from_row,
    message_from_row,
    message_key,
    notification_from_row,
    queue_from_row,
    service_from_row,
)
from blindpost.router.tables import (
    ENDS,
    MESSAGES,
    MIGRATIONS,
    NOTIFICATIONS,
    QUEUES,
    SERVICES,
    TABLES,
    UNREADABLE,
)
from blindpost.store import lmdb, postgres
from blindpost.wire.value import Value

_WAITING_MAX = 256


@dataclass(frozen=True, slots=True, repr=False)
class Waiting(Value):
    """How many messages or notifications wait, and since when the oldest does, in Unix seconds."""

    count: int = 0
    since: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class QueueState(Value):
    """A queue and what waits in it and for its notifier."""

    record: QueueRecord
    messages: Waiting
    full: bool
    notifications: Waiting


class StateReader(Protocol):
    """Everything about queues and services, in chunks of one consistent view."""

    damaged: int
    """Rows that could not be read and are left out."""

    async def queue_count(self) -> int: ...

    async def queues(self, start: bytes, limit: int) -> Chunk[QueueState]: ...

    async def services(self, start: bytes, limit: int) -> Chunk[ServiceRecord]: ...


class LmdbStateReader:
    """`StateReader` of the embedded store."""

    def __init__(self, read: lmdb.Read) -> None:
        self._read = read
        self.damaged = 0

    async def queue_count(self) -> int:
        return self._read.count(QUEUES)

    async def queues(self, start: bytes, limit: int) -> Chunk[QueueState]:
        page = self._read.page(QUEUES, start, limit)
        found = []
        for _, row in page.rows:
            try:
                found.append(self._state(queue_from_row(row)))
            except UNREADABLE:
                self.damaged += 1
        return Chunk(tuple(found), page.following)

    def _state(self, record: QueueRecord) -> QueueState:
        row = self._read.get(ENDS, record.recipient_id)
        ends = EMPTY if row is None else ends_from_row(row)
        since = None
        if ends.size:
            head = self._read.get(MESSAGES, message_key(record.recipient_id, ends.head))
            since = None if head is None else message_from_row(head).seconds
        waiting = Waiting()
        if record.notifier is not None:
            notifier_id = record.notifier.notifier_id
            rows = self._read.page(NOTIFICATIONS, notifier_id, _WAITING_MAX, prefix=notifier_id).rows
            times = [notification_from_row(notifier_id, row).seconds for _, row in rows]
            waiting = Waiting(len(times), min(times, default=None))
        return _state(record, ends, since, waiting)

    async def services(self, start: bytes, limit: int) -> Chunk[ServiceRecord]:
        page = self._read.page(SERVICES, start, limit)
        return Chunk(tuple(service_from_row(row) for _, row in page.rows), page.following)


_QUEUES = """
SELECT queues.recipient_id, queues.record, queues.notifier_id, head, tail, can_write, messages.seconds
FROM (SELECT * FROM queues WHERE recipient_id >= $1 ORDER BY recipient_id LIMIT $2) AS queues
LEFT JOIN ends USING (recipient_id)
LEFT JOIN messages ON messages.recipient_id = queues.recipient_id AND messages.number = ends.head
ORDER BY queues.recipient_id
"""
_NOTIFICATIONS = """
SELECT notifier_id, count(*) AS count, min(encode(substring(record FROM 1 FOR 8), 'hex')) AS since
FROM notifications WHERE notifier_id = ANY($1) GROUP BY notifier_id
"""
_SERVICES = "SELECT service_id, record FROM services WHERE service_id >= $1 ORDER BY service_id LIMIT $2"


class PostgresStateReader:
    """`StateReader` of the database."""

    def __init__(self, connection: postgres.Connection) -> None:
        self._connection = connection
        self.damaged = 0

    async def queue_count(self) -> int:
        count: int = await self._connection.fetchval("SELECT queues FROM state")
        return count

    async def queues(self, start: bytes, limit: int) -> Chunk[QueueState]:
        rows = await self._connection.fetch(_QUEUES, start, limit + 1)
        waiting = await self._waiting([row["notifier_id"] for row in rows if row["notifier_id"] is not None])
        found = []
        for row in rows[:limit]:
            ends = EMPTY if row["head"] is None else Ends(row["head"], row["tail"], row["can_write"])
            try:
                record = queue_from_row(row["record"])
            except UNREADABLE:
                self.damaged += 1
                continue
            notified = waiting.get(row["notifier_id"], Waiting())
            found.append(_state(record, ends, row["seconds"] if ends.size else None, notified))
        return Chunk(tuple(found), rows[limit]["recipient_id"] if len(rows) > limit else None)

    async def _waiting(self, notifier_ids: Sequence[bytes]) -> dict[bytes, Waiting]:
        rows: Iterable[Any] = (
            await self._connection.fetch(_NOTIFICATIONS, notifier_ids) if notifier_ids else ()
        )
        return {row["notifier_id"]: Waiting(row["count"], int(row["since"], 16)) for row in rows}

    async def services(self, start: bytes, limit: int) -> Chunk[ServiceRecord]:
        rows = await self._connection.fetch(_SERVICES, start, limit + 1)
        found = tuple(service_from_row(row["record"]) for row in rows[:limit])
        return Chunk(found, rows[limit]["service_id"] if len(rows) > limit else None)


def _state(record: QueueRecord, ends: Ends, since: int | None, notified: Waiting) -> QueueState:
    full = ends.size > 0 and not ends.can_write
    return QueueState(record, Waiting(ends.size, since), full, notified)


@asynccontextmanager
async def lmdb_state(folder: Path) -> AsyncIterator[StateReader]:
    with lmdb.snapshot(folder, TABLES, len(MIGRATIONS)) as read:
        yield LmdbStateReader(read)


@asynccontextmanager
async def postgres_state(dsn: str) -> AsyncIterator[StateReader]:
    async with postgres.snapshot(dsn, postgres_schema.SCHEMA) as connection:
        yield PostgresStateReader(connection)
