"""Sums over many rows by few columns: a vectorised kernel in Spark's Python, file by file.

Spark takes text out of a dictionary for every row, and copies and hashes all of it to find the row's group.
A Parquet file has the dictionaries: here a row's group is a number made of its places in them, and numbers
are what vectors are good at. Spark says who reads which file, and adds up the few rows that come out.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from blindpost.journal.schema import P_COUNTERS, S_QUEUES, Table, Type
from blindpost.pipeline.files import literal, local_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BATCH_ROWS = 1 << 17
"""Little enough to stay in a processor's cache."""
TASKS_MOST = 400
_EXACT = 2**53
_DENSE = 1 << 16
_WIDEST = 2**62
HELD_ROWS = 1 << 20
"""So many sums are held before they are added up."""
_ARROW = {Type.STRING: pa.string(), Type.BINARY: pa.binary()}


@dataclass(frozen=True, slots=True)
class Sums:
    """What is summed: of a table by some columns of words or bytes, and by spans of its time."""

    name: str
    table: Table
    keys: tuple[str, ...]
    span: str
    """The column that says in which span a row is: its start in Unix seconds."""
    span_s: int
    added: tuple[str, ...] = ()
    xored: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(
            [
                *((name, _ARROW[self.table.by_name[name].type]) for name in self.keys),
                *((name, pa.int64()) for name in (self.span, "count", *self.added, *self.xored)),
            ]
        )

    @property
    def columns(self) -> list[str]:
        """What is read of a file."""
        return [*self.keys, self.table.time, *self.added, *self.xored]


QUEUE_SETS = Sums(
    "queue_sets",
    S_QUEUES,
    ("router", "side", "snapshot", "role", "service_id"),
    "day_s",
    86_400,
    xored=("h_hi", "h_lo"),
)
"""Count and XOR of each set: an export's queues of a role and a service, or of none."""

COUNTER_HOURS = Sums(
    "counter_hours", P_COUNTERS, ("router", "role", "boot", "name"), "hour_s", 3_600, added=("value",)
)
"""The sum of each counter of each boot and hour."""

KEPT = (COUNTER_HOURS, QUEUE_SETS)
"""Sums that are kept beside each file of silver, so that a day costs what is new of it."""


