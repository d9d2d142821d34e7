"""The ledger reads only what changed, and recovers from whatever happened to it."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blindpost.journal.schema import P_COUNTERS
from blindpost.pipeline.bench.ledger import measure
from blindpost.pipeline.bronze import take_stock
from blindpost.pipeline.files import LocalFiles
from blindpost.pipeline.ledger import INDEX, Entry, Ledger
from tests.support.pipeline.lakes import Row, seal_rows

NO_SPARK = cast("Any", None)
"""So few files are examined without Spark."""
DAYS = ("2031-05-01", "2031-05-02")
FIRST_S = 1_935_360_000
NOW_S = FIRST_S + 10 * 86_400


class Counting(Ledger):
    """Tells which folders' parts were read."""

    read: list[str]

    def entries(self, folder: str) -> dict[str, Entry]:
        self.read.append(folder)
        return super().entries(folder)


def _rows(day: int, seq: int) -> list[Row]:
    return [
        {"router": "smp-1", "role": "smp", "boot": "0" * 16, "seq": seq, "name": "x", "value": 1}
        | {"minute_s": FIRST_S + 86_400 * day}
    ]


def _seal(journal: Path, day: int, seq: int) -> Path:
    return seal_rows(journal / f"P/p_counters/date={DAYS[day]}/{seq}.parquet", P_COUNTERS, _rows(day, seq))


@pytest.fixture
def ledger(tmp_path: Path) -> Counting:
    found = Counting(LocalFiles(), str(tmp_path / "lake"))
    found.read = []
    for day in range(2):
        _seal(tmp_path / "journal", day, 0)
    take_stock(NO_SPARK, LocalFiles(), str(tmp_path / "journal"), found, NOW_S)
    found.read.clear()
    return found


def _take(ledger: Counting, tmp_path: Path) -> list[str]:
    """The days whose parts were read."""
    ledger.read.clear()
    take_stock(NO_SPARK, LocalFiles(), str(tmp_path / "journal"), ledger, NOW_S)
    return [folder.rpartition("=")[2] for folder in ledger.read]


def test_unchanged_files_are_not_read(ledger: Counting, tmp_path: Path) -> None:
    assert _take(ledger, tmp_path) == []
    before = ledger.contents("p_counters")
    _seal(tmp_path / "journal", 1, 1)
    assert _take(ledger, tmp_path) == [DAYS[1]]
    after = ledger.contents("p_counters")
    assert (before[DAYS[0]], set(after)) == (after[DAYS[0]], set(DAYS))
    assert before[DAYS[1]] != after[DAYS[1]]
    ledger.read.clear()
    assert len(ledger.read_by("p_counters", [DAYS[1]])[DAYS[1]]) == 2
    assert [folder.rpartition("=")[2] for folder in ledger.read] == [DAYS[1]]


def test_a_file_overwritten_in_place_is_examined_again(ledger: Counting, tmp_path: Path) -> None:
    file = _seal(tmp_path / "journal", 0, 0)
    file.write_bytes(file.read_bytes()[:-7])
    assert _take(ledger, tmp_path) == [DAYS[0]]
    assert [entry.reason for entry in ledger.set_aside()] == ["truncated"]
    assert _take(ledger, tmp_path) == []


def test_deleted_files_keep_their_rows(ledger: Counting, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "journal" / "P/p_counters" / f"date={DAYS[0]}")
    assert _take(ledger, tmp_path) == [DAYS[0]]
    assert [entry.gone for entry in ledger.all().values()] == [True, False]
    assert _take(ledger, tmp_path) == []


def test_a_run_killed_before_the_index_is_caught_up_with(
    ledger: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plainly = LocalFiles.replace

    def killed(self: LocalFiles, path: str, content: bytes) -> None:
        if path.endswith(INDEX):
            raise KeyboardInterrupt
        plainly(self, path, content)

    _seal(tmp_path / "journal", 1, 1)
    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            _take(ledger, tmp_path)
    assert _take(ledger, tmp_path) == [DAYS[1]]
    assert sum(folder.files for folder in ledger.folders().values()) == 3


def test_a_single_file_ledger_is_migrated(ledger: Counting, tmp_path: Path) -> None:
    known = ledger.all()
    rows = [asdict(entry) for entry in known.values()]
    for row in rows:
        del row["spans"]
    old = Counting(LocalFiles(), str(tmp_path / "old"))
    old.read = []
    (tmp_path / "old" / "bronze").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "old" / "bronze" / "files.parquet")
    (tmp_path / "journal" / next(iter(known))).unlink()
    _take(old, tmp_path)
    assert old.all().keys() == known.keys()
    assert [entry.gone for entry in old.all().values()] == [True, False]
    assert list((tmp_path / "old" / "bronze").iterdir()) == [tmp_path / "old" / "bronze" / "ledger"]


def test_hidden_files_and_folders_are_ignored(ledger: Counting, tmp_path: Path) -> None:
    for name in ("P/.hidden/x.parquet", "_half/x.parquet", f"P/p_counters/date={DAYS[0]}/.x.parquet"):
        (tmp_path / "journal" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "journal" / name).write_bytes(b"?")
    assert _take(ledger, tmp_path) == []


def test_the_cost_of_taking_stock_is_measured() -> None:
    found = measure(files=3_000, new=2)
    assert (found.files, found.new) == (3_000, 2)
    assert found.known_s > 0
