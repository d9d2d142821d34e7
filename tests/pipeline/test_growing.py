"""A day costs only what is new: files that share no record with others are added, the rest compared."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from blindpost.journal.schema import P_COUNTERS, P_DAY
from blindpost.pipeline import bronze
from blindpost.pipeline import lake as lakes
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.growing import FILES_MOST, different, growing, is_whole, made_of
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.ledger import Entry
from blindpost.pipeline.runner import run
from blindpost.pipeline.sums import COUNTER_HOURS, combined, partial_of
from tests.support.pipeline.lakes import LASTING, Row, plain, seal_rows

pytestmark = pytest.mark.timeout(300)
DAY, NEXT = "2026-03-01", "2026-03-02"
DAY_S = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp())
FLAPPING = datasets()["displacement_flapping"]
HOUR = 60


def _entry(name: str, first: int, last: int, days: tuple[str, ...] = (DAY,)) -> Entry:
    spans = (f"smp-1 00\t{first:020d}\t{last:020d}",)
    return Entry(name, 1, 1, name * 8, "p_counters", 1, 10, days, "", "", spans)


ONE, TWO, MEETING = _entry("a", 0, 9), _entry("b", 10, 19), _entry("c", 5, 12)
OVER = _entry("d", 20, 29, (DAY, NEXT))


def _aged(line: str, version: str) -> str:
    return line + version if line.startswith("version") else line


def _grown(found: list[Entry], before: list[Entry], files: int = 1, version: str = "") -> list[str]:
    known = {DAY: frozenset(_aged(line, version) for line in made_of(P_COUNTERS, before))} if before else {}
    return [entry.path for entry in growing(P_COUNTERS, {DAY: found}, known, {DAY: files}).get(DAY, [])]


def test_only_files_that_overlap_no_other_are_added() -> None:
    assert _grown([ONE, TWO], [ONE]) == ["b"]
    assert _grown([replace(ONE, gone=True), TWO], [ONE]) == ["b"]  # its rows are in silver
    assert _grown([ONE, TWO], []) == []
    assert _grown([ONE, MEETING], [ONE]) == []
    assert _grown([ONE, replace(TWO, gone=True)], [ONE]) == []
    assert _grown([ONE, replace(TWO, spans=())], [ONE]) == []
    assert _grown([TWO], [ONE]) == []  # what was read is no longer to be read
    assert _grown([replace(ONE, sha256="other"), TWO], [ONE]) == []
    assert _grown([ONE, TWO], [ONE], files=FILES_MOST) == []
    assert _grown([ONE, TWO], [ONE], version="0") == []
    assert made_of(P_DAY, [ONE]) == frozenset()


def test_a_file_under_two_names_counts_once() -> None:
    copied = replace(ONE, path="copy", modified_us=2)
    assert [entry.path for entry in different([copied, ONE, TWO])] == ["copy", "b"]
    assert [entry.path for entry in different([ONE, replace(copied, gone=True)])] == ["a"]


def test_a_day_is_whole_if_what_was_in_files_that_are_gone_is_in_others() -> None:
    one, two = replace(ONE, gone=True), replace(TWO, gone=True)
    merged = _entry("m", 0, 19)
    assert is_whole([ONE, TWO])
    assert is_whole([one, two, merged])
    assert is_whole([one, replace(ONE, path="copy")])
    assert not is_whole([one, TWO])
    assert not is_whole([two, _entry("m", 11, 30)])
    assert not is_whole([two, _entry("m", 0, 18)])
    assert not is_whole([one, replace(merged, spans=("smp-2 00\t0\t9",))])
    assert not is_whole([replace(one, spans=()), merged])
    assert not is_whole([one, replace(merged, spans=())])


def test_a_file_of_two_days_is_added_to_each_once() -> None:
    by_day = {DAY: [ONE, OVER], NEXT: [TWO, OVER]}
    both = {DAY: made_of(P_COUNTERS, [ONE]), NEXT: made_of(P_COUNTERS, [TWO])}
    counts = {DAY: 1, NEXT: 1}
    assert {day: len(new) for day, new in growing(P_COUNTERS, by_day, both, counts).items()} == counts
    later = {**by_day, NEXT: [TWO, OVER, _entry("e", 40, 49, (NEXT,))]}
    known = {**both, NEXT: made_of(P_COUNTERS, [TWO, OVER])}
    assert list(growing(P_COUNTERS, later, known, counts)) == [DAY]  # the next day has the file already


def _hour(hour: int, first: int = 0, value: int = 1) -> list[Row]:
    seqs = range(hour * HOUR + first, (hour + 1) * HOUR)
    head = {"router": "smp-1", "role": "smp", "boot": "00" * 8}
    return [
        {**head, "seq": seq, "minute_s": DAY_S + 60 * seq, "name": name, "value": value}
        for seq in seqs
        for name in ("rcvServices.subEnd", "msgSent")
    ]


def _seal(folder: Path, name: str, rows: list[Row]) -> None:
    seal_rows(folder / "P" / "p_counters" / f"date={DAY}" / f"{name}.parquet", P_COUNTERS, rows)


def _sums(lake: Lake) -> list[Row]:
    return plain(combined(COUNTER_HOURS, lake.summed(COUNTER_HOURS)).collect())


@pytest.mark.parametrize("few", [True, False], ids=["few rows", "many rows"])
def test_a_followed_day_equals_one_computed_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: bool
) -> None:
    if not few:
        monkeypatch.setattr(lakes, "SMALL_ROWS", 0)
        monkeypatch.setattr(bronze, "FEW_FILES", 0)
    journal = tmp_path / "journal"

    def opened(name: str) -> Lake:
        clock_s = DAY_S + 2 * 86_400
        return Lake(spark, str(journal), str(tmp_path / name), settings=LASTING, clock=lambda: clock_s)

    lake = opened("followed")
    store = lake.silver_store(P_COUNTERS)
    before: set[str] = set()
    for name, rows, adds in (
        ("first", _hour(0), False),
        ("second", _hour(1), True),
        ("late", _hour(23) + _hour(5), True),
        ("again", _hour(1, first=30) + _hour(2), False),  # half of an hour that is there
    ):
        _seal(journal, name, rows)
        run(lake, [FLAPPING])
        files = set(store.current().partitions[DAY].files)
        assert (bool(before) and before < files) is adds
        assert all(Path(partial_of(COUNTER_HOURS, path)).exists() for path in store.paths()) is (
            adds or not before
        )
        before = files
        at_once = opened(f"at once {name}")
        run(at_once, [FLAPPING])
        whole = at_once.silver_store(P_COUNTERS).current().partitions[DAY]
        kept = store.current().partitions[DAY]
        assert (kept.content, kept.rows, kept.broken) == (whole.content, whole.rows, whole.broken)
        assert _sums(lake) == _sums(at_once)
    assert run(lake, [FLAPPING]).computed == {}
