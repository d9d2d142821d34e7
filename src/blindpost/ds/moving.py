"""Queues from a file into a store, all or nothing, and from a store into a file."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.ds.bincode import ImportFileError, Queue, read_queues, write_queues
from blindpost.ds.model import TAG_SIZE, Ends, Entry, delivery_queue
from blindpost.ds.tables import LmdbTables, change_rows
from blindpost.ds.view import AddEntry, Change, PutEnds, PutTotals
from blindpost.store.lmdb import Write

Progress = Callable[[int, int], None]
"""How many of how many payloads are done."""


def quietly(done: int, total: int) -> None:
    """Show nothing."""


def import_file(
    path: Path, store: LmdbTables, progress: Progress = quietly, entropy: Entropy = system_entropy
) -> tuple[int, int, int]:
    """Version of the file, how many queues and how many payloads came from it.

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

    def work(write: Write) -> None:
        done = size = 0
        for queue in queues:
            for entry_size in _put_queue(write, queue, entropy):
                size += entry_size
                done += 1
                progress(done, total)
        _apply(write, PutTotals(total, size))

    store.store.write(work)
    return version, len(queues), total


def _put_queue(write: Write, queue: Queue, entropy: Entropy) -> list[int]:
    name, ends, sizes = delivery_queue(queue.recipient_key, queue.channel_id), Ends(), []
    for payload in queue.payloads:
        entry = Entry(ends.tail, entropy(TAG_SIZE), len(payload), bytes(payload))
        _apply(write, AddEntry(name, entry))
        ends = Ends(ends.tail + 1, ends.count + 1, ends.size + entry.size)
        sizes.append(entry.size)
    _apply(write, PutEnds(name, ends))
    return sizes


def _apply(write: Write, change: Change) -> None:
    write.apply(list(change_rows([change])))


def export_file(path: Path, store: LmdbTables) -> tuple[int, int]:
    """Write all delivery queues as V2; how many queues and payloads. The file appears whole or not at all.

    Nobody may write to the store meanwhile. Key packages have no place in the format.
    """
    queues = list(store.queues())
    fresh = path.with_name(f".{path.name}.new")
    try:
        with fresh.open("xb") as file:
            fresh.chmod(0o600)
            payloads = write_queues(
                file, queues, lambda key, channel: store.payloads(delivery_queue(key, channel))
            )
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return len(queues), payloads
