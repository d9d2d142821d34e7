"""What was written is sealed once and completely, compacted without loss, summed up and removed in time."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from blindpost.engine.histogram import Histogram
from blindpost.journal.author import Author
from blindpost.journal.folder import (
    DAY_S,
    SEGMENTS,
    date_of,
    locked,
    partition,
    partitions,
    published,
    remove_partition,
    sealed,
)
from blindpost.journal.frames import CLOSED, OPEN, EventWriter, RecordWriter
from blindpost.journal.minutes import Agreement, MinuteJournal, Reading, Sketch
from blindpost.journal.schema import (
    ALL_TABLES,
    L_MESSAGES,
    METADATA_TABLE,
    METADATA_VERSION,
    P_COUNTERS,
    P_DAY,
    P_DAY_SKETCHES,
    P_GAUGES,
    P_HISTOGRAMS,
    P_SERVICES,
    P_SKETCHES,
    S_MIGRATION,
    S_QUEUES,
    S_SNAPSHOT,
    Table,
)
from blindpost.journal.seal import LOCK, Rules, forget_exports, seal_folder
from tests.support.journal.sealed import rows

DAY = 20_000 * DAY_S
YEAR_S = 365 * DAY_S
AUTHOR = Author("smp-1", "smp", "00112233aabbccdd")


def once(found: Sequence[dict[str, Any]], table: Table) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows by their key; two with the same key must be the same row."""
    by_key: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in found:
        key = tuple(row[name] for name in table.key)
        assert by_key.setdefault(key, row) == row
    return by_key


def files(root: Path, table: Table, day_s: int = DAY) -> list[Path]:
    return sealed(partition(root, table, day_s))


