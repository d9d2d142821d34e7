"""Runs from files to published tables: late, repeated, compacted and bad files, and killed drivers."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from blindpost.journal.schema import METADATA_TABLE, METADATA_VERSION, TABLES
from blindpost.pipeline.dataset import Dataset, datasets
from blindpost.pipeline.follow import follow
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.runner import Days, run
from tests.support.pipeline import journals, oracles
from tests.support.pipeline import killed as killed_pipeline
from tests.support.pipeline.lakes import (
    LASTING,
    Journal,
    Row,
    arrow_rows,
    in_order,
    plain,
    seal_journal,
    seal_rows,
)

pytestmark = pytest.mark.timeout(900)
WANTED: list[Dataset] = [datasets()[name] for name in ("delivery_slo", "router_backlog")]
KILLED = [dataset for dataset in WANTED if dataset.name in killed_pipeline.TABLES]
ORACLES = {"delivery_slo": oracles.delivery_slo, "router_backlog": oracles.router_backlog}
POINTS = {
    "bronze": ("found", "checked", "published"),
    "silver": ("found", "computed", "checked", "published", "done"),
    "gold": ("found", "computed", "checked", "published", "done"),
}
KILLS = {"a few": [("run", "silver", "computed"), ("follow", "gold", "checked")]}
if os.environ.get("BLINDPOST_PIPELINE_LONG"):
    KILLS = {
        f"{how} {stage}": [(how, stage, point) for point in points]
        for how in ("run", "follow")
        for stage, points in POINTS.items()
    }


def _journal(seed: int) -> Journal:
    rng = random.Random(seed)
    found = {
        **journals.production(rng, routers=2, days=3),
        **journals.state(rng, routers=2, days=1, queues=8),
        **journals.messages(rng, count=120),
    }
    return journals.repeated(rng, {name: found[name] for name in _tables()})


def _tables() -> list[str]:
    return sorted({given.table for dataset in WANTED for given in dataset.inputs})


def _bad_files(folder: Path, good: Path, rows: list[Row]) -> dict[str, str]:
    table = TABLES["l_messages"]
    content = good.read_bytes()
    (folder / "bad").mkdir()
    (folder / "bad/empty.parquet").write_bytes(b"")
    (folder / "bad/cut.parquet").write_bytes(content[:-100])
    (folder / "bad/csv.parquet").write_bytes(b"a,b\n1,2\n")
    middle = len(content) // 3
    (folder / "bad/flip.parquet").write_bytes(content[:middle] + b"\xff\xff\xff\xff" + content[middle + 4 :])
    newer = arrow_rows(table, rows).replace_schema_metadata(
        {METADATA_TABLE: table.name, METADATA_VERSION: "99"}
    )
    pq.write_table(newer, folder / "bad/new.parquet")
    (folder / "bad/.half.parquet").write_bytes(content[:50])
    return {
        "empty": "empty",
        "cut": "truncated",
        "csv": "foreign",
        "flip": "corrupt",
        "new": "future version",
    }


def _gold(lake: Lake, dataset: Dataset) -> list[Row]:
    return plain(lake.gold(dataset).collect())


def _contents(lake: Lake) -> dict[str, dict[str, str]]:
    """What is published, by table and day, without its sources."""
    stores = [lake.gold_store(dataset) for dataset in WANTED]
    return {
        store.name: {day: partition.content for day, partition in store.current().partitions.items()}
        for store in stores
    }


def _by_glob(lake: Lake, dataset: Dataset) -> int:
    """Rows that a reader without the manifest sees; it must be able to read each of them."""
    if not list(Path(lake.out, "gold", dataset.name).glob("*.parquet")):
        return 0
    rows = duckdb.read_parquet(f"{lake.out}/gold/{dataset.name}/*.parquet")
    return len(rows.fetchall())


def test_late_repeated_compacted_and_bad_files(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(11)
    journal = _journal(11)
    folder, late = tmp_path / "journal", tmp_path / "late"
    early = {name: rows[: len(rows) // 2] for name, rows in journal.items()}
    seal_journal(folder, early, rng)
    seal_journal(late, {name: rows[len(rows) // 3 :] for name, rows in journal.items()}, rng)
    good = next((folder / "L" / "l_messages").iterdir())
    bad = _bad_files(folder, good, journal["l_messages"])

    lake = Lake(spark, str(folder), str(tmp_path / "lake"), settings=LASTING)
    first = run(lake, WANTED)
    assert {Path(entry.path).stem: entry.reason for entry in first.set_aside} == bad
    shutil.copytree(late, folder, dirs_exist_ok=True)
    for name in ("l_messages", "p_gauges"):  # compacted: the rows of one file are in another, which has gone
        files = sorted((folder / TABLES[name].tier.value / name).iterdir())
        rows = [row for file in files[:2] for row in pq.read_table(file, partitioning=None).to_pylist()]
        seal_rows(files[0].with_name("compacted.parquet"), TABLES[name], rows)
        for file in files[:2]:
            file.unlink()
    days = sorted(lake.silver_store(TABLES["l_messages"]).current().partitions)
    run(lake, WANTED, Days(date.fromisoformat(days[0]), date.fromisoformat(days[0])))
    run(lake, WANTED, Days(date.fromisoformat(days[1])))
    again = run(lake, WANTED)
    for dataset in WANTED:
        wanted = ORACLES[dataset.name](journal)
        assert _gold(lake, dataset) == in_order(wanted)
        assert _by_glob(lake, dataset) == len(wanted)
        assert again.computed.get(dataset.name, []) == []
    assert len(again.set_aside) == len(bad)

    followed = Lake(spark, str(folder), str(tmp_path / "followed"), settings=LASTING)
    assert len(follow(followed, WANTED)) == 1
    assert _contents(followed) == _contents(lake)
    assert follow(followed, WANTED) == []
    assert [one.computed for one in follow(followed, WANTED, again=True)] == [{}]


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The result if nothing is killed."""
    folder = tmp_path_factory.mktemp("killed")
    seal_journal(folder / "journal", _journal(12), random.Random(12))
    lake = Lake(spark, str(folder / "journal"), str(folder / "whole"), settings=LASTING)
    run(lake, KILLED)
    return lake


@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
def test_killed_drivers_leave_nothing_torn(
    spark: SparkSession, whole: Lake, tmp_path: Path, kills: list[tuple[str, str, str]]
) -> None:
    """Each continues where the previous one was killed."""
    lake = Lake(spark, whole.journal, str(tmp_path / "lake"), settings=LASTING)
    program = [sys.executable, "-m", "tests.support.pipeline.killed", lake.journal, lake.out]
    rows_of = {dataset.name: _gold(whole, dataset) for dataset in KILLED}
    for how, stage, point in kills:
        done = subprocess.run([*program, stage, point, how], check=False, stderr=subprocess.DEVNULL)
        assert done.returncode == -signal.SIGKILL, (how, stage, point)
        for dataset in KILLED:
            rows = {day: part.rows for day, part in lake.gold_store(dataset).current().partitions.items()}
            assert len(_gold(lake, dataset)) == sum(rows.values())
            assert _by_glob(lake, dataset) in {0, sum(rows.values()), len(rows_of[dataset.name])}
    follow(lake, KILLED)
    assert _contents(lake) == _contents(whole)
    for dataset in KILLED:
        assert _gold(lake, dataset) == rows_of[dataset.name]
        assert _by_glob(lake, dataset) == len(rows_of[dataset.name])
