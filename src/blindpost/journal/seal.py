"""Seals what servers wrote: segments become Parquet, small files are merged, old ones removed.

    python -m blindpost.journal.seal FOLDER

Servers start this as a short process of low priority, so that they need no Arrow themselves. It may be killed
at any moment: a file becomes visible whole, what it was made from is removed after that, and everything is
repeated from what is there. A file made from others names them; if both are visible, the others are
removed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from blindpost.journal import arrow
from blindpost.journal.compaction import compact
from blindpost.journal.days import roll_up
from blindpost.journal.folder import (
    DAY_S,
    SEGMENTS,
    day_of,
    file_name,
    locked,
    owned,
    partition,
    partitions,
    reason_of,
    remove_partition,
    sweep,
)
from blindpost.journal.frames import CLOSED, OPEN, RECORDS, Layout, Segment, SegmentError, read_segment
from blindpost.journal.schema import ALL_TABLES, DAYS_LAB, DAYS_MINUTES, TABLES, Table, Tier, Type

LOCK = ".lock"
BAD = ".bad"
_HIDDEN_S = 3_600
"""A segment that never got its final name is removed after this long."""
_KNOWN_DAYS = range(2, 10)
"""So many days ago something was recorded, or the clock may have leapt since."""
SPARED = "Days that are too old are kept, since nothing is there of the week before yesterday."


@dataclass(frozen=True, slots=True)
class Rules:
    """How many days before today are kept, None for all; tables kept forever ignore this."""

    minute_days: int | None = DAYS_MINUTES
    lab_days: int | None = DAYS_LAB
    sure: bool = False
    """Whether a person asks for it, who knows what day it is."""

    def days(self, table: Table) -> int | None:
        if table.days_kept is None:
            return None
        return self.minute_days if table.tier is Tier.PRODUCTION else self.lab_days


@dataclass(slots=True)
class Report:
    """What was done, in numbers."""

    segments: int = 0
    rows: int = 0
    damaged: int = 0
    torn_bytes: int = 0
    unreadable: int = 0
    compacted: int = 0
    days: int = 0
    deleted: int = 0
    """Partitions past their retention."""
    spared: int = 0
    """Those that are left, since rather the clock is wrong."""
    foreign: set[Path] = field(default_factory=set)
    """Sealed files that are not ours, or damaged: they are left alone."""


def seal_folder(root: Path, rules: Rules | None = None, now: float | None = None) -> Report | None:
    """Do everything that is due; None if another process is already doing it.

    What fails, such as writing to a full disk, does not stop the rest: deleting what is too old may be what
    helps. It is raised in the end.
    """
    rules, now = rules or Rules(), time.time() if now is None else now
    with locked(root / SEGMENTS / LOCK) as held:
        if not held:
            return None
        report = Report()
        unsummed: list[Exception] = []
        others: list[Exception] = []
        with _noted(unsummed):
            for table in ALL_TABLES:
                sweep(root, table)
            _take_over(root / SEGMENTS, now)
        for path in sorted((root / SEGMENTS).glob(f"[!.]*{CLOSED}")):
            with _noted(unsummed):
                _seal_segment(root, path, report)
        for table in ALL_TABLES:
            with _noted(others):
                report.compacted += compact(root, table, now, report.foreign)
        with _noted(unsummed):
            report.days = roll_up(root, now, rules.minute_days, report.foreign)
        is_known = rules.sure or _is_known(root, now)
        for table in ALL_TABLES:
            old = _over(root, table, rules.days(table), now)
            # Minutes wait until they are in the sums of their day.
            if not is_known:
                report.spared += len(old)
            elif not (unsummed and table.tier is Tier.PRODUCTION):
                with _noted(others):
                    report.deleted += _forget(old)
        for failure in (*unsummed, *others):
            raise failure
        return report


@contextlib.contextmanager
def _noted(failures: list[Exception]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        failures.append(error)


def _take_over(folder: Path, now: float) -> None:
    """Close the segments of processes that were killed."""
    for path in folder.glob(f"*{OPEN}"):
        with contextlib.suppress(FileNotFoundError), owned(path) as ours:
            if not ours:
                continue
            if not path.name.startswith("."):
                path.rename(path.with_suffix(CLOSED))
            elif path.stat().st_mtime < now - _HIDDEN_S:
                path.unlink()


def _seal_segment(root: Path, path: Path, report: Report) -> None:
    try:
        segment = read_segment(path.read_bytes())
        parts = _parts(segment)
    except (SegmentError, ValueError, LookupError, TypeError, pa.ArrowException):
        path.rename(path.with_suffix(BAD))
        report.unreadable += 1
        return
    for table, rows in parts:
        for day_s, of_day in _by_day(table, rows):
            numbers = of_day["seq"]
            name = file_name(segment.header.author.stem, numbers[0].as_py(), numbers[-1].as_py())
            arrow.seal(partition(root, table, day_s) / name, table, of_day)
            report.rows += len(of_day)
    path.unlink()
    report.segments += 1
    report.damaged += segment.damaged
    report.torn_bytes += segment.torn_bytes


def _parts(segment: Segment) -> list[tuple[Table, pa.Table]]:
    if not segment.bodies:
        return []
    if segment.header.content == RECORDS:
        return _records(segment)
    table = TABLES[segment.header.content]
    return [(table, _events(table, segment))]


def _constants(segment: Segment, numbers: Sequence[int]) -> dict[str, Any]:
    author, count = segment.header.author, len(numbers)
    named = {"router": author.router, "role": author.role, "boot": author.boot}
    return {**{name: pa.repeat(text, count) for name, text in named.items()}, "seq": list(numbers)}


def _events(table: Table, segment: Segment) -> pa.Table:
    layout = Layout(table, segment.header.version)
    columns = _constants(segment, segment.numbers)
    kinds = np.dtype([(known.column.name, f"<{known.code}") for known in layout.fields])
    frames = np.frombuffer(b"".join(segment.bodies), kinds)
    for known in layout.fields:
        name = known.column.name
        values = pa.array(np.ascontiguousarray(frames[name]))
        words = known.column.values or segment.header.words.get(name, ())
        columns[name] = pa.array(words, pa.string()).take(values) if known.is_text else values
    for column in table.columns:
        columns.setdefault(column.name, [None] * len(segment.bodies))
    return arrow.rows_of(table, columns)


def _records(segment: Segment) -> list[tuple[Table, pa.Table]]:
    """Each record has rows of several tables, without the columns that it states once."""
    rows: defaultdict[str, list[list[Any]]] = defaultdict(list)
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number, body in zip(segment.numbers, segment.bodies, strict=True):
        record = json.loads(body)
        for name, found in record["rows"].items():
            rows[name] += [[record["minute_s"], *row] for row in found]
            numbers[name] += [number] * len(found)
    parts = []
    for name, listed in rows.items():
        table = TABLES[name]
        columns = _constants(segment, numbers[name])
        own = [column for column in table.columns if column.name not in columns]
        for column, values in zip(own, zip(*listed, strict=True), strict=False):
            columns[column.name] = _decoded(column.type, values)
        for column in own:
            columns.setdefault(column.name, [None] * len(listed))
        parts.append((table, arrow.rows_of(table, columns)))
    return parts


def _decoded(kind: Type, values: Sequence[Any]) -> list[Any]:
    """JSON has no bytes: they are hexadecimal there."""
    return [bytes.fromhex(value) for value in values] if kind is Type.BINARY else list(values)


def _by_day(table: Table, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    unit = DAY_S * (1_000_000 if table.time.endswith("_us") else 1)
    days = rows[table.time].to_numpy() // unit
    for day in np.unique(days):
        yield int(day) * DAY_S, rows.filter(pa.array(days == day))


def _is_known(root: Path, now: float) -> bool:
    """Whether the clock has been where it is for a day or more.

    One that leaps years ahead would have everything deleted within minutes. A server that was off for long
    cannot be told from that, and deletes when it has run for two days.
    """
    expected = {day_of(now) - ago * DAY_S for ago in _KNOWN_DAYS}
    return any(day_s in expected for table in ALL_TABLES for day_s, _ in partitions(root, table))


def _over(root: Path, table: Table, days: int | None, now: float) -> list[Path]:
    """The partitions past their retention."""
    if days is None:
        return []
    first_s = day_of(now) - days * DAY_S
    return [folder for day_s, folder in partitions(root, table) if day_s < first_s]


def _forget(old: Sequence[Path]) -> int:
    for folder in old:
        remove_partition(folder)
    return len(old)


def forget_exports(root: Path, days: int, now: float | None = None) -> int:
    """Delete exports older than this, certificates excepted; how many folders of days.

    Whoever exports does it, since nobody may seal this folder. One who does deletes them too.
    """
    with locked(root / SEGMENTS / LOCK) as held:
        if not held:
            return 0
        rules, now = Rules(None, days), time.time() if now is None else now
        exports = [table for table in ALL_TABLES if table.tier is Tier.STATE]
        return sum(_forget(_over(root, table, rules.days(table), now)) for table in exports)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="blindpost.journal.seal", description="Seal a journal.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minute-days", type=int, default=DAYS_MINUTES)
    parser.add_argument("--lab-days", type=int, default=DAYS_LAB)
    given = parser.parse_args(arguments)
    os.nice(10)
    try:
        report = seal_folder(given.folder, Rules(given.minute_days, given.lab_days))
    except Exception as error:
        print(f"{given.folder}: {reason_of(error)}", file=sys.stderr)
        return 1
    said = []
    if report is not None and report.foreign:
        shown = ", ".join(str(path.relative_to(given.folder)) for path in sorted(report.foreign))
        said.append(f"files that are damaged or foreign are left alone: {shown}.")
    if report is not None and (report.unreadable or report.damaged):
        said.append(
            f"{report.unreadable} unreadable segments are kept as *{BAD}, "
            f"{report.damaged} damaged frames were left out."
        )
    if report is not None and report.spared:
        said.append(f"{SPARED} Is the clock right?")
    if said:
        print(f"{given.folder}: {' '.join(said)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
