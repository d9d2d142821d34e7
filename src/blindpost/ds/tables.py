"""The delivery service's tables in the embedded store.

Entries (tag and size) and payloads are apart, so that walking over a queue, or acknowledging, never
touches a payload. What one enqueue writes does not depend on what is stored. A large payload is a file, and
the table `large` lists the files that have an entry.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from blindpost.ds.heads import Head
from blindpost.ds.large import LargeFiles, large_name
from blindpost.ds.model import EMPTY, DsRules, Ends, Entry, named
from blindpost.ds.state import Reach
from blindpost.ds.view import AddEntry, Change, DeleteEntry, PutEnds, PutTotals, View, Wanted
from blindpost.store.contract import Durability
from blindpost.store.lmdb import META, LmdbStore, Migration, Read, Write

QUEUES, ENTRIES, PAYLOADS, LARGE = TABLES = ("queues", "entries", "payloads", "large")

_ENDS = struct.Struct(">QQQ")
_ENTRY = struct.Struct(">8sQ")
_TOTALS_KEY, _TOTALS = b"totals", struct.Struct(">QQ")

INLINE_BYTES_MAX = 64 << 10
"""A commit above this runs outside the event loop, as does one that waits for the disk."""
WALK_STEP = 256

Reaches = Callable[[bytes], Reach]
"""For each queue that a batch takes from."""

OWNER = "delivery service"
LARGE_FOLDER = "large"
"""Where the embedded store keeps large payloads, a file each."""


class DsStore(Protocol):
    """What the delivery service asks of a store, whichever it is."""

    async def load(self, wanted: Wanted, view: View, reaches: Reaches, rules: DsRules) -> None:
        """Fill in what a batch needs, within the bytes of a turn; may run during a commit.

        Of each queue that it takes from: the first entries, up to those that fill one answer, with the
        payloads of those that somebody may take and that are not large.
        """

    async def stage(self, queue: bytes, tag: bytes, payload: bytes) -> None:
        """Write a large payload, in parallel with everything else, or raise `StoreFailedError`.

        It is in no queue until a commit adds the entry of this tag; if the process ends before, the next
        one removes it.
        """

    def drop(self, queue: bytes, tag: bytes) -> None:
        """Begin to remove a staged payload that no commit will add."""

    async def read_large(self, queue: bytes, entry: Entry) -> bytes | None:
        """Read a large payload, in parallel with everything else; None if its entry was deleted."""

    async def commit(self, changes: Sequence[Change]) -> None:
        """Make all changes durable, or raise `StoreFailedError` and none of them."""

    async def fill(self, chunks: Callable[[], Iterable[Sequence[Change]]], size: int) -> None:
        """Make all chunks of changes durable, or raise `StoreFailedError` and none of them.

        They hold `size` bytes of payloads, and may be iterated more than once.
        """

    def queues(self) -> AsyncIterator[tuple[bytes, bytes, int]]:
        """Recipient key, channel id and length of each delivery queue, read in chunks."""

    def payloads(self, queue: bytes) -> AsyncIterator[bytes]:
        """The payloads of a queue in order, one read each."""

    def totals(self) -> tuple[int, int]:
        """Payloads and bytes in all queues."""

    def counts(self) -> dict[str, int]:
        """How many rows each table has."""

    async def probe(self) -> None:
        """Write something that changes nothing; `StoreFailedError` if the store takes no writes."""

    def close(self) -> None: ...


def _first(write: Write) -> None:
    """Version 1 of the schema: the tables, empty."""


def _second(write: Write) -> None:
    """Version 2: large payloads are files. Those that are rows already stay rows."""


def _third(write: Write) -> None:
    """Version 3: the payloads are counted anew, for earlier versions could count some of them twice."""
    while rows := write.page(QUEUES, b"", WALK_STEP).rows:
        for queue, _ in rows:
            write.delete(QUEUES, queue)
    payloads = total = 0
    for queue, entries in itertools.groupby(_all_entries(write), lambda found: found[0]):
        ends = EMPTY
        for _, number, size in entries:
            ends = Ends(number + 1, ends.count + 1, ends.size + size)
        payloads, total = payloads + ends.count, total + ends.size
        write.put(QUEUES, queue, _ENDS.pack(ends.tail, ends.count, ends.size))
    write.put(META, _TOTALS_KEY, _TOTALS.pack(payloads, total))


def _all_entries(read: Read) -> Iterator[tuple[bytes, int, int]]:
    """Queue, number and size of each entry, queue by queue."""
    start: bytes | None = b""
    while start is not None:
        page = read.page(ENTRIES, start, WALK_STEP)
        start = page.following
        for key, row in page.rows:
            yield key[:-8], int.from_bytes(key[-8:], "big"), _ENTRY.unpack(row)[1]


MIGRATIONS: tuple[Migration, ...] = (_first, _second, _third)


class LmdbTables:
    """The embedded store of a delivery service."""

    def __init__(self, folder: Path, durability: Durability = Durability.FULL) -> None:
        self.store = LmdbStore(folder, TABLES, owner=OWNER, durability=durability, migrations=MIGRATIONS)
        self._synced = durability is Durability.FULL
        self._files = LargeFiles(folder / LARGE_FOLDER, synced=self._synced)
        with self.store.read() as read:
            self._files.tidy(lambda name: read.get(LARGE, name) is not None)
        self.bytes_written = 0
        """Of rows and keys, for measurements."""

    async def load(self, wanted: Wanted, view: View, reaches: Reaches, rules: DsRules) -> None:
        turn_bytes = rules.turn_bytes
        with self.store.read() as read:
            view.fill_totals(*_totals(read))
            for queue in wanted.queues:
                row = read.get(QUEUES, queue)
                if row is not None:
                    view.fill_ends(queue, Ends(*_ENDS.unpack(row)))
            for queue, number in wanted.entries:
                row = read.get(ENTRIES, _key(queue, number))
                if row is not None:
                    view.fill_entry(queue, Entry(number, *_ENTRY.unpack(row)))
            for queue, payloads in wanted.heads.items():
                head = Head(queue, reaches(queue), payloads, rules.response_bytes, turn_bytes)
                is_all = _load_head(read, head)
                loaded = {number: _payload(read, queue, number) for number in head.wanted}
                head.fill(view, loaded, is_all=is_all)
                turn_bytes -= head.size

    async def commit(self, changes: Sequence[Change]) -> None:
        rows = list(change_rows(changes))
        if not rows:
            return
        size = sum(len(key) + len(row or b"") for _, key, row in rows)
        if self._synced or size > INLINE_BYTES_MAX:
            await asyncio.to_thread(self.store.commit, rows)
        else:
            self.store.commit(rows)
        self.bytes_written += size
        self._files.remove(
            large_name(change.queue, change.entry.tag)
            for change in changes
            if isinstance(change, DeleteEntry) and change.entry.is_large
        )

    async def stage(self, queue: bytes, tag: bytes, payload: bytes) -> None:
        await self._files.write(large_name(queue, tag), payload)
        self.bytes_written += len(payload)

    def drop(self, queue: bytes, tag: bytes) -> None:
        self._files.remove([large_name(queue, tag)])

    async def read_large(self, queue: bytes, entry: Entry) -> bytes | None:
        found = await self._files.read(large_name(queue, entry.tag))
        if found is None:
            found = await asyncio.to_thread(self._row, _key(queue, entry.number), entry.tag)
        return found

    def _row(self, key: bytes, tag: bytes) -> bytes | None:
        """A payload from an import or an earlier version: a row, however large. None if it is another's."""
        with self.store.read() as read:
            row = read.get(ENTRIES, key)
            return read.get(PAYLOADS, key) if row is not None and _ENTRY.unpack(row)[0] == tag else None

    def totals(self) -> tuple[int, int]:
        with self.store.read() as read:
            return _totals(read)

    def counts(self) -> dict[str, int]:
        with self.store.read() as read:
            return {table: read.count(table) for table in TABLES}

    async def fill(self, chunks: Callable[[], Iterable[Sequence[Change]]], size: int) -> None:
        """As `DsStore`: one transaction."""

        def work(write: Write) -> None:
            for chunk in chunks():
                write.apply(list(change_rows(chunk)))

        self.store.write(work)

    async def queues(self) -> AsyncIterator[tuple[bytes, bytes, int]]:
        start: bytes | None = b""
        while start is not None:
            with self.store.read() as read:
                page = read.page(QUEUES, start, WALK_STEP)
            for queue, row in page.rows:
                name = named(queue)
                if name is not None:
                    yield *name, _ENDS.unpack(row)[1]
            start = page.following

    async def payloads(self, queue: bytes) -> AsyncIterator[bytes]:
        start: bytes | None = queue
        while start is not None:
            with self.store.read() as read:
                page = read.page(ENTRIES, start, WALK_STEP, queue)
            for key, row in page.rows:
                tag, _ = _ENTRY.unpack(row)
                payload = self._row(key, tag)
                if payload is None:
                    payload = self._files.look(large_name(queue, tag))
                assert payload is not None, "an entry without its payload"
                yield payload
            start = page.following

    async def probe(self) -> None:
        self.store.probe()

    def close(self) -> None:
        self._files.close()
        self.store.close()


