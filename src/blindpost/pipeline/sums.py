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
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from blindpost.journal.schema import P_COUNTERS, P_GAUGES, S_QUEUES, Table, Type
from blindpost.pipeline.files import literal, local_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BATCH_ROWS = 1 << 17
"""Little enough to stay in a processor's cache."""
TASKS_LEAST, FILES_IN_TASK, TASKS_MOST = 16, 4, 400
"""A task costs some hundredths of a second besides its files; with few files each is a task."""
_EXACT = 2**53
_DENSE = 1 << 16
_WIDEST, _SHORT = 2**62, 2**31
_SPAN = "span"
HELD_ROWS = 1 << 20
"""So many sums are held before they are added up."""
_ARROW = {Type.STRING: pa.string(), Type.BINARY: pa.binary()}


LEVELS = {
    "last_s": pa.int64(),
    "last_seq": pa.int64(),
    "last": pa.float64(),
    "greatest": pa.float64(),
    "total": pa.float64(),
    "minutes": pa.int64(),
}
"""The last level with its minute and record, the greatest and the sum of all, and a bit for each minute of
the hour in which there was one."""


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
    level: str | None = None
    """A column of levels that minutes end with: of these the last, greatest and sum (`LEVELS`)."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(
            [
                *((name, _ARROW[self.table.by_name[name].type]) for name in self.keys),
                *((name, pa.int64()) for name in (self.span, "count", *self.added, *self.xored)),
                *(LEVELS.items() if self.level is not None else ()),
            ]
        )

    @property
    def columns(self) -> list[str]:
        """What is read of a file."""
        levels = () if self.level is None else ("seq", self.level)
        return [*self.keys, self.table.time, *self.added, *self.xored, *levels]


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

GAUGE_HOURS = Sums(
    "gauge_hours", P_GAUGES, ("router", "role", "boot", "name"), "hour_s", 3_600, level="value"
)
"""The levels of each gauge of each boot and hour."""

KEPT = (COUNTER_HOURS, GAUGE_HOURS, QUEUE_SETS)
"""Sums that are kept beside each file of silver, so that a day costs what is new of it."""


def partial_of(sums: Sums, path: str) -> str:
    """Where the sums over a file of silver are kept; readers of tables pass over such a name."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/_{sums.name}-{name}"


Lane = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer[Any]]


