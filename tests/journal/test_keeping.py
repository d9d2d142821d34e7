"""A journal in a running server: aligned to minutes, sealed regularly, never in the server's way."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from blindpost.journal import keeping as module
from blindpost.journal import seal
from blindpost.journal.folder import SEGMENTS
from blindpost.journal.frames import CLOSED, OPEN, read_segment
from blindpost.journal.keeping import JournalKeeper, Keeping
from blindpost.journal.minutes import Reading, Sketch
from blindpost.journal.schema import L_DELIVERY
from blindpost.journal.seal import seal_folder
from blindpost.testing.clock import run_virtual
from tests.support.serving.processes import until

START = 20_000 * 86_400 + 37.5


class Server:
    """Counts one message a second, in virtual time."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, seal_minutes: int = 10) -> None:
        self.root = root
        self.asked: list[tuple[int, bool]] = []
        self.sealed: list[float] = []
        self.fails = False
        self.error = Exception()

        async def noted(_: JournalKeeper) -> None:
            self.sealed.append(self.now())

        monkeypatch.setattr(JournalKeeper, "_seal", noted)
        self.keeper = JournalKeeper(Keeping(root, "one", seal_minutes), "smp", self.read, self.now)

    def now(self) -> float:
        return START + asyncio.get_running_loop().time()

    async def read(self, minute_s: int, with_sketches: bool) -> Reading:
        self.asked.append((minute_s, with_sketches))
        if self.fails:
            raise self.error
        sketches = [Sketch("queues", 0, b"s")] if with_sketches else []
        seconds = int(asyncio.get_running_loop().time())
        return Reading({"msgSent": 100 + seconds}, {"queues": 1}, sketches=sketches)

    def records(self) -> list[dict[str, Any]]:
        paths = sorted((self.root / SEGMENTS).glob("records*"))
        bodies = [body for path in paths for body in read_segment(path.read_bytes()).bodies]
        return [json.loads(bytes(body)) for body in bodies]


def files(root: Path) -> int:
    return len(list(root.glob("P/p_gauges/date=*/*.parquet")))


def run(server: Server, seconds: float, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
    async def main() -> None:
        running = asyncio.create_task(server.keeper.run())
        if meanwhile is not None:
            await meanwhile()
        await asyncio.sleep(seconds - asyncio.get_running_loop().time())
        running.cancel()
        await server.keeper.close()

    run_virtual(main())


def test_a_record_covers_the_minute_just_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tmp_path, monkeypatch)
    run(server, 150.0)
    day = int(START) // 86_400 * 86_400
    first, *others = server.records()
    assert first["minute_s"] == day
    assert first["rows"].keys() == {"p_boots", "p_gauges"}
    assert first["rows"]["p_boots"][0][0] == int(START)
    # At 12:01:00, 12:02:00 and 12:03:00, and the last one when it ended.
    assert [record["minute_s"] - day for record in others] == [0, 60, 120, 180]
    assert [record["rows"]["p_counters"] for record in others] == [
        [["msgSent", grown]] for grown in (22, 60, 60, 8)
    ]
    assert [with_sketches for _, with_sketches in server.asked] == [False, False, False, False, True]


def test_sketches_are_written_once_an_hour_and_segments_closed_for_sealing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path, monkeypatch, seal_minutes=20)
    run(server, 2 * 3_600.0)
    day = int(START) // 86_400 * 86_400
    with_sketches = [minute - day for minute, wanted in server.asked if wanted]
    assert with_sketches == [3_540, 7_140, 7_200]
    begun = START - day
    assert [round(when - START + begun) for when in server.sealed] == [
        38,
        1_200,
        2_400,
        3_600,
        4_800,
        6_000,
        7_200,
    ]
    assert len(list((tmp_path / SEGMENTS).glob("*.seg"))) == 8
    assert sum(row[1] for record in server.records() for row in record["rows"].get("p_counters", [])) == 7_200


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionError("the database of a user is away"), "ConnectionError"),
        (ValueError("device token 5ecre7"), "ValueError"),
        (OSError(28, "No space left on device", "a file"), "No space left on device"),
    ],
)
def test_a_write_error_is_logged_once_without_its_text_and_retried_later(
    error: Exception,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(tmp_path / "journal", monkeypatch)
    server.error = error

    async def away_for_a_while() -> None:
        await asyncio.sleep(30)
        server.fails = True
        await asyncio.sleep(180)
        server.fails = False

    with caplog.at_level(logging.ERROR):
        run(server, 400.0, away_for_a_while)
    assert [record.message for record in caplog.records] == [f"the journal cannot be written: {told}"]
    found = server.records()
    assert sum(row[1] for record in found for row in record["rows"].get("p_counters", [])) == 400


def test_a_missing_folder_does_not_stop_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "journal"
    server = Server(root, monkeypatch, seal_minutes=1)

    async def replaced_by_a_file() -> None:
        await asyncio.sleep(30)
        shutil.rmtree(root)
        root.write_bytes(b"")

    run(server, 200.0, replaced_by_a_file)
    assert caplog.text.count("the journal cannot be written") == 1
    assert len(server.asked) == 5


def test_events_are_handed_over_each_minute_and_sealed_with_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path, monkeypatch, seal_minutes=2)
    lab = server.keeper.lab(L_DELIVERY)

    def there(suffix: str) -> list[int]:
        paths = sorted((tmp_path / SEGMENTS).glob(f"l_delivery*{suffix}"))
        return [number for path in paths for number in read_segment(path.read_bytes()).numbers]

    async def events() -> None:
        await asyncio.sleep(1)
        for number in range(3):
            lab.add(number, 1, 2, 0, 3, 4)
        assert there(OPEN) == []
        await asyncio.sleep(30)  # a minute of the clock ended
        assert there(OPEN) == [0, 1, 2]
        await asyncio.sleep(60)
        assert there(CLOSED) == [0, 1, 2]
        lab.add(3, 1, 2, 0, 3, 4)

    run(server, 100.0, events)
    assert there(CLOSED) == [0, 1, 2, 3]


