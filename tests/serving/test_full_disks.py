"""What else may be on a full disk besides a router's store: SQLite, a delivery service's store, a journal."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from blindpost.ds.client import RefusedError
from blindpost.ds.model import LARGE_BYTES
from blindpost.engine.loop import StoreFailedError
from blindpost.journal.author import Author
from blindpost.journal.folder import SEGMENTS
from blindpost.journal.frames import RecordWriter, read_segment
from blindpost.journal.lab import LabJournal
from blindpost.journal.schema import L_DELIVERY
from blindpost.store.sqlite import AGENT, SqliteStore
from tests.support.ds.delivery import running
from tests.support.serving.disks import fill, small_disk

SMALL, PLENTY = 2 << 20, 32 << 20
BOB = b"B" * 32


def test_sqlite_refuses_what_does_not_fit_keeps_the_rest_and_continues(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, SMALL) as resize:
        store = SqliteStore.open(disk / "a.db", ("CREATE TABLE kept (number INTEGER, body BLOB)",), AGENT)

        def put(number: int) -> bool:
            try:
                with store.transaction() as sql:
                    sql.execute("INSERT INTO kept VALUES (?, ?)", (number, os.urandom(50_000)))
            except StoreFailedError:
                return False
            return True

        taken = [number for number in range(100) if put(number)]
        assert 3 < len(taken) < 50
        resize(PLENTY)
        assert put(100)
        store.close()
        store = SqliteStore.open(disk / "a.db", ("CREATE TABLE kept (number INTEGER, body BLOB)",), AGENT)
        found = [number for (number,) in store.reading.execute("SELECT number FROM kept")]
        store.close()
        assert found == [*taken, 100]


async def test_a_delivery_service_refuses_what_does_not_fit_small_or_large(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, 4 * LARGE_BYTES) as resize:
        async with running(disk) as ds, await ds.client() as client:
            kept: list[bytes] = []
            for size in (LARGE_BYTES + 1, 10_000):
                refused = False
                for number in range(1000):
                    payload = b"%d %d " % (size, number) + bytes(size)
                    try:
                        await client.enqueue(BOB, payload)
                    except RefusedError as error:
                        refused = "not stored" in str(error)
                        break
                    kept.append(payload)
                assert refused, "the disk is full"
            resize(PLENTY)
            await client.enqueue(BOB, b"there is room again")
            found: list[bytes] = []
            while taken := await client.fetch(BOB):
                found += taken
            assert found == [*kept, b"there is room again"]


def test_a_journal_leaves_whole_records_and_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk, author = tmp_path / "disk", Author.started("router", "ds")
    with small_disk(disk, SMALL) as resize:
        writer = RecordWriter(disk, author)
        lab = LabJournal(disk, L_DELIVERY, author)
        taken = []
        for number in range(100):
            try:
                writer.add({"number": number, "noise": os.urandom(50_000).hex()})
            except OSError:
                break
            taken.append(number)
        assert 3 < len(taken) < 50
        fill(disk)
        with caplog.at_level(logging.ERROR):
            for number in range(20_000):
                lab.add(number, 1, 2, 0, 3, 4)
            lab.flush()
        told = [record.getMessage() for record in caplog.records]
        assert told == ["events of canaries and load tests are lost: No space left on device"]
        assert str(disk) not in caplog.text
        resize(PLENTY)
        writer.add({"number": 100})
        writer.close()
        bodies = []
        for path in sorted((disk / SEGMENTS).iterdir()):
            segment = read_segment(path.read_bytes())
            bodies += [bytes(body) for body in segment.bodies if b"number" in bytes(body)]
        assert len(bodies) == len(taken) + 1
