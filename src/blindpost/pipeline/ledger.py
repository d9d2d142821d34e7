"""The ledger: what every file of the journal is, in parts of which a run reads those that changed.

    bronze/ledger/index.json         each folder of the journal: what its listing was, and sums over its files
    bronze/ledger/<hash>.parquet     the files of one folder

A folder whose names, sizes and times are unchanged is known without its part. So a run costs a listing and
the folders with something new; and a day of a table reads only the parts that have files of it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b, sha256
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from blindpost.pipeline.errors import damage_explained
from blindpost.pipeline.examine import VERDICT_SCHEMA, Reason
from blindpost.pipeline.files import FileInfo, Files, join

INDEX = "index.json"
AGAIN = (Reason.FUTURE.value, Reason.AHEAD.value, Reason.UNREADABLE.value)
"""Files set aside for these reasons are examined again: this program may be newer, or their day has come, or
they can be read now."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the journal."""

    path: str
    """Below the journal's folder."""
    size: int
    modified_us: int
    sha256: str
    table: str
    version: int
    rows: int
    days: tuple[str, ...]
    reason: str
    """Why it is set aside; empty if it is not."""
    detail: str
    spans: tuple[str, ...] = ()
    """The ranges of its records, by who wrote them."""
    gone: bool = False

    @property
    def good(self) -> bool:
        return not self.reason


_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("modified_us", pa.int64()),
        *[known for known in VERDICT_SCHEMA if known.name != "path"],
        ("gone", pa.bool_()),
    ]
)
_NAMES = [known.name for known in fields(Entry)]


def listing(files: Iterable[FileInfo]) -> str:
    """What a folder looks like: the same for the same files in any order."""
    lines = sorted(f"{path}\0{size}\0{modified_us}" for path, size, modified_us in files)
    return f"{len(lines)}-{blake2b(chr(10).join(lines).encode(), digest_size=16).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Folder:
    """What is known of a folder of the journal without looking at its files."""

    seen: str
    """The listing when its files were looked at."""
    files: int = 0
    rows: int = 0
    """Of the files that are read."""
    aside: int = 0
    """Files that are there and set aside."""
    again: bool = False
    """Some of its files must be looked at again, though nothing changed."""
    contents: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of each table and day: a hash over the files that are read for it."""


def summed(seen: str, known: Mapping[str, Entry]) -> Folder:
    entries = known.values()
    contents: dict[str, dict[str, int]] = {}
    good = {(entry.sha256, entry.table, entry.days) for entry in entries if entry.good}
    for digest, table, days in good:
        for day in days:
            of_table = contents.setdefault(table, {})
            of_table[day] = of_table.get(day, 0) ^ int(digest[:32], 16)
    return Folder(
        seen,
        len(entries),
        sum(entry.rows for entry in entries if entry.good),
        sum(1 for entry in entries if not entry.good and not entry.gone),
        any(entry.reason in AGAIN and not entry.gone for entry in entries),
        {table: {day: f"{lanes:032x}" for day, lanes in days.items()} for table, days in contents.items()},
    )


def _decoded(content: bytes, place: str) -> list[Entry]:
    with damage_explained(place):
        columns = pq.read_table(pa.BufferReader(content)).to_pydict()
        columns.setdefault("spans", [()] * len(columns["path"]))
        rows = [Entry(*row) for row in zip(*(columns[name] for name in _NAMES), strict=True)]
        return [replace(row, days=tuple(row.days), spans=tuple(row.spans)) for row in rows]


class Ledger:
    """What is known of all files that were ever seen."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = join(root, "bronze", "ledger")
        self._before = join(root, "bronze", "files.parquet")

    def adopt(self) -> None:
        """Take over an older ledger, kept in one file: some of the files in it are gone since."""
        content = self._files.read(self._before)
        if content is None:
            return
        parts: dict[str, dict[str, Entry]] = {}
        for entry in _decoded(content, self._before):
            parts.setdefault(entry.path.rpartition("/")[0], {})[entry.path] = entry
        self.write({folder: (summed("", entries), entries) for folder, entries in parts.items()})
        self._files.remove(self._before)

    def folders(self) -> dict[str, Folder]:
        place = join(self._root, INDEX)
        content = self._files.read(place)
        with damage_explained(place):
            kept: dict[str, dict[str, Any]] = {} if content is None else json.loads(content)
            return {path: Folder(**values) for path, values in kept.items()}

    def entries(self, folder: str) -> dict[str, Entry]:
        """The files of one folder."""
        place = self._part(folder)
        content = self._files.read(place)
        if content is None:
            return {}
        return {entry.path: entry for entry in _decoded(content, place)}

    def all(self) -> dict[str, Entry]:
        """Every file, for callers that want to see them all."""
        return {path: entry for folder in self.folders() for path, entry in self.entries(folder).items()}

    def contents(self, table: str) -> dict[str, dict[str, str]]:
        """Of each day of a table: a hash over the files of each folder that are read for it."""
        found: dict[str, dict[str, str]] = {}
        for path, folder in self.folders().items():
            for day, lanes in folder.contents.get(table, {}).items():
                found.setdefault(day, {})[path] = lanes
        return found

    def read_by(self, table: str, days: Collection[str]) -> dict[str, list[Entry]]:
        """The files that are read for these days of a table."""
        found: dict[str, list[Entry]] = {day: [] for day in days}
        for path, folder in self.folders().items():
            if not found.keys().isdisjoint(folder.contents.get(table, ())):
                for entry in self.entries(path).values():
                    if entry.good and entry.table == table:
                        for day in found.keys() & set(entry.days):
                            found[day].append(entry)
        return found

    def set_aside(self) -> list[Entry]:
        """The quarantine: files that are there and not read."""
        parts = (self.entries(path).values() for path, folder in self.folders().items() if folder.aside)
        found = (entry for part in parts for entry in part if entry.reason and not entry.gone)
        return sorted(found, key=lambda entry: entry.path)

    def write(self, changed: Mapping[str, tuple[Folder, Mapping[str, Entry]]]) -> None:
        """Parts first: a run that is killed before the index finds them by their listing again."""
        if not changed:
            return
        folders = self.folders()
        for path, (folder, entries) in changed.items():
            listed = sorted(entries.values(), key=lambda entry: entry.path)
            rows = {name: [getattr(entry, name) for entry in listed] for name in _NAMES}
            buffer = io.BytesIO()
            pq.write_table(pa.Table.from_pydict(rows, schema=_SCHEMA), buffer, compression="zstd")
            self._files.replace(self._part(path), buffer.getvalue())
            folders[path] = folder
        text = json.dumps({path: asdict(folder) for path, folder in sorted(folders.items())})
        self._files.replace(join(self._root, INDEX), text.encode())

    def _part(self, folder: str) -> str:
        return join(self._root, f"{sha256(folder.encode()).hexdigest()[:24]}.parquet")
