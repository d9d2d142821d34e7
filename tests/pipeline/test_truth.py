"""One server's trouble affects no other: impossible data is set aside, good data stays, all is reported."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, LongType, StringType

from blindpost.journal.schema import P_COUNTERS, P_DAY, TABLES
from blindpost.pipeline.dataset import Dataset, Input, datasets
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.examine import Reason, examine
from blindpost.pipeline.files import LocalFiles
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.publish import TableStore
from blindpost.pipeline.runner import CONFLICTS, run
from blindpost.pipeline.types import columns
from tests.support.pipeline.lakes import LASTING, Row, plain, seal_rows

pytestmark = pytest.mark.timeout(300)
NOW_S = datetime(2026, 3, 2, 12, tzinfo=UTC).timestamp()
DAY_S = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp())
STATISTICS, BACKLOG = (datasets()[name] for name in ("daily_statistics", "router_backlog"))
SENT = Dataset(
    name="sent",
    title="A small table: most of what is tested here is the same for all.",
    schema=columns(("day", DateType(), ""), ("router", StringType(), ""), ("msgSent", LongType(), "")),
    key=("router",),
    inputs=(Input("p_counters"), Input("p_day")),
    compute=lambda p_counters, p_day: (
        p_counters.select("day", "router", "value")
        .unionByName(p_day.select("day", "router", F.col("value").cast("long").alias("value")))
        .groupBy("day", "router")
        .agg(F.sum("value").alias("msgSent"))
    ),
    rules=(),
    where="",
    size="",
    why_spark="",
)
MINUTES = 30


def _writer(router: str, seq: int, minute_s: int, boot: str = "00" * 8) -> Row:
    return {"router": router, "role": "smp", "boot": boot, "seq": seq, "minute_s": minute_s}


def _minutes(router: str, boot: str = "00" * 8, first_s: int = DAY_S, value: int = 1) -> dict[str, list[Row]]:
    """Half an hour of a router that takes a message a minute."""
    at = [(seq, first_s + 60 * seq) for seq in range(MINUTES)]
    return {
        "p_counters": [
            {**_writer(router, seq, minute_s, boot), "name": "msgSent", "value": value}
            for seq, minute_s in at
        ],
        "p_gauges": [
            {**_writer(router, seq, minute_s, boot), "name": "messages", "value": float(seq + value)}
            for seq, minute_s in at
        ],
    }


def _sealed(folder: Path, router: str, rows: dict[str, list[Row]], name: str = "") -> list[Path]:
    return [
        seal_rows(folder / "P" / table / "date=2026-03-01" / f"{router}{name}.parquet", TABLES[table], found)
        for table, found in rows.items()
    ]


def _lake(spark: SparkSession, folder: Path, clock: Callable[[], float] = lambda: NOW_S) -> Lake:
    return Lake(spark, str(folder / "journal"), str(folder / "lake"), settings=LASTING, clock=clock)


def _sent(lake: Lake) -> dict[str, int]:
    return {row["router"]: row["msgSent"] for row in plain(lake.gold(SENT).collect())}


def _bad(**changed: object) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [*rows[:-1], {**rows[-1], **changed}]


BAD_VALUES = {
    "NaN": ("p_gauges", _bad(value=math.nan)),
    "infinite": ("p_gauges", _bad(value=math.inf)),
    "negative": ("p_gauges", _bad(value=-1.0)),
    "overflowing": ("p_counters", _bad(value=2**63 - 1)),
    "half a minute": ("p_gauges", _bad(minute_s=DAY_S + 30)),
    "a negative number": ("p_counters", _bad(seq=-1)),
}


@pytest.mark.parametrize("what", BAD_VALUES)
def test_an_impossible_value_is_reported_with_its_column(what: str, tmp_path: Path) -> None:
    table, spoil = BAD_VALUES[what]
    file = seal_rows(tmp_path / "x.parquet", TABLES[table], spoil(_minutes("smp-1")[table]))
    found = examine(file.read_bytes(), NOW_S)
    assert found.reason == Reason.IMPOSSIBLE.value
    assert "column" in found.detail


SPOILED: dict[str, Callable[[Row], Row]] = {
    "p_sketches": lambda row: {**row, "sketch": row["sketch"][:-1]},
    "p_day_sketches": lambda row: {**row, "sketch": b"\x0a" * 50},
    "p_histograms": lambda row: {**row, "counts": row["counts"][:-1]},
    "p_day": lambda row: {**row, "minutes": 1_441},
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_broken_sketch_histogram_or_day_is_reported(name: str, tmp_path: Path) -> None:
    from datasketches import hll_sketch, tgt_hll_type

    sketch = hll_sketch(12, tgt_hll_type.HLL_8)
    for number in range(50):
        sketch.update(number)
    content = {
        "name": "queues",
        "day_s": DAY_S,
        "sketch": bytes(sketch.serialize_compact()),
        "bounds": [0.1, 1.0],
        "counts": [1, 2, 3],
        "total": 4.0,
        "maximum": 2.0,
        "kind": "counter",
        "value": 3.0,
        "minutes": 1_440,
        "last_minute_s": DAY_S,
    }
    columns = [column.name for column in TABLES[name].columns]
    row = {key: value for key, value in {**_writer("smp-1", 0, DAY_S), **content}.items() if key in columns}
    good = seal_rows(tmp_path / "good.parquet", TABLES[name], [row])
    assert examine(good.read_bytes(), NOW_S).reason == ""
    bad = seal_rows(tmp_path / "bad.parquet", TABLES[name], [row, SPOILED[name](row)])
    assert examine(bad.read_bytes(), NOW_S).reason == Reason.IMPOSSIBLE.value


def test_bad_values_and_a_clock_in_2061_affect_only_their_router(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    for number, (table, spoil) in enumerate(BAD_VALUES.values()):
        rows = _minutes(f"bad-{number}")
        _sealed(journal, f"bad-{number}", {table: spoil(rows[table])})
    in_2061 = _minutes("ahead", first_s=int(datetime(2061, 1, 1, tzinfo=UTC).timestamp()))
    _sealed(journal, "ahead", in_2061)
    _sealed(journal, "good", _minutes("good"))
    lake = _lake(spark, tmp_path)
    summary = run(lake, [SENT])
    assert _sent(lake) == {"good": MINUTES}
    reasons = {Path(entry.path).stem: entry.reason for entry in summary.set_aside}
    assert reasons == {f"bad-{number}": "impossible value" for number in range(len(BAD_VALUES))} | {
        "ahead": "from the future"
    }
    assert summary.failed == {}
    assert run(lake, [SENT]).computed == {}


def test_a_file_from_the_future_is_read_when_its_day_has_come(spark: SparkSession, tmp_path: Path) -> None:
    _sealed(tmp_path / "journal", "smp-1", _minutes("smp-1"))
    clock = [NOW_S - 2 * 86_400]
    lake = _lake(spark, tmp_path, lambda: clock[0])
    assert {entry.reason for entry in run(lake, [SENT]).set_aside} == {"from the future"}
    assert _sent(lake) == {}
    clock[0] = NOW_S
    assert run(lake, [SENT]).set_aside == []
    assert _sent(lake) == {"smp-1": MINUTES}


def test_a_failing_table_does_not_stop_the_others(spark: SparkSession, tmp_path: Path) -> None:
    def fail(**_: object) -> object:
        raise ValueError("one router is strange\nand more")

    broken = Dataset(
        **{
            **{name: getattr(SENT, name) for name in Dataset.__slots__},
            "name": "broken",
            "compute": fail,
        }
    )
    _sealed(tmp_path / "journal", "smp-1", _minutes("smp-1"))
    lake = _lake(spark, tmp_path)
    summary = run(lake, [broken, SENT])
    assert summary.failed == {"broken": "one router is strange"}
    assert _sent(lake) == {"smp-1": MINUTES}


def test_an_unwritable_log_and_an_unerasable_day_stop_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sealed(tmp_path / "journal", "smp-1", _minutes("smp-1"))
    lake = _lake(spark, tmp_path)
    store = lake.silver_store(TABLES["p_counters"])
    log = Path(str(store.delta_root), "_delta_log")
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_bytes(b"{torn")
    erase = TableStore.erase

    def not_the_levels(self: TableStore, first_day: str) -> list[str]:
        if self.name == "p_gauges":
            raise PermissionError(13, "Permission denied")
        return erase(self, first_day)

    monkeypatch.setattr(TableStore, "erase", not_the_levels)
    summary = run(lake, [SENT])
    assert _sent(lake) == {"smp-1": MINUTES}
    assert (summary.failed, sorted(summary.unfinished)) == ({}, ["p_counters", "p_gauges"])
    assert "Delta log" in summary.unfinished["p_counters"]
    assert "erased" in summary.unfinished["p_gauges"]
    shutil.rmtree(log)  # as the message says
    monkeypatch.undo()
    assert run(lake, [SENT]).unfinished == {}
    assert (log / f"{0:020}.json").exists()


def test_a_run_that_can_compute_nothing_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    def fail(**_: object) -> object:
        raise ValueError("one router is strange")

    broken = Dataset(**{**{name: getattr(SENT, name) for name in Dataset.__slots__}, "compute": fail})
    _sealed(tmp_path / "journal", "smp-1", _minutes("smp-1"))
    with pytest.raises(PipelineError, match="sent: one router is strange"):
        run(_lake(spark, tmp_path), [broken])


def test_an_unreadable_file_affects_no_other_and_is_retried(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal"
    counters, _ = _sealed(journal, "smp-1", _minutes("smp-1"))
    _sealed(journal, "smp-2", _minutes("smp-2"))
    os.mkfifo(counters.with_name("pipe.parquet"))
    counters.with_name("loop.parquet").symlink_to("loop.parquet")
    read = LocalFiles.read

    def all_but_one(self: LocalFiles, path: str) -> bytes | None:
        if path == str(counters):
            raise OSError(5, "Input/output error")
        return read(self, path)

    lake = _lake(spark, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "read", all_but_one)
        (aside,) = run(lake, [SENT]).set_aside
    assert (Path(aside.path).name, aside.reason) == ("smp-1.parquet", "unreadable")
    assert _sent(lake) == {"smp-2": MINUTES}
    assert run(lake, [SENT]).set_aside == []
    assert _sent(lake) == {"smp-1": MINUTES, "smp-2": MINUTES}


def test_a_missing_folder_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no such folder"):
        run(_lake(spark, tmp_path), [SENT])


def test_a_folder_that_cannot_be_listed_does_not_stop_the_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a journal without any file is told: its disk may not be mounted."""
    journal, scan = tmp_path / "journal", os.scandir
    _sealed(journal / "oak", "smp-1", _minutes("smp-1"))
    _sealed(journal / "elm", "smp-2", _minutes("smp-2"))

    def all_but_one(path: str) -> object:
        if path == str(journal / "oak"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    lake = _lake(spark, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("blindpost.pipeline.files.os.scandir", all_but_one)
        summary = run(lake, [SENT])
    assert list(summary.unfinished) == [str(journal / "oak")]
    assert "(Permission denied)" in summary.unfinished[str(journal / "oak")]
    assert (summary.there, _sent(lake)) == (True, {"smp-2": MINUTES})
    assert run(lake, [SENT]).unfinished == {}
    assert _sent(lake) == {"smp-1": MINUTES, "smp-2": MINUTES}
    shutil.rmtree(journal)
    journal.mkdir()
    assert not run(lake, [SENT]).there
    assert _sent(lake) == {"smp-1": MINUTES, "smp-2": MINUTES}


def test_a_good_file_that_was_overwritten_stays_until_a_better_one_comes(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    counters, _ = _sealed(journal, "smp-1", _minutes("smp-1"))
    _sealed(journal, "smp-2", _minutes("smp-2"))
    lake = _lake(spark, tmp_path)
    run(lake, [SENT])
    good = counters.read_bytes()
    counters.write_bytes(good[:-50])
    summary = run(lake, [SENT])
    assert [entry.reason for entry in summary.set_aside] == ["truncated"]
    assert _sent(lake) == {"smp-1": MINUTES, "smp-2": MINUTES}
    counters.unlink()
    _sealed(journal, "smp-3", _minutes("smp-3"))  # the day is computed again without the file
    run(lake, [SENT])
    assert _sent(lake) == {"smp-1": MINUTES, "smp-2": MINUTES, "smp-3": MINUTES}
    seal_rows(counters, P_COUNTERS, _minutes("smp-1", value=2)["p_counters"])
    run(lake, [SENT])
    assert _sent(lake)["smp-1"] == 2 * MINUTES


def test_records_that_contradict_each_other_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    for name, value in (("a", 1), ("b", 2)):
        _sealed(tmp_path / "journal", name, {"p_counters": _minutes("smp-1", value=value)["p_counters"]})
    _sealed(tmp_path / "journal", "c", {"p_gauges": _minutes("smp-1")["p_gauges"]})
    lake = _lake(spark, tmp_path)
    run(lake, [SENT])
    assert _sent(lake) == {"smp-1": MINUTES}
    assert run(lake, [SENT]).broken["p_counters", "2026-03-01", CONFLICTS] == MINUTES


def _day(value: float, minutes: int = 1_440) -> Row:
    row = {**_writer("smp-1", 0, DAY_S), "day_s": DAY_S, "kind": "counter", "name": "msgSent"}
    row |= {"value": value, "minutes": minutes, "last_minute_s": DAY_S + 60 * 1_439}
    return {name: row[name] for name in P_DAY.by_name}


@pytest.mark.parametrize("gone", [False, True], ids=["both there", "the first has gone"])
@pytest.mark.parametrize("values", [(5.0, 9.0), (9.0, 5.0)])
def test_a_corrected_day_wins(
    spark: SparkSession, tmp_path: Path, values: tuple[float, float], gone: bool
) -> None:
    folder = tmp_path / "journal" / "P" / "p_day" / "date=2026-03-01"
    files = [
        seal_rows(folder / f"{name}.parquet", P_DAY, [_day(value)])
        for name, value in zip("ba", values, strict=True)
    ]
    for number, file in enumerate(files):
        os.utime(file, (NOW_S + number, NOW_S + number))
    lake = _lake(spark, tmp_path)
    if gone:
        files[1].rename(tmp_path / "late")
        run(lake, [SENT])
        files[0].unlink()
        (tmp_path / "late").rename(files[1])
    summary = run(lake, [SENT])
    assert _sent(lake) == {"smp-1": values[1]}
    assert summary.broken["p_day", "2026-03-01", CONFLICTS] == 1


@pytest.mark.parametrize("stage", ["examining", "silver"])
def test_a_vanished_file_is_left_out_and_the_run_continues(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    journal = tmp_path / "journal"
    parts = [_sealed(journal, "smp-1", _minutes("smp-1"), part) for part in ("-old", "-new")]
    lake = _lake(spark, tmp_path)

    def vanish() -> None:
        for file in parts[0]:
            file.unlink(missing_ok=True)

    if stage == "examining":
        folders = LocalFiles.folders

        def and_compacted(self: LocalFiles, root: str) -> object:
            found = list(folders(self, root))
            if root == lake.journal:
                vanish()
            return iter(found)

        monkeypatch.setattr(LocalFiles, "folders", and_compacted)
        run(lake, [SENT])
    else:
        run(lake, [SENT], observer=lambda step: vanish() if step.stage == "silver" else None)
    assert _sent(lake) == {"smp-1": MINUTES}


@pytest.fixture(scope="module")
def restarted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """smp-1 restarts within a minute, the later boot with the smaller name; under smp-2 two servers run."""
    folder = tmp_path_factory.mktemp("restarted")
    first, second, at = "ff" * 8, "00" * 8, DAY_S + 60 * (MINUTES - 1)
    after = {name: rows[:1] for name, rows in _minutes("smp-1", second, at, value=100).items()}
    boots = [
        {**_writer("smp-1", 0, DAY_S, first), "started_s": DAY_S + 5, "program": "x"},
        {**_writer("smp-1", 0, at, second), "started_s": at + 40, "program": "x"},
    ]
    _sealed(folder / "journal", "one", {**_minutes("smp-1", first), "p_boots": boots})
    _sealed(folder / "journal", "two", after)
    for boot in ("aa" * 8, "bb" * 8):
        _sealed(folder / "journal", boot, _minutes("smp-2", boot))
    assert run(_lake(spark, folder), [STATISTICS, BACKLOG]).failed == {}
    return folder


def test_a_restart_within_a_minute_is_one_minute_and_the_later_level_counts(
    spark: SparkSession, restarted: Path
) -> None:
    lake = _lake(spark, restarted)
    row, _ = plain(lake.gold(STATISTICS).orderBy("router").collect())
    assert (row["minutes"], row["boots"], row["msgCount"]) == (MINUTES, 2, 100)
    assert [row["backlog"] for row in plain(lake.gold(BACKLOG).where("router = 'smp-1'").collect())] == [100]


def test_two_servers_with_one_name_break_a_rule(spark: SparkSession, restarted: Path) -> None:
    lake = _lake(spark, restarted)
    (row,) = plain(lake.gold(STATISTICS).where("router = 'smp-2'").collect())
    assert (row["minutes"], row["minutes_twice"]) == (MINUTES, MINUTES)
    summary = run(lake, [STATISTICS])
    assert summary.computed == {}
    assert summary.broken["daily_statistics", "2026-03-01", "one server of a name"] == 1


@pytest.mark.parametrize(
    ("at_s", "broken"), [(80_000, False), (86_400 + 60, False), (86_400 + 3_600, True), (2 * 86_400, True)]
)
def test_an_unfinished_day_is_not_broken(
    spark: SparkSession, restarted: Path, at_s: int, broken: bool
) -> None:
    summary = run(_lake(spark, restarted, lambda: DAY_S + at_s), [STATISTICS])
    assert (("daily_statistics", "2026-03-01", "whole day") in summary.broken) is broken


@pytest.mark.parametrize("name", ["a#b%20c d", "a[1]{1,2}b*c"])
def test_folders_of_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    _sealed(folder / "journal", "smp-1", _minutes("smp-1"))
    lake = _lake(spark, folder)
    assert run(lake, [SENT]).failed == {}
    assert _sent(lake) == {"smp-1": MINUTES}
    assert run(lake, [SENT]).computed == {}
