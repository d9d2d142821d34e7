"""The kernel's sums equal those of Spark alone, for any file, whatever its dictionaries contain."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from blindpost.journal.schema import P_COUNTERS, S_QUEUES
from blindpost.pipeline.sums import COUNTER_HOURS, GAUGE_HOURS, QUEUE_SETS, Sums, combined, of_files, summed
from tests.support.pipeline.lakes import Row, arrow_rows, in_order, plain, seal_rows, silver_frame
from tests.support.pipeline.native import native

pytestmark = pytest.mark.timeout(600)
FAR_S = 3_600 * 20_000


def _queues(rng: random.Random) -> list[Row]:
    services = [b"\xff\xfe", b"\xff\xfd", b"", None]
    return [
        dict.fromkeys(S_QUEUES.by_name)
        | {"snapshot": rng.choice("ab"), "router": "smp-01", "side": "router", "at_s": 2_000_000_000}
        | {"role": rng.choice(("messaging", "notifier")), "queue_id": number.to_bytes(24)}
        | {"service_id": rng.choice(services)}
        | {"h_hi": rng.getrandbits(64) - 2**63, "h_lo": rng.getrandbits(64) - 2**63}
        for number in range(500)
    ]


def _counters(rng: random.Random, most: int) -> list[Row]:
    """Some far apart in time, so that their groups do not fit into a small table."""
    return [
        {"router": f"smp-{seq % 3}", "role": "smp", "boot": "0" * 16, "seq": seq}
        | {
            "minute_s": 2_000_000_000 + 60 * seq + FAR_S * (seq % 50 == 0),
            "name": rng.choice(("x", "y", "ü")),
        }
        | {"value": rng.randint(-most, most)}
        for seq in range(500)
    ]


def _gauges(rng: random.Random, back: int) -> list[Row]:
    """Two boots in one minute, and a clock that goes back: a later record of an earlier minute."""
    return [
        {"router": f"smp-{seq % 2}", "role": "smp", "boot": rng.choice(("0" * 16, "1" * 16)), "seq": seq}
        | {"minute_s": 2_000_000_040 + 60 * (seq // 4 - back * (seq > 300)), "name": rng.choice(("x", "y"))}
        | {"value": float(rng.randint(0, 1_000))}
        for seq in range(500)
    ]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sums", [QUEUE_SETS, COUNTER_HOURS, GAUGE_HOURS], ids=lambda one: one.name)
def test_the_kernel_equals_sparks_own_plan(
    spark: SparkSession, tmp_path: Path, sums: Sums, seed: int
) -> None:
    rng = random.Random(seed)
    most = 2**61 // 500 if seed else 100  # more than a double holds exactly
    rows = {
        QUEUE_SETS: lambda: _queues(rng),
        COUNTER_HOURS: lambda: _counters(rng, most),
        GAUGE_HOURS: lambda: _gauges(rng, 60 * seed),
    }[sums]()
    files = [
        seal_rows(tmp_path / f"{place}.parquet", sums.table, rows[place::3]).as_posix() for place in range(3)
    ]
    wanted = native(sums, silver_frame(spark, sums.table.name, rows))
    found = combined(sums, summed(spark, sums, files))
    assert plain(found.select(*wanted.columns).collect()) == plain(wanted.collect())
    elsewhere = summed(spark, sums, ["file://" + file if place else file for place, file in enumerate(files)])
    assert plain(combined(sums, elsewhere).collect()) == plain(found.collect())


def test_content_loaded_by_spark_is_read_like_a_file(spark: SparkSession, tmp_path: Path) -> None:
    rows = _counters(random.Random(3), 10)
    file = seal_rows(tmp_path / "one.parquet", P_COUNTERS, rows)
    by_path = list(of_files(COUNTER_HOURS, [str(file)]))
    assert by_path == list(of_files(COUNTER_HOURS, [file.read_bytes()]))
    parts = spark.createDataFrame(pa.Table.from_batches(by_path))
    assert sum(row["count"] for row in combined(COUNTER_HOURS, parts).collect()) == len(rows)


@pytest.mark.parametrize(("widest", "short"), [(7, 5), (7, 2**31), (2**62, 5)])
def test_groups_are_found_however_many_numbers_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, widest: int, short: int
) -> None:
    """As with dictionaries so large that a number for each combination would not fit."""
    for table, rows, sums in (
        (P_COUNTERS, _counters(random.Random(4), 10), COUNTER_HOURS),
        (S_QUEUES, _queues(random.Random(4)), QUEUE_SETS),
    ):
        file = str(seal_rows(tmp_path / f"{table.name}-{widest}.parquet", table, rows))
        wanted = pa.Table.from_batches(of_files(sums, [file])).to_pylist()
        with monkeypatch.context() as patched:
            patched.setattr("blindpost.pipeline.sums._WIDEST", widest)
            patched.setattr("blindpost.pipeline.sums._SHORT", short)
            found = pa.Table.from_batches(of_files(sums, [file])).to_pylist()
        assert in_order(found) == in_order(wanted)


def test_a_file_without_rows_has_no_sums(tmp_path: Path) -> None:
    file = seal_rows(tmp_path / "none.parquet", P_COUNTERS, [])
    assert arrow_rows(P_COUNTERS, []).num_rows == 0
    assert list(of_files(COUNTER_HOURS, [str(file)])) == []
