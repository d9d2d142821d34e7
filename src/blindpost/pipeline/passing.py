"""Rows of files that share no record with another: copied into silver as they are, file by file.

Nothing has to meet, so nothing is shuffled: Spark says who copies which files, and vectors do the rest. A row
gets its day, and the rows that are written get their hash and their sums of hours, without a second reading.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blindpost.journal.schema import TABLES, Table, Type
from blindpost.pipeline.files import local_path
from blindpost.pipeline.publish import SUFFIX
from blindpost.pipeline.quality import Outcome
from blindpost.pipeline.rowhash import of_rows
from blindpost.pipeline.sums import KEPT, Sums, kernel, merged, partial_of
from blindpost.pipeline.types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_ROWS = 1 << 17
GROUP_ROWS = 1 << 20
"""Rows of a day that are collected before they are written; four times as many of all days together."""
TASK_ROWS = 4_000_000
"""What one task copies; it writes one file for each day."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was written of a day."""

    day: str
    rows: int
    lanes: int

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.rows, f"{self.rows}-{self.lanes & 2**64 - 1:016x}", {"key": 0})


def each_once(table: Table, sources: Sequence[str]) -> bool:
    """Whether no record is twice in these few files: then none has to be compared with another."""
    key = list(table.key)
    parts = []
    for source in sources:
        with pq.ParquetFile(source) as file:
            parts.append(file.read([name for name in key if name in file.schema_arrow.names]))
    keys = pa.concat_tables(parts, promote_options="default")
    return len(keys) == len(keys.group_by(key, use_threads=False).aggregate([]))


@dataclass(slots=True)
class _Day:
    """A file of a day that is being written."""

    path: Path
    numbers: list[str]
    """The columns that a reader may look for by range: only of these are the least and greatest kept, since
    finding them among texts costs as much as writing all columns."""
    writer: pq.ParquetWriter | None = None
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    sums: dict[Sums, list[pa.RecordBatch]] = field(default_factory=dict)
    held: int = 0
    rows: int = 0
    lanes: int = 0

    def write(self) -> None:
        if not self.waiting:
            return
        rows = pa.Table.from_batches(self.waiting).unify_dictionaries().combine_chunks()
        if self.writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.writer = pq.ParquetWriter(
                self.path,
                rows.schema,
                compression="zstd",
                store_schema=False,
                write_statistics=self.numbers,
            )
        self.writer.write_table(rows, row_group_size=GROUP_ROWS)
        self.waiting, self.held = [], 0

    def close(self) -> None:
        self.write()
        if self.writer is not None:
            self.writer.close()
        for sums, parts in self.sums.items():
            pq.write_table(pa.Table.from_batches([merged(sums, parts)]), partial_of(sums, str(self.path)))


def copy(name: str, staging: str, days: Collection[str], sources: Iterable[str]) -> Iterator[Copied]:
    """Copy the rows of these days; one file for each."""
    table = TABLES[name]
    words = [column.name for column in table.columns if column.type in (Type.STRING, Type.BINARY)]
    wanted = {(np.datetime64(day) - np.datetime64("1970-01-01")).astype(int).item(): day for day in days}
    opened: dict[int, _Day] = {}
    for source in sources:
        with pq.ParquetFile(source, read_dictionary=words) as file:
            for batch in file.iter_batches(BATCH_ROWS, use_threads=False):
                for number, rows in _by_day(table, batch):
                    if number in wanted:
                        _take(table, opened, number, rows, Path(staging, f"partition={wanted[number]}"))
        if sum(one.held for one in opened.values()) > 4 * GROUP_ROWS:
            for one in opened.values():
                one.write()
    for number, one in opened.items():
        one.close()
        yield Copied(wanted[number], one.rows, one.lanes)


def _take(table: Table, opened: dict[int, _Day], number: int, rows: pa.RecordBatch, folder: Path) -> None:
    if number not in opened:
        numbers = [one.name for one in table.columns if one.type in (Type.INT32, Type.INT64)]
        opened[number] = _Day(folder / f"part-{os.urandom(8).hex()}{SUFFIX}", [*numbers, "day"])
        opened[number].sums.update({sums: [] for sums in KEPT if sums.table is table})
    day = opened[number]
    day.rows += len(rows)
    day.lanes ^= int(np.bitwise_xor.reduce(of_rows(rows)))
    day.waiting.append(rows)
    day.held += len(rows)
    for sums, parts in day.sums.items():
        parts.append(kernel(sums, rows))
    if day.held >= GROUP_ROWS:
        day.write()


def _by_day(table: Table, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each day, with silver's columns."""
    if not len(batch):
        return
    unit_s = 1_000_000 if table.time.endswith("_us") else 1
    days = batch.column(table.time).to_numpy() // (86_400 * unit_s)
    there = set(batch.schema.names)
    columns = [
        batch.column(one.name) if one.name in there else pa.nulls(len(batch), one.type)
        for one in arrow_schema(table)
    ]
    columns.append(pa.array(days.astype(np.int32), pa.date32()))
    whole = pa.RecordBatch.from_arrays(columns, [*table.by_name, "day"])
    found = np.unique(days) if days.min() != days.max() else days[:1]
    for number in found:
        mine = whole if len(found) == 1 else whole.filter(pa.array(days == number))
        yield int(number), mine


_ANSWER = pa.schema([("day", pa.string()), ("rows", pa.int64()), ("lanes", pa.int64())])


def _copy_batches(
    name: str, staging: str, days: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    sources = (path.as_py() for batch in batches for path in batch.column("path"))
    found = [
        {"day": one.day, "rows": one.rows, "lanes": one.lanes} for one in copy(name, staging, days, sources)
    ]
    yield pa.RecordBatch.from_pylist(found, _ANSWER)


def copy_all(
    spark: SparkSession | None,
    table: Table,
    staging: str,
    days: Sequence[str],
    files: Sequence[tuple[str, int]],
) -> list[Copied]:
    """Copy the rows of these files, given with their rows: in Spark's Python, or here if there is none."""
    target = local_path(staging) or staging
    sources = [local_path(path) or path for path, _ in files]
    if spark is None:
        return list(copy(table.name, target, days, sources))
    tasks = max(1, min(len(files), sum(rows for _, rows in files) // TASK_ROWS + 1))
    named = spark.createDataFrame(pa.table({"path": pa.array(sources, pa.string())}))
    spread = named.repartition(tasks) if tasks > 1 else named.coalesce(1)
    work = functools.partial(_copy_batches, table.name, target, list(days))
    found = spread.mapInArrow(work, "day string, rows bigint, lanes bigint").collect()
    return [Copied(row["day"], row["rows"], row["lanes"]) for row in found]
