"""Silver: each record once, from whatever files, and the same rows in whatever order they arrive."""

from __future__ import annotations

import random
from datetime import date
from typing import Any

import pytest
from pyspark.sql import SparkSession

from blindpost.journal.schema import P_COUNTERS
from tests.support.pipeline.lakes import Row, silver_frame


def _counter(seq: int, name: str, value: int, minute_s: int = 1_780_000_020) -> Row:
    return {
        "router": "smp-01",
        "role": "smp",
        "boot": "00" * 8,
        "seq": seq,
        "minute_s": minute_s,
        "name": name,
        "value": value,
    }


def _silver(spark: SparkSession, rows: list[Row]) -> list[dict[str, Any]]:
    found = [row.asDict() for row in silver_frame(spark, P_COUNTERS.name, rows).collect()]
    return sorted(found, key=lambda row: (row["seq"], row["name"]))


def test_a_record_in_two_files_appears_once(spark: SparkSession) -> None:
    rows = [_counter(seq, name, seq) for seq in range(20) for name in ("qCreated", "msgSent")]
    expected = [{**row, "day": date(2026, 5, 28)} for row in rows]
    expected.sort(key=lambda row: (row["seq"], row["name"]))
    assert _silver(spark, rows + rows) == expected


@pytest.mark.parametrize("seed", range(3))
def test_of_two_records_with_one_key_the_smaller_stays(spark: SparkSession, seed: int) -> None:
    rows = [_counter(7, "qCreated", value) for value in (12, 3, 5, 40)]
    random.Random(seed).shuffle(rows)
    assert [row["value"] for row in _silver(spark, rows)] == [3]


def test_records_that_differ_in_any_part_of_the_key_all_stay(spark: SparkSession) -> None:
    one = _counter(7, "qCreated", 1)
    others = [{**one, "router": "smp-02"}, {**one, "boot": "11" * 8}, {**one, "seq": 8}, {**one, "name": "x"}]
    assert len(_silver(spark, [one, *others])) == 5


def test_a_row_belongs_to_the_utc_day_of_its_time(spark: SparkSession) -> None:
    midnight_s = 1_780_012_800
    rows = [_counter(0, "x", 1, midnight_s - 60), _counter(1, "x", 1, midnight_s)]
    assert [row["day"] for row in _silver(spark, rows)] == [date(2026, 5, 28), date(2026, 5, 29)]