def test_events_that_cannot_be_written_are_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "journal"
    root.write_bytes(b"")
    lab = Server(root, monkeypatch).keeper.lab(L_DELIVERY)
    for _ in range(2):
        lab.add(1, 1, 2, 0, 3, 4)
        lab.flush()
    lab.add(2, 1, 2, 0, 3, 4)
    assert lab.cut() is None
    assert caplog.text.count("events of canaries and load tests are lost") == 1
    root.unlink()
    lab.add(3, 1, 2, 0, 3, 4)
    lab.flush()
    (path,) = (root / SEGMENTS).glob("l_delivery*")
    assert list(read_segment(path.read_bytes()).numbers) == [0]


async def test_the_sealing_process_is_started_and_does_not_outlive_its_server(tmp_path: Path) -> None:
    async def read(_minute_s: int, _with_sketches: bool) -> Reading:
        return Reading({"msgSent": 5}, {"queues": 1})

    keeper = JournalKeeper(Keeping(tmp_path, "one"), "smp", read)
    running = asyncio.create_task(keeper.run())

    async def sealed() -> bool:
        return files(tmp_path) > 0

    await until(sealed)
    await keeper.seal_soon()
    running.cancel()
    await keeper.close()
    assert seal_folder(tmp_path) is not None, "nobody holds the folder any more"
    assert not list((tmp_path / SEGMENTS).glob("*.seg"))


async def test_a_failing_sealing_process_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SEALER", "blindpost.journal.no_such_module")

    async def read(_minute_s: int, _with_sketches: bool) -> Reading:
        return Reading({}, {})

    keeper = JournalKeeper(Keeping(tmp_path, "one"), "smp", read)
    await keeper.seal_soon()

    async def told() -> bool:
        return "no_such_module" in caplog.text

    await until(told)
    await keeper._try_sealing()
    await keeper.close()
    assert caplog.text.count("sealing the journal") == 1, "the same thing is told once"
    monkeypatch.setattr(module, "SEALER", "blindpost.journal")  # a package that cannot be run
    await keeper._try_sealing()
    assert caplog.text.count("sealing the journal") == 2
    monkeypatch.setattr(f"{module.__name__}.sys.executable", "/bin/false")
    await keeper._try_sealing()
    assert "sealing the journal: it ended with 1" in caplog.text


@pytest.mark.parametrize(
    ("changed", "value", "told"),
    [
        ("sys.executable", "/nonexistent/python", "cannot be sealed: No such file"),
        ("SEAL_S_MAX", 0.0, "took longer than 0 s"),
    ],
)
async def test_a_sealing_process_that_cannot_start_or_end_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    changed: str,
    value: object,
    told: str,
) -> None:
    monkeypatch.setattr(f"{module.__name__}.{changed}", value)

    async def read(_minute_s: int, _with_sketches: bool) -> Reading:
        return Reading({}, {})

    keeper = JournalKeeper(Keeping(tmp_path, "one"), "smp", read)
    await keeper.seal_soon()

    async def is_told() -> bool:
        return told in caplog.text

    await until(is_told)
    await keeper.close()
    assert "never retrieved" not in caplog.text


async def test_a_sealing_failure_is_logged_without_its_error_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("device token 5ecre7")

    monkeypatch.setattr(seal, "seal_folder", fail)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    assert seal.main([str(tmp_path)]) == 1
    assert capfd.readouterr().err == f"{tmp_path}: ValueError\n"
