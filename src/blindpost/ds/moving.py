"""Queues from a file into a store, all or nothing, and from a store into a file."""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.ds.bincode import ImportFileError, Queue, read_queues, write_queues
from blindpost.ds.model import TAG_SIZE, Ends, Entry, delivery_queue
from blindpost.ds.tables import DsStore
from blindpost.ds.view import AddEntry, Change, PutEnds, PutTotals

Progress = Callable[[int, int], None]
"""How many of how many payloads are done."""

CHUNK_BYTES = 4 << 20
CHUNK_PAYLOADS = 2000


def quietly(done: int, total: int) -> None:
    """Show nothing."""


async def import_file(
    path: Path, store: DsStore, progress: Progress = quietly, entropy: Entropy = system_entropy
) -> tuple[int, int, int]:
    """Returns the version of the file, and how many queues and payloads came from it.

    Everything is one transaction: after a crash the store has all of it or nothing. The file is only read.
    The store must be empty, so that a repeated import cannot double anything.
    """
    if store.totals()[0]:
        raise ImportFileError("the store holds payloads already; import into a new service only")
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ImportFileError("the file is empty")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    version, queues = read_queues(memoryview(mapped))
    total = sum(len(queue.payloads) for queue in queues)
    size = sum(len(payload) for queue in queues for payload in queue.payloads)
    changes = functools.partial(_changes, queues, PutTotals(total, size), progress, entropy)
    await store.fill(changes, size)
    return version, len(queues), total


def _changes(
    queues: Sequence[Queue], totals: PutTotals, progress: Progress, entropy: Entropy
) -> Iterator[list[Change]]:
    """All changes of a file, in chunks; large payloads are not staged, since nobody waits."""
    chunk: list[Change] = []
    done = size = 0
    for queue in queues:
        name, ends = delivery_queue(queue.recipient_key, queue.channel_id), Ends()
        for payload in queue.payloads:
            entry = Entry(ends.tail, entropy(TAG_SIZE), len(payload), bytes(payload))
            chunk.append(AddEntry(name, entry))
            ends = Ends(ends.tail + 1, ends.count + 1, ends.size + entry.size)
            done, size = done + 1, size + entry.size
            progress(done, totals.payloads)
            if size >= CHUNK_BYTES or len(chunk) >= CHUNK_PAYLOADS:
                yield chunk
                chunk, size = [], 0
        chunk.append(PutEnds(name, ends))
    yield [*chunk, totals]


async def export_file(path: Path, store: DsStore, progress: Progress = quietly) -> tuple[int, int]:
    """Write all delivery queues as V2; how many queues and payloads. The file appears whole or not at all.

    The store must not be written to meanwhile. Key packages have no place in the format.
    """
    queues = [queue async for queue in store.queues()]
    total = sum(count for _, _, count in queues)
    done = 0

    async def payloads(key: bytes, channel_id: bytes) -> AsyncIterator[bytes]:
        nonlocal done
        async for payload in store.payloads(delivery_queue(key, channel_id)):
            yield payload
            done += 1
            progress(done, total)

    fresh = path.with_name(f".{path.name}.new")
    try:
        with fresh.open("xb") as file:
            fresh.chmod(0o600)
            written = await write_queues(file, queues, payloads)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return len(queues), written