def write_minutes(root: Path, first_s: int, minutes: int, author: Author = AUTHOR) -> Counter[str]:
    """Write this many minutes of a server, closed every ten; return its final counters."""
    counters: Counter[str] = Counter({"msgSent": 500})
    wait_s = Histogram((1.0, 5.0))
    journal = MinuteJournal(root, author, Reading(dict(counters), {"queues": 7}), first_s)
    for number in range(minutes):
        counters["msgSent"] += number
        counters["qSub"] += number % 2
        wait_s.observe(number % 7)
        sketch = [Sketch("queues", (first_s + 60 * number) // DAY_S * DAY_S, bytes([number % 256]) * 8)]
        reading = Reading(
            dict(counters),
            {"queues": number, "messages": 2 * number},
            {"wait_s": wait_s},
            [Agreement(number, "messaging", bool(number % 3), 1)] if number % 4 == 0 else [],
            sketch if number % 30 == 29 else [],
        )
        journal.record(reading, first_s + 60 * number)
        if number % 10 == 9:
            journal.close()
    journal.close()
    counters["msgSent"] -= 500
    return counters


def sums(root: Path, table: Table = P_COUNTERS) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in once(rows(root, table), table).values():
        found[row["name"]] += row["value"]
    return found


def test_totals_equal_the_counters_in_any_number_of_files(tmp_path: Path) -> None:
    counters = write_minutes(tmp_path, DAY + 600, 95)
    report = seal_folder(tmp_path, now=DAY + 700)
    assert report is not None
    assert report.segments == 10
    assert sums(tmp_path) == counters
    assert len(files(tmp_path, P_COUNTERS)) == 10
    levels = once(rows(tmp_path, P_GAUGES), P_GAUGES)
    assert len(levels) == 1 + 2 * 95
    buckets: Counter[int] = Counter()
    for row in once(rows(tmp_path, P_HISTOGRAMS), P_HISTOGRAMS).values():
        assert row["bounds"] == [1.0, 5.0]
        buckets.update(dict(enumerate(row["counts"])))
    assert buckets == Counter(0 if n % 7 <= 1 else 1 if n % 7 <= 5 else 2 for n in range(95))
    assert [row["agreed"] for row in rows(tmp_path, P_SERVICES)] == [bool(n % 3) for n in range(0, 95, 4)]
    assert list((tmp_path / SEGMENTS).glob("*.seg")) == []


def test_sealed_files_say_what_they_are(tmp_path: Path) -> None:
    write_minutes(tmp_path, DAY, 3)
    seal_folder(tmp_path, now=DAY)
    for table in (P_COUNTERS, P_GAUGES):
        (path,) = files(tmp_path, table)
        metadata = pq.read_metadata(path).metadata
        assert metadata[METADATA_TABLE].decode() == table.name
        assert metadata[METADATA_VERSION] == b"1"
        assert path.parent.name == f"date={date_of(DAY)}"
        assert path.stat().st_mode & 0o077 == 0


def test_a_finished_hour_becomes_one_file_with_the_same_rows(tmp_path: Path) -> None:
    counters = write_minutes(tmp_path, DAY, 95)
    seal_folder(tmp_path, now=DAY + 60)
    small = once(rows(tmp_path, P_COUNTERS), P_COUNTERS)
    report = seal_folder(tmp_path, now=DAY + 3_600)
    assert report is not None
    assert report.compacted > 0
    # One of the hour that is over, and those of the one that is not.
    assert len(files(tmp_path, P_COUNTERS)) == 1 + 4
    assert once(rows(tmp_path, P_COUNTERS), P_COUNTERS) == small
    assert len(rows(tmp_path, P_COUNTERS)) == len(small)
    seal_folder(tmp_path, now=DAY + 2 * 3_600)
    assert len(files(tmp_path, P_COUNTERS)) == 2
    seal_folder(tmp_path, now=DAY + DAY_S + 3_600)
    assert len(files(tmp_path, P_COUNTERS)) == 1
    assert len(rows(tmp_path, P_COUNTERS)) == len(small)
    assert sums(tmp_path) == counters
    found = duckdb.read_parquet(f"{tmp_path}/P/p_counters/*/*.parquet").filter("name = 'msgSent'")
    assert found.sum("value").fetchall() == [(counters["msgSent"],)]


def test_late_files_are_added_to_their_day(tmp_path: Path) -> None:
    counters = write_minutes(tmp_path, DAY, 30)
    late = sorted((tmp_path / SEGMENTS).glob(f"*{CLOSED}"))[1]
    kept = late.read_bytes()
    late.unlink()
    seal_folder(tmp_path, now=DAY + DAY_S + 3_600)
    before = sums(tmp_path)
    assert before["msgSent"] < counters["msgSent"]
    late.write_bytes(kept)
    seal_folder(tmp_path, now=DAY + DAY_S + 7_200)
    assert sums(tmp_path) == counters
    assert len(files(tmp_path, P_COUNTERS)) == 1
    days = {(row["kind"], row["name"]): row["value"] for row in rows(tmp_path, P_DAY)}
    assert days["counter", "msgSent"] == counters["msgSent"]


def test_a_day_is_summed_up_for_each_boot_with_its_last_levels(tmp_path: Path) -> None:
    other = Author("smp-1", "smp", "ffeeddccbbaa9988")
    counters = write_minutes(tmp_path, DAY, 60)
    again = write_minutes(tmp_path, DAY + 7_200, 90, other)
    seal_folder(tmp_path, now=DAY + DAY_S + 3_599)
    assert rows(tmp_path, P_DAY) == []
    report = seal_folder(tmp_path, now=DAY + DAY_S + 3_600)
    assert report is not None
    assert report.days == 1
    found = once(rows(tmp_path, P_DAY), P_DAY)
    for boot, counted, minutes in ((AUTHOR.boot, counters, 60), (other.boot, again, 90)):
        for name, count in counted.items():
            assert found["smp-1", boot, DAY, "counter", name]["value"] == count
        level = found["smp-1", boot, DAY, "gauge", "queues"]
        assert (level["value"], level["minutes"]) == (minutes - 1, minutes)
        start = DAY if boot == AUTHOR.boot else DAY + 7_200
        assert level["last_minute_s"] == start + 60 * (minutes - 1)
    sketches = {row["boot"]: row["sketch"] for row in rows(tmp_path, P_DAY_SKETCHES)}
    assert sketches == {AUTHOR.boot: bytes([59]) * 8, other.boot: bytes([89]) * 8}
    again_at_once = seal_folder(tmp_path, now=DAY + DAY_S + 3_700)
    assert again_at_once is not None
    assert again_at_once.days == 0


def lived(root: Path, day_s: int) -> None:
    """As if the server had run on that day too."""
    partition(root, P_DAY, day_s).mkdir(parents=True, exist_ok=True)


def test_minutes_across_midnight_are_in_two_days(tmp_path: Path) -> None:
    counters = write_minutes(tmp_path, DAY - 300, 10)
    seal_folder(tmp_path, now=DAY + 600)
    by_day: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for day in (DAY - DAY_S, DAY):
        for path in files(tmp_path, P_COUNTERS, day):
            for row in pq.ParquetFile(path).read().to_pylist():
                assert row["minute_s"] // DAY_S * DAY_S == day
                by_day[day][row["name"]] += row["value"]
    assert by_day[DAY - DAY_S]["msgSent"] == sum(range(5))
    assert by_day[DAY - DAY_S] + by_day[DAY] == counters


def test_old_files_are_removed_and_days_stay(tmp_path: Path) -> None:
    write_minutes(tmp_path, DAY, 20)
    writer = EventWriter(tmp_path, L_MESSAGES, Author("canary", "canary", AUTHOR.boot))
    here, there = writer.word("from_router", "a"), writer.word("to_router", "b")
    writer.add(DAY * 1_000_000, here, there, 5, 6, writer.code("event", "acked"), 0, 100)
    writer.close()
    seal_folder(tmp_path, now=DAY + DAY_S + 3_600)
    (event,) = rows(tmp_path, L_MESSAGES)
    assert (event["event"], event["from_router"], event["integrity"]) == ("acked", "a", "")
    lived(tmp_path, DAY + 6 * DAY_S)
    seal_folder(tmp_path, now=DAY + 8 * DAY_S - 1)
    assert len(rows(tmp_path, L_MESSAGES)) == 1
    seal_folder(tmp_path, now=DAY + 8 * DAY_S)
    assert rows(tmp_path, L_MESSAGES) == []
    assert rows(tmp_path, P_COUNTERS)
    days = rows(tmp_path, P_DAY)
    lived(tmp_path, DAY + 28 * DAY_S)
    report = seal_folder(tmp_path, now=DAY + 31 * DAY_S - 1)
    assert report is not None
    assert rows(tmp_path, P_COUNTERS)
    seal_folder(tmp_path, now=DAY + 31 * DAY_S)
    for table in (P_COUNTERS, P_GAUGES, P_HISTOGRAMS, P_SERVICES, P_SKETCHES):
        assert rows(tmp_path, table) == []
    assert rows(tmp_path, P_DAY) == days != []
    seal_folder(tmp_path, Rules(1, 1, sure=True), now=DAY + 400 * DAY_S)
    assert rows(tmp_path, P_DAY) == days


def test_days_that_nobody_sealed_in_time_leave_their_sums(tmp_path: Path) -> None:
    """A server that comes back after months."""
    write_minutes(tmp_path, DAY, 2)
    report = seal_folder(tmp_path, now=DAY + 90 * DAY_S)
    assert report is not None
    assert report.days == 1
    lived(tmp_path, DAY + 90 * DAY_S)
    seal_folder(tmp_path, now=DAY + 92 * DAY_S)
    assert rows(tmp_path, P_COUNTERS) == []
    in_time = tmp_path / "in time"
    write_minutes(in_time, DAY, 2)
    seal_folder(in_time, now=DAY + 2 * DAY_S)
    assert rows(tmp_path, P_DAY) == rows(in_time, P_DAY) != []


def test_what_is_left_of_old_minutes_does_not_replace_their_sums(tmp_path: Path) -> None:
    """It was interrupted while it deleted."""
    write_minutes(tmp_path, DAY, 2)
    seal_folder(tmp_path, now=DAY + 2 * DAY_S)
    days = rows(tmp_path, P_DAY)
    remove_partition(partition(tmp_path, P_COUNTERS, DAY))
    assert rows(tmp_path, P_GAUGES)
    seal_folder(tmp_path, now=DAY + 90 * DAY_S)
    assert rows(tmp_path, P_DAY) == days != []


@pytest.mark.parametrize("wrong_s", [-YEAR_S, YEAR_S, DAY_S * 30])
@pytest.mark.parametrize("for_s", [60, DAY_S])
def test_a_clock_that_leaps_deletes_nothing(tmp_path: Path, wrong_s: int, for_s: int) -> None:
    """The server goes on recording by it, across a midnight too, until somebody sets it."""
    write_minutes(tmp_path, DAY, 2)
    for number in range(3):
        lived(tmp_path, DAY - number * DAY_S)
    before = seal_folder(tmp_path, Rules(minute_days=3), now=DAY + 600)
    assert before is not None
    held = rows(tmp_path, P_COUNTERS)
    leapt = DAY + wrong_s + DAY_S - 60
    for now in (leapt, leapt + for_s):
        write_minutes(tmp_path, now, 1, Author("smp-1", "smp", f"{now:016x}"))
        report = seal_folder(tmp_path, Rules(minute_days=3), now=now)
        assert report is not None
        assert (report.deleted, report.spared > 0) == (0, wrong_s > 0)
    assert [row for row in rows(tmp_path, P_COUNTERS) if row["boot"] == AUTHOR.boot] == held != []
    after = seal_folder(tmp_path, Rules(minute_days=3), now=DAY + 3 * DAY_S)
    assert after is not None
    assert after.spared == 0


@pytest.mark.parametrize(("ago", "known"), [(1, False), (2, True), (9, True), (10, False), (-2, False)])
def test_a_clock_is_believed_when_something_was_recorded_in_the_days_before(
    tmp_path: Path, ago: int, known: bool
) -> None:
    partition(tmp_path, S_QUEUES, DAY - 20 * DAY_S).mkdir(parents=True)
    lived(tmp_path, DAY - ago * DAY_S)
    report = seal_folder(tmp_path, now=DAY + 60)
    assert report is not None
    assert (report.deleted, report.spared) == ((1, 0) if known else (0, 1))


def test_old_exports_are_deleted_where_nobody_seals_and_certificates_stay(tmp_path: Path) -> None:
    tables = (S_QUEUES, S_SNAPSHOT, S_MIGRATION, P_COUNTERS)
    for table in tables:
        for days in (7, 8):
            partition(tmp_path, table, DAY - days * DAY_S).mkdir(parents=True)
    with locked(tmp_path / SEGMENTS / LOCK) as held:
        assert held
        assert forget_exports(tmp_path, 7, now=DAY + 5) == 0, "who seals it deletes them"
    assert forget_exports(tmp_path, 7, now=DAY + 5) == 2
    left = {table.name: len(partitions(tmp_path, table)) for table in tables}
    assert left == {"s_queues": 1, "s_snapshot": 1, "s_migration": 2, "p_counters": 2}


def test_nothing_is_deleted_without_a_rule(tmp_path: Path) -> None:
    write_minutes(tmp_path, DAY, 2)
    seal_folder(tmp_path, Rules(None, None), now=DAY + 400 * DAY_S)
    assert rows(tmp_path, P_COUNTERS)
    assert rows(tmp_path, P_DAY)


def test_an_operator_may_shorten_retention(tmp_path: Path) -> None:
    write_minutes(tmp_path, DAY, 2)
    lived(tmp_path, DAY + DAY_S)
    seal_folder(tmp_path, Rules(minute_days=3), now=DAY + 4 * DAY_S - 1)
    assert rows(tmp_path, P_COUNTERS)
    seal_folder(tmp_path, Rules(minute_days=3), now=DAY + 4 * DAY_S)
    assert rows(tmp_path, P_COUNTERS) == []


def test_segments_of_a_killed_process_are_sealed_and_live_ones_left_alone(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from blindpost.journal.author import Author\n"
        "from blindpost.journal.frames import RecordWriter\n"
        "writer = RecordWriter(Path(sys.argv[1]), Author('killed', 'smp', '0' * 16))\n"
        f"writer.add({{'minute_s': {DAY}, 'rows': {{'p_counters': [['msgSent', 5]]}}}})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    living = RecordWriter(tmp_path, AUTHOR)
    living.add({"minute_s": DAY, "rows": {"p_counters": [["msgSent", 7]]}})
    (left,) = (tmp_path / SEGMENTS).glob(f"records-killed*{OPEN}")
    with left.open("ab") as file:
        file.write(b"\1\2\3")
    report = seal_folder(tmp_path, now=DAY)
    assert report is not None
    assert (report.segments, report.torn_bytes) == (1, 3)
    assert [(row["router"], row["value"]) for row in rows(tmp_path, P_COUNTERS)] == [("killed", 5)]
    living.close()
    seal_folder(tmp_path, now=DAY)
    assert sums(tmp_path)["msgSent"] == 12


def test_unreadable_files_are_set_aside_and_the_rest_is_sealed(tmp_path: Path) -> None:
    counters = write_minutes(tmp_path, DAY, 5)
    (tmp_path / SEGMENTS / f"records-foreign{CLOSED}").write_bytes(b"no segment")
    foreign = partition(tmp_path, P_COUNTERS, DAY) / "foreign.parquet"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"no Parquet")
    report = seal_folder(tmp_path, now=DAY + 7_200)
    assert report is not None
    assert (report.unreadable, report.foreign) == (1, {foreign})
    assert (tmp_path / SEGMENTS / "records-foreign.bad").read_bytes() == b"no segment"
    assert foreign.read_bytes() == b"no Parquet"
    foreign.unlink()
    assert sums(tmp_path) == counters


def damage(path: Path, column: str = "value") -> bytes:
    """Flip a bit in the values of a column; what the file was before."""
    whole = path.read_bytes()
    group = pq.read_metadata(path).row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    (chunk,) = [chunk for chunk in chunks if chunk.path_in_schema == column]
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    spoiled = bytearray(whole)
    spoiled[start + chunk.total_compressed_size - 2] ^= 8
    path.write_bytes(spoiled)
    return whole


def test_a_damaged_file_is_left_alone_and_the_rest_is_merged_summed_and_removed(tmp_path: Path) -> None:
    """One bit of a sealed file flipped on the disk."""
    counters = write_minutes(tmp_path, DAY, 40)
    old = write_minutes(tmp_path, DAY - 40 * DAY_S, 2, Author("smp-1", "smp", "0" * 16))
    lived(tmp_path, DAY - DAY_S)
    seal_folder(tmp_path, now=DAY + 60)
    spoiled = files(tmp_path, P_COUNTERS)[1]
    whole = damage(spoiled)
    held = spoiled.read_bytes()
    lost = sum(range(10, 20))
    for _ in range(2):
        report = seal_folder(tmp_path, now=DAY + DAY_S + 3_600)
        assert report is not None
        assert report.foreign == {spoiled}
        assert len(files(tmp_path, P_COUNTERS)) == 2
        assert spoiled.read_bytes() == held
        days = {(row["kind"], row["name"], row["day_s"]): row["value"] for row in rows(tmp_path, P_DAY)}
        assert days["counter", "msgSent", DAY] == counters["msgSent"] - lost
        assert days["counter", "msgSent", DAY - 40 * DAY_S] == old["msgSent"]
        assert files(tmp_path, P_COUNTERS, DAY - 40 * DAY_S) == []
    spoiled.write_bytes(whole)
    report = seal_folder(tmp_path, now=DAY + DAY_S + 7_200)
    assert report is not None
    assert report.foreign == set()
    assert sums(tmp_path) == counters
    days = {(row["kind"], row["name"], row["day_s"]): row["value"] for row in rows(tmp_path, P_DAY)}
    assert days["counter", "msgSent", DAY] == counters["msgSent"]


def test_what_was_computed_of_a_day_is_not_replaced_by_what_a_damaged_file_leaves(tmp_path: Path) -> None:
    write_minutes(tmp_path, DAY, 40)
    seal_folder(tmp_path, now=DAY + DAY_S + 3_600)
    days = rows(tmp_path, P_DAY)
    damage(files(tmp_path, P_COUNTERS)[0])
    late = write_minutes(tmp_path, DAY + 7_200, 5, Author("smp-1", "smp", "f" * 16))
    report = seal_folder(tmp_path, now=DAY + DAY_S + 7_200)
    assert report is not None
    assert report.days == 1
    found = rows(tmp_path, P_DAY)
    assert [row for row in found if row["boot"] == AUTHOR.boot] == days
    (sent,) = [row["value"] for row in found if row["boot"] != AUTHOR.boot and row["name"] == "msgSent"]
    assert sent == late["msgSent"]
    again = seal_folder(tmp_path, now=DAY + DAY_S + 7_300)
    assert again is not None
    assert again.days == 0


def _old_days(root: Path) -> None:
    """Minutes and events that are past their retention on the day DAY, of a server that ran until then."""
    lived(root, DAY - 2 * DAY_S)
    write_minutes(root, DAY - 40 * DAY_S, 2)
    writer = EventWriter(root, L_MESSAGES, Author("canary", "canary", AUTHOR.boot))
    here, there = writer.word("from_router", "a"), writer.word("to_router", "b")
    writer.add((DAY - 40 * DAY_S) * 1_000_000, here, there, 5, 6, writer.code("event", "acked"), 0, 100)
    writer.close()
    seal_folder(root, Rules(None, None), now=DAY - 40 * DAY_S)


@pytest.mark.parametrize("failing", ["compact", "roll_up", "_seal_segment"])
def test_what_fails_does_not_stop_the_deletion_of_what_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """On a full disk nothing else makes room. Minutes that could not be summed up stay."""
    _old_days(tmp_path)
    write_minutes(tmp_path, DAY, 2)

    def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(f"blindpost.journal.seal.{failing}", fail)
        with pytest.raises(OSError, match="No space left"):
            seal_folder(tmp_path, now=DAY)
    assert rows(tmp_path, L_MESSAGES) == []
    assert (files(tmp_path, P_COUNTERS, DAY - 40 * DAY_S) == []) == (failing == "compact")
    seal_folder(tmp_path, now=DAY)
    assert files(tmp_path, P_COUNTERS, DAY - 40 * DAY_S) == []
    assert rows(tmp_path, P_DAY)


def test_a_file_that_another_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    """An export beside a router that seals; what a killed one left is removed."""
    folder = partition(tmp_path, S_QUEUES, DAY)
    with published(folder / "export.parquet") as fresh:
        (left := fresh.with_name(".other.parquet.1.new")).touch()
        fresh.write_bytes(b"rows")
        seal_folder(tmp_path, now=DAY)
        assert not left.exists()
    (path,) = folder.iterdir()
    assert (path.name, path.read_bytes()) == ("export.parquet", b"rows")
    assert path.stat().st_mode & 0o777 == 0o600


def test_only_one_process_seals(tmp_path: Path) -> None:
    write_minutes(tmp_path, DAY, 2)
    with locked(tmp_path / SEGMENTS / LOCK) as held:
        assert held
        assert seal_folder(tmp_path, now=DAY) is None
    assert seal_folder(tmp_path, now=DAY) is not None


KILLED = """
import itertools, os, shutil, signal, sys
from pathlib import Path
from blindpost.journal.seal import seal_folder
whole, killed, now = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
changes = {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}

def sealed_until(root, at):
    seen = itertools.count(1)
    def watch(event, arguments):
        if event in changes and next(seen) == at:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(watch)
    seal_folder(root, now=now)

shutil.copytree(whole, killed / "0")
seal_folder(killed / "0", now=now)  # what is loaded at the first use is loaded once
for at in itertools.count(1):
    root = killed / str(at)
    shutil.copytree(whole, root)
    child = os.fork()
    if not child:
        sealed_until(root, at)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


def test_killed_before_any_change_the_folder_is_readable_and_completed_later(tmp_path: Path) -> None:
    """Sealing, compaction, summing up and removal in one run, killed before each of its changes."""
    whole, killed, expected = (tmp_path / name for name in ("whole", "killed", "expected"))
    write_minutes(whole, DAY - 40 * DAY_S, 3, Author("smp-1", "smp", "0" * 16))
    seal_folder(whole, now=DAY - 40 * DAY_S)
    write_minutes(whole, DAY, 15)
    seal_folder(whole, now=DAY)
    lived(whole, DAY - 2 * DAY_S)
    write_minutes(whole, DAY + 3_600, 12, Author("smp-1", "smp", "f" * 16))
    now = DAY + DAY_S + 3_600
    shutil.copytree(whole, expected)
    seal_folder(expected, now=now)
    wanted = {table.name: once(rows(expected, table), table) for table in ALL_TABLES}
    assert wanted["p_day"]
    subprocess.run([sys.executable, "-c", KILLED, str(whole), str(killed), str(now)], check=True)
    roots = list(killed.iterdir())
    assert len(roots) > 30
    for root in roots:
        for table in ALL_TABLES:
            once(rows(root, table), table)
        seal_folder(root, now=now)
        for table in ALL_TABLES:
            found = rows(root, table)
            assert once(found, table) == wanted[table.name], f"{table.name} after kill {root.name}"
            assert len(found) == len(wanted[table.name])
        assert [path for path in root.rglob(".*") if path.name != ".lock"] == []


def test_the_program_seals_and_reports_problems(tmp_path: Path) -> None:
    counters = write_minutes(tmp_path, DAY, 5)
    (tmp_path / SEGMENTS / f"x{CLOSED}").write_bytes(b"?")
    command = [sys.executable, "-m", "blindpost.journal.seal", str(tmp_path), "--minute-days", "100000"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0
    assert "1 unreadable segments are kept as *.bad" in ended.stderr
    assert "Is the clock right?" not in ended.stderr
    ended = subprocess.run([*command[:-1], "7"], check=False, capture_output=True, text=True)
    assert "Days that are too old are kept" in ended.stderr
    assert "Is the clock right?" in ended.stderr
    assert sums(tmp_path) == counters
    (partition(tmp_path, P_COUNTERS, DAY) / "foreign.parquet").write_bytes(b"no Parquet")
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "left alone: P/p_counters/date=2024-10-04/foreign.parquet." in ended.stderr


def test_records_are_json_that_a_person_can_read(tmp_path: Path) -> None:
    """A record says each thing once; the columns that its rows share are in the header."""
    from blindpost.journal.frames import read_segment

    write_minutes(tmp_path, DAY, 1)
    (path,) = (tmp_path / SEGMENTS).glob(f"*{CLOSED}")
    first, second = (json.loads(bytes(body)) for body in read_segment(path.read_bytes()).bodies)
    assert first["rows"]["p_gauges"] == [["queues", 7.0]]
    assert "p_counters" not in second["rows"], "nothing grew"
