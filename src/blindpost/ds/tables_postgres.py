"""The delivery service's tables in PostgreSQL: set-oriented reads, one commit for a batch.

A large payload is transferred in pieces over separate connections. `staged` lists those that are in no
queue: the tag is added before the first piece, removed by the commit that adds the entry, and added back by
the one that deletes it. Whatever it lists at the start is left from a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeGuard

import asyncpg

from blindpost.ds.heads import SCAN_MAX, Head
from blindpost.ds.model import DsRules, Ends, Entry, named
from blindpost.ds.tables import WALK_STEP, Reaches
from blindpost.ds.view import AddEntry, Change, DeleteEntry, PutEnds, View, Wanted
from blindpost.engine.loop import OutcomeUnknownError, StoreFailedError
from blindpost.store.contract import Durability
from blindpost.store.postgres import PostgresStore, Schema, Step, Work

log = logging.getLogger(__name__)

COUNTERS = ("queues", "payloads", "bytes")
PIECE_BYTES = 256 << 10

_FIRST = """
CREATE TABLE queues (
    queue bytea PRIMARY KEY,
    tail bigint NOT NULL,
    count bigint NOT NULL,
    size bigint NOT NULL
) WITH (fillfactor = 70);
CREATE TABLE payloads (
    queue bytea,
    number bigint,
    tag bytea NOT NULL,
    size bigint NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (queue, number)
);
-- Encrypted bytes do not compress: do not try.
ALTER TABLE payloads ALTER COLUMN payload SET STORAGE EXTERNAL;
ALTER TABLE state
""" + ",\n".join(f"    ADD COLUMN {counter} bigint NOT NULL DEFAULT 0" for counter in COUNTERS)

_SECOND = """
CREATE TABLE staged (
    queue bytea,
    tag bytea,
    PRIMARY KEY (queue, tag)
);
CREATE TABLE pieces (
    queue bytea,
    tag bytea,
    number integer,
    content bytea NOT NULL,
    PRIMARY KEY (queue, tag, number)
);
ALTER TABLE pieces ALTER COLUMN content SET STORAGE EXTERNAL;
"""

# The payloads are counted anew, for earlier versions could count some of them twice.
_THIRD = """
DELETE FROM queues;
INSERT INTO queues SELECT queue, max(number) + 1, count(*), sum(size) FROM payloads GROUP BY queue;
UPDATE state SET
    queues = (SELECT count(*) FROM queues),
    payloads = (SELECT count(*) FROM payloads),
    bytes = (SELECT coalesce(sum(size), 0) FROM payloads);
