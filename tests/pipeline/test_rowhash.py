"""A partition's content is identified by row hashes: the same from Spark and from vectors."""

from __future__ import annotations

import random
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from blindpost.pipeline.rowhash import in_spark, of_rows

pytestmark = pytest.mark.timeout(300)
SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.int64()),
        ("small", pa.int32()),
        ("yes", pa.bool_()),
        ("level", pa.float64()),
        ("content", pa.binary()),
        ("counts", pa.list_(pa.int64())),
        ("bounds", pa.list_(pa.float64())),
        ("day", pa.date32()),
    ]
)


def _row(rng: random.Random) -> dict[str, Any]:
    length = rng.choice((0, 1, 3, 4, 7, 8, 15, 16, 31, 32, 33, 70))
    row = {
        "text": "".join(rng.choice("abü\U0001f600") for _ in range(length)),
        "number": rng.choice((0, -1, 2**63 - 1, -(2**63), rng.getrandbits(40))),
        "small": rng.randint(-(2**31), 2**31 - 1),
        "yes": rng.random() < 0.5,
        "level": rng.choice((0.0, -0.0, 1.5, -2e300, 5e-324)),
        "content": rng.randbytes(length),
        "counts": [rng.randint(-5, 2**62) for _ in range(rng.randint(0, 4))],
        "bounds": [rng.random() for _ in range(rng.randint(0, 4))],
        "day": date(2031, 5, rng.randint(1, 31)),
    }
    return {name: None if rng.random() < 0.2 else value for name, value in row.items()}


def test_vectors_and_spark_hash_every_type_alike(spark: SparkSession) -> None:
    rng = random.Random(5)
    rows = pa.Table.from_pylist([_row(rng) for _ in range(300)], schema=SCHEMA)
    frame = spark.createDataFrame(rows)
    wanted = [row[0] for row in frame.select(in_spark(frame.schema.fields)).collect()]
    (batch,) = rows.combine_chunks().to_batches()
    assert of_rows(batch).tolist() == wanted
    assert of_rows(batch.slice(7, 50)).tolist() == wanted[7:57]
    coded = batch.set_column(0, "text", batch.column("text").dictionary_encode())
    assert of_rows(coded).tolist() == wanted