def partial_of(sums: Sums, path: str) -> str:
    """Where the sums over a file of silver are kept; readers of tables pass over such a name."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/_{sums.name}-{name}"


Lane = npt.NDArray[np.int64]


def kernel(sums: Sums, rows: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each group of these rows of the table."""
    return _grouped(sums, rows, rows.column(sums.table.time).to_numpy() // sums.span_s, None)


def merged(sums: Sums, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """A row for each group of sums that were made apart."""
    rows = pa.Table.from_batches(parts, sums.schema).combine_chunks()
    if not rows.num_rows:
        return pa.RecordBatch.from_pylist([], sums.schema)
    (batch,) = rows.to_batches()
    counts = batch.column("count").to_numpy()
    return _grouped(sums, batch, batch.column(sums.span).to_numpy() // sums.span_s, counts)


def _grouped(sums: Sums, rows: pa.RecordBatch, spans: Lane, weights: Lane | None) -> pa.RecordBatch:
    """The sums of these rows; `weights` says of how many rows of the table each is the sum already."""
    first = int(spans.min())
    codes, size = spans - first, int(spans.max()) - first + 1
    for name in sums.keys:
        column = _encoded(rows.column(name))
        places = len(column.dictionary) + 1
        if places > 2 or column.null_count:  # else it is the same in all rows
            if size * places > _WIDEST:
                _, codes = np.unique(codes, return_inverse=True)
                size = int(codes.max()) + 1
            codes = codes * places + column.indices.fill_null(places - 1).to_numpy(zero_copy_only=False)
            size *= places
    codes, counts = _groups(codes, size)
    one_of = np.empty(len(counts), np.int64)
    one_of[codes] = np.arange(len(codes))
    picked = rows.select(list(sums.keys)).take(pa.array(one_of))
    found: dict[str, object] = {
        name: column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
        for name, column in zip(sums.keys, picked.columns, strict=True)
    }
    found[sums.span] = spans[one_of] * sums.span_s
    found["count"] = counts if weights is None else _added(codes, len(counts), weights)
    found |= {name: _added(codes, len(counts), rows.column(name).to_numpy()) for name in sums.added}
    if sums.xored:
        order = np.argsort(codes.astype(np.uint16) if len(counts) < _DENSE else codes, kind="stable")
        starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
        for name in sums.xored:
            found[name] = np.bitwise_xor.reduceat(rows.column(name).to_numpy()[order], starts)
    return pa.RecordBatch.from_pydict(found, schema=sums.schema)


def _encoded(column: pa.Array) -> pa.DictionaryArray:
    return column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()


def _groups(codes: Lane, size: int) -> tuple[Lane, Lane]:
    """The place of each row's code among those that there are, and how many rows each has."""
    if size > max(4 * len(codes), _DENSE):
        _, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
        return places, counts
    counts = np.bincount(codes, minlength=size)
    there = np.flatnonzero(counts)
    places = np.zeros(size, np.int64)
    places[there] = np.arange(len(there))
    return places[codes], counts[there]


def _added(codes: Lane, groups: int, values: Lane) -> Lane:
    """Sums are made of doubles where these are exact, which is nearly always."""
    most = int(max(values.max(), -values.min(), 1)) if len(values) else 1
    if most * len(values) < _EXACT:
        return np.bincount(codes, weights=values, minlength=groups).astype(np.int64)
    total = np.zeros(groups, np.int64)
    np.add.at(total, codes, values)
    return total


def of_files(sums: Sums, sources: Iterable[str | bytes]) -> Iterator[pa.RecordBatch]:
    """The groups of these files, named or given: each once, unless there are very many."""
    parts: list[pa.RecordBatch] = []
    held = 0
    for source in sources:
        if isinstance(source, str) and sums in KEPT and os.path.exists(kept := partial_of(sums, source)):
            parts += pq.read_table(kept, schema=sums.schema, partitioning=None).to_batches()
            held += sum(map(len, parts))
            continue
        opened = pa.BufferReader(source) if isinstance(source, bytes) else source
        with pq.ParquetFile(opened, read_dictionary=list(sums.keys)) as file:
            for rows in file.iter_batches(BATCH_ROWS, columns=sums.columns, use_threads=False):
                if len(rows):
                    parts.append(kernel(sums, rows))
                    held += len(parts[-1])
                if held > HELD_ROWS:
                    whole = merged(sums, parts)
                    parts, held = [whole], len(whole)
                    if held > HELD_ROWS // 2:
                        yield whole
                        parts, held = [], 0
    if parts:
        yield merged(sums, parts)


def of_batches(sums: Sums, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same of files that Spark names, with their content where this machine cannot open them."""

    def sources() -> Iterator[str | bytes]:
        for batch in batches:
            for content in batch.column(0):
                yield content.as_py()

    return of_files(sums, sources())


def summed(spark: SparkSession, sums: Sums, paths: Sequence[str]) -> DataFrame:
    """The sums over these files. Groups that are only added may come several times, as parts of their sums:
    whoever reads them adds them up to something larger, and doing it here too would cost as much again.
    """
    spark_schema = ", ".join(
        f"{field.name} {'bigint' if field.type == pa.int64() else field.type}" for field in sums.schema
    )
    local = [local_path(path) for path in paths]
    if None not in local:
        named = spark.createDataFrame(pa.table({"path": pa.array(local, pa.string())}))
        files = named.repartition(min(len(paths), TASKS_MOST)) if len(paths) > 1 else named
    else:
        files = spark.read.format("binaryFile").load(list(map(literal, paths))).select("content")
    parts = files.mapInArrow(functools.partial(of_batches, sums), spark_schema)
    return combined(sums, parts) if sums.xored else parts.select("*", _day(sums))


def with_day(sums: Sums, rows: pa.RecordBatch) -> pa.Table:
    """The same for sums that are here."""
    day = rows.column(sums.span).to_numpy() // 86_400
    return pa.Table.from_batches([rows]).append_column("day", pa.array(day.astype(np.int32), pa.date32()))


def combined(sums: Sums, parts: DataFrame) -> DataFrame:
    """Each group once, with its day."""
    from pyspark.sql import functions as F

    added = [F.sum(name).alias(name) for name in ("count", *sums.added)]
    xored = [F.bit_xor(name).alias(name) for name in sums.xored]
    return parts.groupBy(*sums.keys, sums.span).agg(*added, *xored).select("*", _day(sums))


def _day(sums: Sums) -> Column:
    from pyspark.sql import functions as F

    return F.to_date(F.timestamp_seconds(sums.span)).alias("day")