def _load_head(read: Read, head: Head) -> bool:
    """Offer the entries of a queue, as far as they are wanted; whether that was all."""
    start: bytes | None = head.queue
    while start is not None and not head.is_scanned:
        page = read.page(ENTRIES, start, WALK_STEP, head.queue)
        start = page.following
        for key, row in page.rows:
            head.offer(Entry(int.from_bytes(key[-8:], "big"), *_ENTRY.unpack(row)))
    return start is None


def _payload(read: Read, queue: bytes, number: int) -> bytes:
    payload = read.get(PAYLOADS, _key(queue, number))
    assert payload is not None, "an entry without its payload"
    return payload


def change_rows(changes: Sequence[Change]) -> Iterator[tuple[str, bytes, bytes | None]]:
    """The changes as rows; only the last write of each."""
    ends: dict[bytes, Ends] = {}
    totals: PutTotals | None = None
    for change in changes:
        match change:
            case AddEntry(queue, entry):
                key = _key(queue, entry.number)
                yield ENTRIES, key, _ENTRY.pack(entry.tag, entry.size)
                if entry.payload is not None:
                    yield PAYLOADS, key, entry.payload
                else:
                    yield LARGE, large_name(queue, entry.tag), b""
            case DeleteEntry(queue, entry):
                key = _key(queue, entry.number)
                yield ENTRIES, key, None
                yield PAYLOADS, key, None
                if entry.is_large:
                    yield LARGE, large_name(queue, entry.tag), None
            case PutEnds(queue, new):
                ends[queue] = new
            case PutTotals():
                totals = change
    for queue, last in ends.items():
        yield QUEUES, queue, _ENDS.pack(last.tail, last.count, last.size) if last.count else None
    if totals is not None:
        yield META, _TOTALS_KEY, _TOTALS.pack(totals.payloads, totals.size)


def _totals(read: Read) -> tuple[int, int]:
    row = read.get(META, _TOTALS_KEY)
    if row is None:
        return 0, 0
    payloads, size = _TOTALS.unpack(row)
    return payloads, size


def _key(queue: bytes, number: int) -> bytes:
    return queue + number.to_bytes(8, "big")
