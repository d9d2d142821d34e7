"""Small files of an hour are merged into one, and later those of a day."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow as pa

from blindpost.journal import arrow
from blindpost.journal.arrow import ForeignFileError, Sealed
from blindpost.journal.folder import DAY_S, file_name, partitions, sealed
from blindpost.journal.schema import Table

HOUR_S = 3_600
GRACE_S = 3_600
"""A day counts as complete this long after its end; what comes later is merged again."""
MERGED_BYTES_MAX = 64 << 20
"""A merged file is made from no more than this, except that two always fit."""


def files_of(folder: Path, foreign: set[Path]) -> list[Sealed]:
    """The sealed files of a partition, without those that are not ours or damaged."""
    found = []
    for path in sealed(folder):
        try:
            found.append(arrow.look(path))
        except ForeignFileError:
            foreign.add(path)
    return found


def read_all(files: list[Sealed], foreign: set[Path]) -> list[tuple[Sealed, pa.Table]]:
    """Each file with its rows, without those that turn out to be damaged."""
    found = []
    for file in files:
        try:
            found.append((file, arrow.read(file)))
        except ForeignFileError:
            foreign.add(file.path)
    return found


def compact(root: Path, table: Table, now: float, foreign: set[Path]) -> int:
    """Merge the files of each hour, then of each day, that has ended; how many files were merged."""
    if "seq" not in table.by_name:
        return 0
    unit = HOUR_S * (1_000_000 if table.time.endswith("_us") else 1)
    merged = 0
    for day_s, folder in partitions(root, table):
        if len(sealed(folder)) < 2:
            continue
        whole_day = day_s + DAY_S + GRACE_S <= now
        files = _without_covered(files_of(folder, foreign))
        groups: defaultdict[tuple[str, int], list[Sealed]] = defaultdict(list)
        for file in files:
            hour = file.first // unit
            if whole_day or (hour + 1) * HOUR_S <= now:
                groups[stem_of(file.path.name), 0 if whole_day else hour].append(file)
        for (stem, _), group in groups.items():
            for part in _bounded(group):
                merged += _merge(folder, table, stem, read_all(part, foreign))
    return merged


def stem_of(name: str) -> str:
    """The name of a file without the numbers of its records."""
    return name.rsplit("-", 2)[0]


def _without_covered(files: list[Sealed]) -> list[Sealed]:
    """Remove files whose rows are in others, left by a killed compaction."""
    covered = {name for file in files for name in file.sources}
    for file in files:
        if file.path.name in covered:
            file.path.unlink()
    return [file for file in files if file.path.name not in covered]


def _bounded(files: list[Sealed]) -> list[list[Sealed]]:
    parts: list[list[Sealed]] = []
    size = 0
    for file in files:
        if not parts or (size + file.size > MERGED_BYTES_MAX):
            parts.append([])
            size = 0
        parts[-1].append(file)
        size += file.size
    return [part for part in parts if len(part) > 1]


def _merge(folder: Path, table: Table, stem: str, files: list[tuple[Sealed, pa.Table]]) -> int:
    if len(files) < 2:  # the others were damaged
        return 0
    rows = pa.concat_tables([of_file for _, of_file in files]).sort_by("seq")
    name = file_name(stem, rows["seq"][0].as_py(), rows["seq"][-1].as_py())
    sources = [file.path.name for file, _ in files if file.path.name != name]
    arrow.seal(folder / name, table, rows, sources)
    for source in sources:
        (folder / source).unlink()
    return len(files)
