"""Journals and lakes for tests: rows as plain dictionaries, sealed to files or given to Spark at once."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from blindpost.journal.schema import METADATA_TABLE, METADATA_VERSION, TABLES, Table, Type
from blindpost.pipeline.dataset import Dataset
from blindpost.pipeline.settings import Keep, Settings
from blindpost.pipeline.silver import silver
from blindpost.pipeline.sums import Sums, kernel, merged, with_day
from blindpost.pipeline.types import spark_schema

Row = dict[str, Any]
Journal = dict[str, list[Row]]
"""Rows by the name of their table."""

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
}
"""Settings for little data: compiling each plan would take longer than running it."""

AS_OF = "2025-02-04"
"""Soon after the journals of tests: by the clock the time of their events would be over."""
LASTING = Settings(keep=Keep(36_500, 36_500, 36_500))
"""Nothing is old enough to be erased: journals of tests are of the past."""

_ONCE: dict[int, tuple[Sequence[Row], list[Row]]] = {}
"""Oracles ask for the same rows again and again."""

_ARROW = {
    Type.STRING: pa.string(),
    Type.BOOL: pa.bool_(),
    Type.INT32: pa.int32(),
    Type.INT64: pa.int64(),
    Type.FLOAT64: pa.float64(),
    Type.BINARY: pa.binary(),
    Type.INT64_LIST: pa.list_(pa.int64()),
    Type.FLOAT64_LIST: pa.list_(pa.float64()),
}


def arrow_rows(table: Table, rows: Sequence[Row], version: int | None = None) -> pa.Table:
    version = table.version if version is None else version
    schema = pa.schema(
        [(column.name, _ARROW[column.type]) for column in table.at(version)],
        metadata={METADATA_TABLE: table.name, METADATA_VERSION: str(version)},
    )
    return pa.Table.from_pylist(list(rows), schema=schema)


def seal_rows(file: Path, table: Table, rows: Sequence[Row], version: int | None = None) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(arrow_rows(table, rows, version), file, write_page_checksum=True)
    return file


def seal_journal(folder: Path, journal: Journal, rng: random.Random, files: int = 2) -> None:
    """Every row in one of a few files of its table, in any order."""
    for name, rows in journal.items():
        table = TABLES[name]
        parts: list[list[Row]] = [[] for _ in range(files)]
        for row in rng.sample(rows, len(rows)):
            rng.choice(parts).append(row)
        for part in filter(None, parts):
            seal_rows(folder / table.tier.value / name / f"{rng.getrandbits(64):016x}.parquet", table, part)


def silver_frame(spark: SparkSession, name: str, rows: Sequence[Row]) -> DataFrame:
    table = TABLES[name]
    return silver(table, spark.createDataFrame(arrow_rows(table, rows), spark_schema(table)))


def sums_frame(rows: DataFrame, sums: Sums) -> DataFrame:
    """Sums over the rows of a silver table, by the kernel."""
    batches = rows.toArrow().combine_chunks().to_batches()
    parts = [kernel(sums, batch) for batch in batches if len(batch)]
    return rows.sparkSession.createDataFrame(with_day(sums, merged(sums, parts)))


def computed(spark: SparkSession, dataset: Dataset, journal: Mapping[str, Sequence[Row]]) -> list[Row]:
    """The rows of a data set that a journal comes to, of every day."""
    frames = {
        given.table: silver_frame(spark, given.table, journal.get(given.table, ()))
        for given in dataset.inputs
    }
    frames |= {sums.name: sums_frame(frames[sums.table.name], sums) for sums in dataset.sums}
    return plain(dataset.computed(frames).select(*dataset.schema.names).collect())


def plain(rows: Iterable[Any]) -> list[Row]:
    found = [
        {
            name: bytes(value) if isinstance(value, bytearray) else value
            for name, value in row.asDict().items()
        }
        for row in rows
    ]
    return in_order(found)


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [(value is not None, str(value)) for value in row.values()])


def once(name: str, rows: Sequence[Row]) -> list[Row]:
    """Each row of a table once: of those with one key, the smallest."""
    known = _ONCE.get(id(rows))
    if known is not None and known[0] is rows:
        return known[1]
    table = TABLES[name]
    rest = [column.name for column in table.columns if column.name not in table.key]
    kept: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[column] for column in table.key)
        if key not in kept or _rank(row, rest) < _rank(kept[key], rest):
            kept[key] = row
    if len(_ONCE) > 20:
        _ONCE.clear()
    _ONCE[id(rows)] = rows, list(kept.values())
    return _ONCE[id(rows)][1]


def _rank(row: Row, names: Sequence[str]) -> list[tuple[bool, Any]]:
    return [(row[name] is not None, row[name] if row[name] is not None else 0) for name in names]
