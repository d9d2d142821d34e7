"""Which records a file may share with another: the ranges that its rows are in, by who wrote them.

Files whose ranges do not overlap have no record in common, and one whose ranges are known has none twice.
Their rows are passed through; only rows of overlapping files are compared to find duplicate records.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from blindpost.journal.schema import Table

SPANS_MOST = 64
"""A file of more writers than this is compared with all others."""
_NUMBERED = ("router", "boot")
_EXPORTED = ("router", "side", "snapshot")
_PARTS = re.compile(r"-([0-9]+)(?:-([0-9]+))?\.parquet")


def written_by(table: Table) -> tuple[str, ...]:
    """The columns that together name who wrote a record: a boot, or an export."""
    return _EXPORTED if set(_EXPORTED) <= set(table.key) else _NUMBERED


def spans_of(table: Table, rows: pa.Table) -> tuple[str, ...]:
    """For each writer in the file: its name, first and last record, separated by tabs. Empty if unknown.

    Only numbered records have ranges. Queues of an export have none: a range would be two of their ids, and
    the ledger that keeps ranges is read by those who may not see ids. There it is only the export's name, and
    the name of the file says which part of it this is (`placed`).
    """
    if not rows.num_rows:
        return ()
    if written_by(table) == _EXPORTED:
        exports = rows.select(list(_EXPORTED)).group_by(list(_EXPORTED), use_threads=False).aggregate([])
        if len(exports) > 1 or not _unique(table, rows):
            return ()
        return (" ".join(str(exports[name][0]) for name in _EXPORTED),)
    if table.key[: len(_NUMBERED)] != _NUMBERED or "seq" not in table.key or not _each_once(table, rows):
        return ()
    ends = rows.group_by(list(_NUMBERED), use_threads=False).aggregate([("seq", "min"), ("seq", "max")])
    if len(ends) > SPANS_MOST:
        return ()
    return tuple(sorted(_line(row) for row in ends.to_pylist()))


def _each_once(table: Table, rows: pa.Table) -> bool:
    """Whether no key occurs twice; checking that rows are in order is the fastest proof."""
    first, *others = (rows[name] for name in _keys(table, rows) if name not in _NUMBERED)
    if not others and len(pc.unique(rows["boot"])) == len(pc.unique(rows["router"])) == 1:
        numbers = first.combine_chunks()
        if pc.all(pc.less(numbers[:-1], numbers[1:])).as_py() in (True, None):
            return True
    return _unique(table, rows)


def _unique(table: Table, rows: pa.Table) -> bool:
    keys = _keys(table, rows)
    found = rows.select(keys).group_by(keys, use_threads=False).aggregate([])
    return bool(found.num_rows == rows.num_rows)


def _keys(table: Table, rows: pa.Table) -> list[str]:
    """The columns of the key that a file has: one of an earlier version may lack some."""
    return [name for name in table.key if name in rows.column_names]


def placed(spans: Sequence[str], file_name: str) -> tuple[str, ...]:
    """The ranges, with those of exports from the name of the file: `...-SNAPSHOT-PART.parquet`."""
    found = []
    for line in spans:
        if "\t" not in line:
            _, between, rest = file_name.rpartition(line.rpartition(" ")[2])
            part = _PARTS.fullmatch(rest)
            if not between or part is None:
                return ()
            first, last = int(part[1]), int(part[2] or part[1])
            line = f"{line}\t{first:020d}\t{last:020d}"
        found.append(line)
    return tuple(found)


def _line(row: Mapping[str, object]) -> str:
    """Numbers are written so that texts are in their order."""
    ends = (f"{row[f'seq_{end}']:020d}" for end in ("min", "max"))
    return "\t".join((" ".join(str(row[name]) for name in _NUMBERED), *ends))


def writers_of(spans: Iterable[str]) -> set[str]:
    return {line.partition("\t")[0] for line in spans}


def within(lost: Iterable[str], there: Iterable[str]) -> bool:
    """Whether each of these ranges is in one of others."""
    by_writer: dict[str, list[tuple[str, str]]] = {}
    for line in there:
        writer, first, last = line.split("\t")
        by_writer.setdefault(writer, []).append((first, last))
    ranges = (line.split("\t") for line in lost)
    return all(
        any(begin <= first and last <= end for begin, end in by_writer.get(writer, ()))
        for writer, first, last in ranges
    )


def alone(files: Mapping[str, Sequence[str]], elsewhere: Collection[str] = ()) -> set[str]:
    """The names of the files that overlap no other; one whose ranges are unknown overlaps all.

    Files of writers that have records elsewhere are left out too.
    """
    by_writer: dict[str, list[tuple[str, str, str]]] = {}
    unknown = False
    for name, spans in files.items():
        lines = list(spans)
        unknown |= not lines
        for line in lines:
            writer, first, last = line.split("\t")
            by_writer.setdefault(writer, []).append((first, last, name))
    if unknown:
        return set()
    met: set[str] = set()
    for found in by_writer.values():
        end, holder = "", ""
        for first, last, name in sorted(found):
            if holder and first <= end:
                met |= {name, holder}
            if not holder or last > end:
                end, holder = last, name
    return {name for name in files.keys() - met if writers_of(files[name]).isdisjoint(elsewhere)}