def kernel(sums: Sums, rows: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each group of these rows of the table."""
    return _grouped(sums, rows, rows.column(sums.table.time).to_numpy(), None)


def merged(sums: Sums, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """A row for each group of sums that were made apart."""
    rows = pa.Table.from_batches(parts, sums.schema).combine_chunks()
    if not rows.num_rows:
        return pa.RecordBatch.from_pylist([], sums.schema)
    (batch,) = rows.to_batches()
    return _grouped(sums, batch, batch.column(sums.span).to_numpy(), batch.column("count").to_numpy())


def _grouped(sums: Sums, rows: pa.RecordBatch, times: Lane, weights: Lane | None) -> pa.RecordBatch:
    """The sums of these rows; `weights` says of how many rows of the table each is the sum already."""
    codes = _Codes(times, sums.span_s)
    for name in sums.keys:
        codes.add(name, _encoded(rows.column(name)))
    codes.narrow(len(rows))
    counts = np.bincount(codes.of_rows, minlength=codes.size)
    there = np.flatnonzero(counts)
    found = codes.named(there)
    found[sums.span] = found.pop(_SPAN) * sums.span_s
    totals = [(name, rows.column(name).to_numpy()) for name in sums.added]
    if weights is not None:
        totals.append(("count", weights))
    found["count"] = counts[there]
    found |= {name: _added(codes.of_rows, codes.size, values)[there] for name, values in totals}
    small = _small(codes.of_rows, codes.size)
    ends = np.cumsum(counts[there])
    if sums.xored:
        order = np.argsort(small, kind="stable")
        starts = ends - counts[there]
        for name in sums.xored:
            found[name] = np.bitwise_xor.reduceat(rows.column(name).to_numpy()[order], starts)
    if sums.level is not None:
        known = _levels(rows, sums.table.time, sums.level) if weights is None else rows.select(list(LEVELS))
        found |= _united(known, small, ends)
    return pa.RecordBatch.from_pydict(found, schema=sums.schema)


def _levels(rows: pa.RecordBatch, time: str, level: str) -> pa.RecordBatch:
    """The levels of a table, as if each were the only one of its hour."""
    at, value = rows.column(time), rows.column(level)
    bits = np.int64(1) << (at.to_numpy() // 60 % 60)
    return pa.RecordBatch.from_arrays(
        [at, rows.column("seq"), value, value, value, pa.array(bits)], names=list(LEVELS)
    )


def _united(levels: pa.RecordBatch, codes: Numbers, ends: Lane) -> dict[str, Any]:
    """The levels of each group; groups end there when rows are sorted by their codes."""
    known = {name: levels.column(name).to_numpy() for name in LEVELS}
    at, seq = known["last_s"], known["last_seq"]
    rising = (at[1:] > at[:-1]) | ((at[1:] == at[:-1]) & (seq[1:] >= seq[:-1]))
    order = np.argsort(codes, kind="stable") if rising.all() else np.lexsort((seq, at, codes))
    starts = np.concatenate(([0], ends[:-1]))
    united: dict[str, Any] = {name: known[name][order[ends - 1]] for name in ("last_s", "last_seq", "last")}
    for name, unite in (("greatest", np.maximum), ("total", np.add), ("minutes", np.bitwise_or)):
        united[name] = unite.reduceat(known[name][order], starts)
    return united


class _Codes:
    """A number for each row's group: its span, then its place in the dictionary of each key."""

    def __init__(self, times: Lane, span_s: int) -> None:
        self._first = int(times.min()) // span_s
        self.size = int(times.max()) // span_s - self._first + 1
        self.of_rows: Numbers = np.zeros(len(times), np.int32)
        if self.size > 1:
            since = times - self._first * span_s
            short = since.astype(np.int32) if self.size * span_s < _SHORT else since
            self.of_rows = short // span_s
        self._steps: list[tuple[str, pa.Array, int] | Numbers] = []

    def add(self, name: str, column: pa.DictionaryArray) -> None:
        places = len(column.dictionary) + (column.null_count > 0)
        if self.size * places > _WIDEST:
            self._number_anew()
        self._steps.append((name, column.dictionary, places))
        if places < 2:  # the same in all rows
            return
        if self.size * places > _SHORT:
            self.of_rows = self.of_rows.astype(np.int64)
        indices = column.indices.fill_null(places - 1) if column.null_count else column.indices
        self.of_rows = self.of_rows * places + indices.to_numpy(zero_copy_only=False)
        self.size *= places

    def narrow(self, rows: int) -> None:
        """Only as many numbers as can be counted in little memory."""
        if self.size > max(4 * rows, _DENSE):
            self._number_anew()

    def _number_anew(self) -> None:
        """Give numbers only to the groups that there are."""
        known, self.of_rows = np.unique(self.of_rows, return_inverse=True)
        self.size = len(known)
        self._steps.append(known)

    def named(self, groups: Lane) -> dict[str, Any]:
        """The values of the keys of these groups, and last the number of their span."""
        found: dict[str, Any] = {}
        left: Numbers = groups
        for step in reversed(self._steps):
            if isinstance(step, np.ndarray):
                left = step[left]
                continue
            name, dictionary, places = step
            left, own = np.divmod(left, max(places, 1))
            found[name] = dictionary.take(pa.array(own, mask=own >= len(dictionary)))
        found[_SPAN] = left + self._first
        return found


def _encoded(column: pa.Array) -> pa.DictionaryArray:
    return column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()


def _small(codes: Numbers, size: int) -> npt.NDArray[np.integer[Any]]:
    """In as few bytes as can be: numbers of one or two bytes are sorted by counting them."""
    return codes.astype(np.uint8 if size <= 1 << 8 else np.uint16 if size <= 1 << 16 else np.int64)


def _added(codes: Numbers, groups: int, values: Lane) -> Lane:
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
        tasks = min(len(paths), max(TASKS_LEAST, len(paths) // FILES_IN_TASK), TASKS_MOST)
        files = named.repartition(tasks) if tasks > 1 else named
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
    once = parts.groupBy(*sums.keys, sums.span).agg(*added, *xored, *(_leveled() if sums.level else ()))
    return once.select("*", _day(sums))


def _leveled() -> list[Column]:
    from pyspark.sql import functions as F

    last = F.max(F.struct("last_s", "last_seq", "last"))
    return [
        *(last[name].alias(name) for name in ("last_s", "last_seq", "last")),
        F.max("greatest").alias("greatest"),
        F.sum("total").alias("total"),
        F.bit_or("minutes").alias("minutes"),
    ]


def _day(sums: Sums) -> Column:
    from pyspark.sql import functions as F

    return F.to_date(F.timestamp_seconds(sums.span)).alias("day")