"""

SCHEMA = Schema("blindpost_ds", (_FIRST, _SECOND, _THIRD), COUNTERS)

_PUT_QUEUES = Step(
    "queues",
    "INSERT INTO queues SELECT * FROM unnest({0}::bytea[], {1}::bigint[], {2}::bigint[], {3}::bigint[]) "
    "ON CONFLICT (queue) DO UPDATE SET tail = excluded.tail, count = excluded.count, size = excluded.size "
    "RETURNING xmax = 0 AS fresh",
)
_DELETE_QUEUES = Step(
    "queues",
    "DELETE FROM queues kept USING unnest({0}::bytea[]) AS gone(queue) WHERE kept.queue = gone.queue "
    "RETURNING true AS fresh",
    is_delete=True,
)
_PUT_PAYLOADS = Step(
    "payloads",
    "INSERT INTO payloads SELECT * FROM "
    "unnest({0}::bytea[], {1}::bigint[], {2}::bytea[], {3}::bigint[], {4}::bytea[]) "
    "ON CONFLICT (queue, number) DO UPDATE "
    "SET tag = excluded.tag, size = excluded.size, payload = excluded.payload RETURNING xmax = 0 AS fresh",
)
_DELETE_PAYLOADS = Step(
    "payloads",
    "DELETE FROM payloads kept USING unnest({0}::bytea[], {1}::bigint[]) AS gone(queue, number) "
    "WHERE kept.queue = gone.queue AND kept.number = gone.number RETURNING true AS fresh",
    is_delete=True,
)
_PUT_STAGED = Step(
    None,
    "INSERT INTO staged SELECT * FROM unnest({0}::bytea[], {1}::bytea[]) ON CONFLICT DO NOTHING "
    "RETURNING true AS fresh",
)
_DELETE_STAGED = Step(
    None,
    "DELETE FROM staged kept USING unnest({0}::bytea[], {1}::bytea[]) AS gone(queue, tag) "
    "WHERE kept.queue = gone.queue AND kept.tag = gone.tag RETURNING true AS fresh",
    is_delete=True,
)
_STAGE = "INSERT INTO staged VALUES ($1, $2)"
_PUT_PIECE = (
    "INSERT INTO pieces SELECT queue, tag, $3::integer, $4::bytea FROM staged "
    "WHERE queue = $1 AND tag = $2 FOR SHARE RETURNING true"
)
_READ_PIECE = "SELECT content FROM pieces WHERE queue = $1 AND tag = $2 AND number = $3"
_READ_WHOLE = "SELECT payload FROM payloads WHERE queue = $1 AND number = $2 AND tag = $3"
_CLEAR = (
    "WITH gone AS (DELETE FROM staged WHERE queue = $1 AND tag = $2 RETURNING queue, tag) "
    "DELETE FROM pieces kept USING gone WHERE kept.queue = gone.queue AND kept.tag = gone.tag"
)
_NEXT_QUEUES = "SELECT queue, count FROM queues WHERE queue > $1 ORDER BY queue LIMIT $2"
_NEXT_ENTRIES = (
    "SELECT number, tag, size FROM payloads WHERE queue = $1 AND number >= $2 ORDER BY number LIMIT $3"
)
_QUEUES = (
    "SELECT found.* FROM unnest($1::bytea[]) AS wanted(queue) JOIN queues found ON found.queue = wanted.queue"
)
_ENTRIES = (
    "SELECT found.queue, found.number, found.tag, found.size "
    "FROM unnest($1::bytea[], $2::bigint[]) AS wanted(queue, number) "
    "JOIN payloads found ON found.queue = wanted.queue AND found.number = wanted.number"
)
_HEADS = (
    "SELECT wanted.queue, found.number, found.tag, found.size "
    "FROM unnest($1::bytea[]) AS wanted(queue) CROSS JOIN LATERAL ("
    "SELECT number, tag, size FROM payloads WHERE payloads.queue = wanted.queue AND number >= $3 "
    "ORDER BY number LIMIT $2) found ORDER BY wanted.queue, found.number"
)
_PAYLOADS = (
    "SELECT found.number, found.payload FROM unnest($2::bigint[]) AS wanted(number) "
    "JOIN payloads found ON found.queue = $1 AND found.number = wanted.number"
)
Fetch = Callable[..., Awaitable[list[asyncpg.Record]]]

_FIRST_STEP = 64
"""How many entries of each queue the one statement for all queues reads; longer queues take more reads."""


class PostgresTables:
    """The shared store of a delivery service; it owns its database."""

    def __init__(self, store: PostgresStore) -> None:
        """Use `open`."""
        self.store = store
        self._clearing: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls, dsn: str, durability: Durability = Durability.FULL, *, in_turn: bool = False
    ) -> PostgresTables:
        tables = cls(await PostgresStore.open(dsn, SCHEMA, durability, in_turn=in_turn))
        try:
            for queue, tag in await tables.store.fetch("SELECT queue, tag FROM staged"):
                await tables.store.fetch(_CLEAR, queue, tag)
        except BaseException:
            tables.close()
            raise
        return tables

    async def load(self, wanted: Wanted, view: View, reaches: Reaches, rules: DsRules) -> None:
        fetch, turn_bytes = self.store.aside if self.store.is_busy else self.store.fetch, rules.turn_bytes
        view.fill_totals(*self.totals())
        if wanted.queues:
            for queue, tail, count, size in await fetch(_QUEUES, list(wanted.queues)):
                view.fill_ends(queue, Ends(tail, count, size))
        if wanted.entries:
            queues, numbers = zip(*wanted.entries, strict=True)
            for queue, number, tag, size in await fetch(_ENTRIES, list(queues), list(numbers)):
                view.fill_entry(queue, Entry(number, tag, size))
        if not wanted.heads:
            return
        first: dict[bytes, list[Entry]] = {queue: [] for queue in wanted.heads}
        for queue, number, tag, size in await fetch(_HEADS, list(wanted.heads), _FIRST_STEP, 0):
            first[queue].append(Entry(number, tag, size))
        for queue, payloads in wanted.heads.items():
            head = Head(queue, reaches(queue), payloads, rules.response_bytes, turn_bytes)
            is_all = await self._offer(head, first[queue], fetch)
            loaded: dict[int, bytes] = {}
            if head.wanted:
                loaded = dict(map(tuple, await fetch(_PAYLOADS, queue, head.wanted)))
            head.fill(view, loaded, is_all=is_all)
            turn_bytes -= head.size

    async def _offer(self, head: Head, entries: list[Entry], fetch: Fetch) -> bool:
        """Offer the entries of a queue, as far as they are wanted; whether that was all."""
        step = _FIRST_STEP
        while True:
            for entry in entries:
                head.offer(entry)
            if len(entries) < step:
                return True
            if head.is_scanned:
                return False
            step, after = SCAN_MAX // 4, entries[-1].number + 1
            rows = await fetch(_HEADS, [head.queue], step, after)
            entries = [Entry(number, tag, size) for _, number, tag, size in rows]

    async def commit(self, changes: Sequence[Change]) -> None:
        """As `DsStore`; `OutcomeUnknownError` while it is not known whether the changes are there."""
        if changes:
            work, more = _work(changes)
            await self.store.commit([work], {"bytes": more})
            self._clear((change.queue, change.entry.tag) for change in changes if _is_large_deleted(change))

    async def stage(self, queue: bytes, tag: bytes, payload: bytes) -> None:
        await self.store.aside(_STAGE, queue, tag)
        try:
            for number, at in enumerate(range(0, len(payload), PIECE_BYTES)):
                piece = payload[at : at + PIECE_BYTES]
                if not await self.store.aside(_PUT_PIECE, queue, tag, number, piece):
                    raise StoreFailedError("another service owns the database")
        except StoreFailedError:
            self.drop(queue, tag)
            raise

    def drop(self, queue: bytes, tag: bytes) -> None:
        self._clear([(queue, tag)])

    async def read_large(self, queue: bytes, entry: Entry) -> bytes | None:
        rows = await self.store.aside(_READ_WHOLE, queue, entry.number, entry.tag)
        if not rows or rows[0][0]:
            return rows[0][0] if rows else None
        pieces: list[bytes] = []
        for number in range(-(-entry.size // PIECE_BYTES)):
            pieces += [row[0] for row in await self.store.aside(_READ_PIECE, queue, entry.tag, number)]
        found = b"".join(pieces)
        return found if len(found) == entry.size else None

    def _clear(self, gone: Iterable[tuple[bytes, bytes]]) -> None:
        """Begin to remove large payloads that are staged; what cannot be removed waits for the next start."""

        async def clear(queue: bytes, tag: bytes) -> None:
            try:
                await self.store.aside(_CLEAR, queue, tag)
            except StoreFailedError as error:
                log.warning("a large payload stays until the next start: %s", error)

        for queue, tag in gone:
            task = asyncio.create_task(clear(queue, tag))
            self._clearing.add(task)
            task.add_done_callback(self._clearing.discard)

    async def fill(self, chunks: Callable[[], Iterable[Sequence[Change]]], size: int) -> None:
        """As `DsStore`: phase after phase of one transaction."""
        try:
            await self.store.commit((_work(chunk)[0] for chunk in chunks()), {"bytes": size})
        except OutcomeUnknownError as error:
            if not await error.outcome:
                raise StoreFailedError(str(error)) from error

    async def queues(self) -> AsyncIterator[tuple[bytes, bytes, int]]:
        last = b""
        while rows := await self.store.fetch(_NEXT_QUEUES, last, WALK_STEP):
            for queue, count in rows:
                name = named(queue)
                if name is not None:
                    yield *name, count
            last = rows[-1][0]

    async def payloads(self, queue: bytes) -> AsyncIterator[bytes]:
        start = 0
        while rows := await self.store.fetch(_NEXT_ENTRIES, queue, start, WALK_STEP):
            for number, tag, size in rows:
                payload = await self.read_large(queue, Entry(number, tag, size))
                assert payload is not None, "an entry without its payload"
                yield payload
            start = rows[-1][0] + 1

    def totals(self) -> tuple[int, int]:
        counts = self.store.counts
        return counts["payloads"], counts["bytes"]

    def counts(self) -> dict[str, int]:
        return {"queues": self.store.counts["queues"], "payloads": self.store.counts["payloads"]}

    async def probe(self) -> None:
        await self.store.probe()

    def close(self) -> None:
        for task in self._clearing:
            task.cancel()
        self.store.close()


def _is_large_deleted(change: Change) -> TypeGuard[DeleteEntry]:
    return isinstance(change, DeleteEntry) and change.entry.is_large


def _work(changes: Sequence[Change]) -> tuple[Work, int]:
    """The steps of a commit, the last change of each key, and by how many bytes the store grows."""
    queues: dict[bytes, Ends] = {}
    payloads: dict[tuple[bytes, int], Entry | None] = {}
    more = 0
    for change in changes:
        match change:
            case AddEntry(queue, entry):
                payloads[queue, entry.number] = entry
                more += entry.size
            case DeleteEntry(queue, entry):
                payloads[queue, entry.number] = None
                more -= entry.size
            case PutEnds(queue, ends):
                queues[queue] = ends
    put = [(queue, ends.tail, ends.count, ends.size) for queue, ends in queues.items() if ends.count]
    gone = [(queue,) for queue, ends in queues.items() if not ends.count]
    added = [(key, entry) for key, entry in payloads.items() if entry is not None]
    rows = [(*key, entry.tag, entry.size, entry.payload or b"") for key, entry in added]
    unstaged = [(queue, entry.tag) for (queue, _), entry in added if entry.payload is None]
    staged = [(change.queue, change.entry.tag) for change in changes if _is_large_deleted(change)]
    removed = [key for key, entry in payloads.items() if entry is None]
    steps: list[tuple[Step, list[tuple[object, ...]]]] = [
        (_PUT_QUEUES, list(put)),
        (_DELETE_QUEUES, list(gone)),
        (_PUT_PAYLOADS, list(rows)),
        (_DELETE_PAYLOADS, list(removed)),
        (_DELETE_STAGED, list(unstaged)),
        (_PUT_STAGED, list(staged)),
    ]
    return [(step, [list(column) for column in zip(*of, strict=True)]) for step, of in steps if of], more
