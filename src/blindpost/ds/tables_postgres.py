"""The delivery service's tables in PostgreSQL: set-oriented reads, one commit for a batch."""

from __future__ import annotations

from collections.abc import Sequence

from blindpost.ds.heads import SCAN_MAX, Head
from blindpost.ds.model import Ends, Entry
from blindpost.ds.tables import IsHeld
from blindpost.ds.view import AddEntry, Change, DeleteEntry, PutEnds, View, Wanted
from blindpost.store.contract import Durability
from blindpost.store.postgres import PostgresStore, Schema, Step, Work

COUNTERS = ("queues", "payloads", "bytes")

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

SCHEMA = Schema("blindpost_ds", (_FIRST,), COUNTERS)

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
_FIRST_STEP = 64
"""How many entries of each queue the one statement for all queues reads; long ones are read on."""


class PostgresTables:
    """The shared store of a delivery service; it owns its database."""

    def __init__(self, store: PostgresStore) -> None:
        """Use `open`."""
        self.store = store

    @classmethod
    async def open(cls, dsn: str, durability: Durability = Durability.FULL) -> PostgresTables:
        return cls(await PostgresStore.open(dsn, SCHEMA, durability))

    async def load(
        self, wanted: Wanted, view: View, is_held: IsHeld, response_bytes: int, turn_bytes: int
    ) -> None:
        view.fill_totals(*self.totals())
        if wanted.queues:
            for queue, tail, count, size in await self.store.fetch(_QUEUES, list(wanted.queues)):
                view.fill_ends(queue, Ends(tail, count, size))
        if wanted.entries:
            queues, numbers = zip(*wanted.entries, strict=True)
            for queue, number, tag, size in await self.store.fetch(_ENTRIES, list(queues), list(numbers)):
                view.fill_entry(queue, Entry(number, tag, size))
        if not wanted.heads:
            return
        first: dict[bytes, list[Entry]] = {queue: [] for queue in wanted.heads}
        for queue, number, tag, size in await self.store.fetch(_HEADS, list(wanted.heads), _FIRST_STEP, 0):
            first[queue].append(Entry(number, tag, size))
        for queue, payloads in wanted.heads.items():
            head = Head(queue, payloads, response_bytes, turn_bytes)
            is_all = await self._offer(head, first[queue], is_held)
            loaded: dict[int, bytes] = {}
            if head.wanted:
                loaded = dict(map(tuple, await self.store.fetch(_PAYLOADS, queue, head.wanted)))
            head.fill(view, loaded, is_all=is_all)
            turn_bytes -= head.size

    async def _offer(self, head: Head, entries: list[Entry], is_held: IsHeld) -> bool:
        """Offer the entries of a queue, as far as they are wanted; whether that was all."""
        step = _FIRST_STEP
        while True:
            for entry in entries:
                head.offer(entry, is_held=is_held(head.queue, entry.number))
            if len(entries) < step:
                return True
            if head.is_scanned:
                return False
            step, after = SCAN_MAX // 4, entries[-1].number + 1
            rows = await self.store.fetch(_HEADS, [head.queue], step, after)
            entries = [Entry(number, tag, size) for _, number, tag, size in rows]

    async def commit(self, changes: Sequence[Change]) -> None:
        """As `DsStore`; `OutcomeUnknownError` while it is not known whether the changes are there."""
        if changes:
            work, more = _work(changes)
            await self.store.commit([work], {"bytes": more})

    def totals(self) -> tuple[int, int]:
        counts = self.store.counts
        return counts["payloads"], counts["bytes"]

    def counts(self) -> dict[str, int]:
        return {"queues": self.store.counts["queues"], "payloads": self.store.counts["payloads"]}

    def close(self) -> None:
        self.store.close()


def _work(changes: Sequence[Change]) -> tuple[Work, int]:
    """The steps of a commit, of each key the last change, and how many bytes more are stored after it."""
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
    rows = [(*key, entry.tag, entry.size, entry.payload) for key, entry in added]
    removed = [key for key, entry in payloads.items() if entry is None]
    steps: list[tuple[Step, list[tuple[object, ...]]]] = [
        (_PUT_QUEUES, list(put)),
        (_DELETE_QUEUES, list(gone)),
        (_PUT_PAYLOADS, list(rows)),
        (_DELETE_PAYLOADS, list(removed)),
    ]
    return [(step, [list(column) for column in zip(*of, strict=True)]) for step, of in steps if of], more
