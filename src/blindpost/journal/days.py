"""What remains of a day when its minutes are deleted: sums, last levels and last sketches, for each boot."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from blindpost.journal import arrow
from blindpost.journal.compaction import GRACE_S, files_of, read_all, stem_of
from blindpost.journal.folder import DAY_S, SUFFIX, day_of, partition, partitions, sealed
from blindpost.journal.schema import (
    P_COUNTERS,
    P_DAY,
    P_DAY_SKETCHES,
    P_GAUGES,
    P_SKETCHES,
    Table,
)

_WHO = ["router", "role", "boot"]


def roll_up(root: Path, now: float, minute_days: int | None, foreign: set[Path]) -> int:
    """Compute the days that have ended and whose minutes are still there; how many were computed.

    A day that is too old may have lost some of its minutes already, and so may one with a damaged file. So
    what was computed of it stays; what was not is computed of what is there, before it is deleted.
    """
    oldest = 0 if minute_days is None else day_of(now) - minute_days * DAY_S
    found = {day_s for table in (P_GAUGES, P_COUNTERS) for day_s, _ in partitions(root, table)}
    days = [day_s for day_s in sorted(found) if day_s + DAY_S + GRACE_S <= now]
    return sum(_roll_up(root, day_s, foreign, again=oldest <= day_s) for day_s in days)


def _roll_up(root: Path, day_s: int, foreign: set[Path], *, again: bool) -> bool:
    """`again`: what was computed before, of fewer minutes, is replaced, if all files can be read."""
    folders = {table: partition(root, table, day_s) for table in (P_COUNTERS, P_GAUGES, P_SKETCHES)}
    mark = _mark([path for folder in folders.values() for path in sealed(folder)])
    boots = {stem_of(path.name) for table in (P_COUNTERS, P_GAUGES) for path in sealed(folders[table])}
    found = files_of(partition(root, P_DAY, day_s), foreign)
    done = {file.path.name for file in found if file.inputs == mark or not again}
    if done >= {_name(boot) for boot in boots}:
        return False
    damaged: set[Path] = set()
    counters, gauges, sketches = (_read(table, folder, damaged) for table, folder in folders.items())
    foreign |= damaged
    again = again and not damaged
    kept = {file.path.name for file in found}
    computed = False
    # The sketches first: a day that has its sums has everything.
    for table, rows in (
        (P_DAY_SKETCHES, _sketches(day_s, sketches)),
        (P_DAY, _sums(day_s, counters, gauges)),
    ):
        for who, of_boot in _by_boot(rows):
            name = _name("-".join(who))
            if again or name not in kept:
                arrow.seal(partition(root, table, day_s) / name, table, of_boot, inputs=mark)
                computed = True
    return computed


def _mark(paths: list[Path]) -> str:
    """A fingerprint of what a day is computed from: any added or replaced file changes it."""
    digest = hashlib.sha256()
    for path in paths:
        known = path.stat()
        digest.update(f"{path.name} {known.st_size} {known.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _name(boot: str) -> str:
    return f"{boot}-day{SUFFIX}"


def _read(table: Table, folder: Path, foreign: set[Path]) -> pa.Table:
    """The rows of a day, each once."""
    read = (rows for _, rows in read_all(files_of(folder, foreign), foreign))
    rows = pa.concat_tables([arrow.schema_of(table).empty_table(), *read])
    others = [column.name for column in table.columns if column.name not in table.key]
    once = rows.group_by(list(table.key), use_threads=False).aggregate([(name, "first") for name in others])
    return once.rename_columns([name.removesuffix("_first") for name in once.column_names])


def _sums(day_s: int, counted: pa.Table, levels: pa.Table) -> pa.Table:
    by_boot = levels.group_by(_WHO).aggregate([("minute_s", "count_distinct"), ("minute_s", "max")])
    minutes = {
        tuple(row[name] for name in _WHO): (row["minute_s_count_distinct"], row["minute_s_max"])
        for row in by_boot.to_pylist()
    }
    sums = counted.group_by([*_WHO, "name"]).aggregate([("value", "sum"), ("minute_s", "max")])
    rows: list[dict[str, Any]] = [
        {**row, "kind": "counter", "value": row["value_sum"], "last": row["minute_s_max"]}
        for row in sums.to_pylist()
    ]
    rows += [{**row, "kind": "gauge", "last": row["minute_s"]} for row in _last(levels, [*_WHO, "name"])]
    found = []
    for row in rows:
        count, last = minutes.get(tuple(row[name] for name in _WHO), (1, row["last"]))
        found.append(
            {
                **{name: row[name] for name in (*_WHO, "kind", "name")},
                "day_s": day_s,
                "value": float(row["value"]),
                "minutes": count,
                "last_minute_s": last,
            }
        )
    found.sort(key=lambda row: (row["boot"], row["kind"], row["name"]))
    columns = {column.name: [row[column.name] for row in found] for column in P_DAY.columns}
    return arrow.rows_of(P_DAY, columns)


def _sketches(day_s: int, rows: pa.Table) -> pa.Table:
    """The last sketch of each day that was written on this day."""
    rows = rows.filter(pc.equal(rows["day_s"], day_s))
    found = sorted(_last(rows, [*_WHO, "name"]), key=lambda row: (row["boot"], row["name"]))
    columns = {column.name: [row[column.name] for row in found] for column in P_DAY_SKETCHES.columns}
    return arrow.rows_of(P_DAY_SKETCHES, columns)


def _last(rows: pa.Table, by: list[str]) -> list[dict[str, Any]]:
    """The row of the latest record of each group."""
    latest: dict[tuple[Any, ...], dict[str, Any]] = {}
    ends = rows.group_by(by).aggregate([("seq", "max")])
    keep = {tuple(row[name] for name in by): row["seq_max"] for row in ends.to_pylist()}
    wanted = pc.is_in(rows["seq"], value_set=pa.array(sorted(set(keep.values())), pa.int64()))
    for row in rows.filter(wanted).to_pylist():
        key = tuple(row[name] for name in by)
        if keep[key] == row["seq"]:
            latest[key] = row
    return list(latest.values())


def _by_boot(rows: pa.Table) -> list[tuple[tuple[str, ...], pa.Table]]:
    boots = sorted({tuple(row[name] for name in _WHO) for row in rows.select(_WHO).to_pylist()})
    return [(boot, rows.filter(pc.equal(rows["boot"], boot[2]))) for boot in boots]
