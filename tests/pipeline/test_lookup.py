"""The lookup table finds exactly what differs, or says that it is too small."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession

from blindpost.pipeline import lookup
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.lookup import Cell, Lanes, decode_cells, difference, encode_cells

pytestmark = pytest.mark.timeout(900)


def _cells(queues: set[Lanes], size: int = lookup.CELLS) -> list[Cell]:
    """What Spark computes, in plain Python."""
    table = [Cell() for _ in range(size)]
    for high, low in queues:
        high, low = high % 2**64, low % 2**64
        for number in range(lookup.HASHES):
            cell = table[lookup._place_of(high, low, number, size)]
            cell.count += 1
            cell.high ^= high
            cell.low ^= low
            cell.check ^= lookup._hash(high, low, lookup.HASHES)
    return table


def _queues(rng: random.Random, count: int) -> set[Lanes]:
    return {(rng.getrandbits(64) - 2**63, rng.getrandbits(64) - 2**63) for _ in range(count)}


@pytest.mark.parametrize(("missing", "extra"), [(0, 0), (1, 0), (0, 1), (100, 100), (250, 3)])
def test_differences_are_found(missing: int, extra: int) -> None:
    rng = random.Random(missing * 1000 + extra)
    common, here, there = _queues(rng, 2_000), _queues(rng, missing), _queues(rng, extra)
    found = difference(_cells(common | here), _cells(common | there))
    assert found == lookup.Difference(frozenset(here), frozenset(there))


def test_too_many_differences_give_no_answer() -> None:
    rng = random.Random(1)
    assert difference(_cells(_queues(rng, 600)), _cells(_queues(rng, 600))) is None


def test_cells_travel_as_bytes() -> None:
    table = _cells(_queues(random.Random(2), 50))
    assert decode_cells(encode_cells(table)) == table
    assert len(encode_cells(table)) < 16_000
    for content in (b"", encode_cells(table)[:-1], b"x" + encode_cells(table)):
        with pytest.raises(PipelineError):
            decode_cells(content)
    with pytest.raises(PipelineError, match="as many cells"):
        difference(table, _cells(set(), 2 * lookup.CELLS))


def test_spark_fills_the_same_cells(spark: SparkSession) -> None:
    rng = random.Random(3)
    common, here, there = _queues(rng, 300), _queues(rng, 30), _queues(rng, 20)
    ours, theirs = (
        spark.createDataFrame(sorted(queues), "h_hi bigint, h_lo bigint")
        for queues in (common | here, common | there)
    )
    assert lookup.cells_of(ours) == _cells(common | here)
    found = difference(lookup.cells_of(ours), lookup.cells_of(theirs))
    assert found == lookup.Difference(frozenset(here), frozenset(there))
