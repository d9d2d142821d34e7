"""How a table becomes visible: whole, or not at all.

Where things are, below the folder of the lake:

    staging/...                            what a run is writing; nobody reads it, the next run removes it
    versions/<layer>/<table>/day=D/<hash>/ finished partitions; the name is the hash of what they were made of
    <layer>/<table>/_CURRENT               which version of each day counts: the manifest, replaced atomically
    <layer>/<table>/D.parquet              the same rows for readers without manifest, such as a DuckDB glob

Spark writes into staging; a finished folder is renamed to its version; the file for other readers is replaced
by a rename; then the manifest is. A run that is killed anywhere leaves every reader with whole partitions,
and the next run comes to the same names. The version before the current one stays, for readers that just
opened it.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from blindpost.pipeline.errors import damage_explained
from blindpost.pipeline.files import Files, LocalFiles, join, name_of
from blindpost.pipeline.quality import Outcome

CURRENT = "_CURRENT"
MANIFEST_VERSION = 1
SUFFIX = ".parquet"
MADE_OF = "_MADE_OF"
"""Beside the files of a day: what they were made of. Readers of tables pass over such a name."""


def fingerprint(value: object) -> str:
    """A name for anything that JSON can say."""
    return sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Partition:
    """One day of a table, as it is published."""

    inputs: str
    """Fingerprint of everything it was made of; also the name of its folder."""
    files: tuple[str, ...]
    rows: int
    content: str
    broken: Mapping[str, int]
    """How many rows break which rule; all rules are named."""
    computed_s: int
    before: str | None = None
    """The inputs of the version before this one, which is still there."""
    erased: bool = False
    """Past its retention: its rows no longer exist, and what was made of them stays as it is."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Which version of each day of a table counts."""

    partitions: Mapping[str, Partition] = field(default_factory=dict)

    def encode(self) -> bytes:
        days = {day: asdict(partition) for day, partition in sorted(self.partitions.items())}
        return json.dumps({"version": MANIFEST_VERSION, "partitions": days}, indent=1).encode()

    @classmethod
    def decode(cls, content: bytes) -> Manifest:
        days: dict[str, dict[str, Any]] = json.loads(content)["partitions"]
        return cls({day: Partition(**{**kept, "files": tuple(kept["files"])}) for day, kept in days.items()})


@dataclass(frozen=True, slots=True)
class Finished:
    """A day that is computed, checked and ready in staging; `folder` is None if it has no rows."""

    day: str
    folder: str | None
    inputs: str
    outcome: Outcome
    made_of: frozenset[str] = frozenset()
    """What it was made of, one by one, where the next run may add to it."""
    added: bool = False
    """The rows that are published already stay, and these come beside them."""


class TableStore:
    """The published partitions of one table."""

    def __init__(self, files: Files, root: str, layer: str, name: str, *, shown: bool) -> None:
        self.name = name
        self._files = files
        self._root = root
        self._shown = shown
        self._folder = join(root, layer, name)
        self._versions = join(root, "versions", layer, name)
        self._staging = join(root, "staging", f"{layer}-{name}")

    @property
    def delta_root(self) -> str | None:
        """Where the table's log is, if it can have one.

        Delta's own library decodes a path twice and takes a backslash for a slash, so it would look for
        some folders in the wrong place.
        """
        misread = "\\" in self._versions or unquote(self._versions) != self._versions
        return self._versions if isinstance(self._files, LocalFiles) and not misread else None

    def current(self) -> Manifest:
        place = join(self._folder, CURRENT)
        content = self._files.read(place)
        with damage_explained(place):
            return Manifest() if content is None else Manifest.decode(content)

    def paths(self, days: Iterable[str] | None = None) -> list[str]:
        """The files of some days, or of all, that count now."""
        partitions = self.current().partitions
        wanted = sorted(partitions) if days is None else sorted(set(days) & partitions.keys())
        return [
            join(self._version(day, partitions[day].inputs), file)
            for day in wanted
            for file in partitions[day].files
        ]

    def new_staging(self) -> str:
        """A folder that does not exist yet, to write into."""
        return join(self._staging, os.urandom(6).hex())

    def stage(self, folder: str, day: str, rows: pa.Table) -> None:
        """Write the rows of a day into a staging folder, as Spark would."""
        buffer = io.BytesIO()
        pq.write_table(rows, buffer, compression="zstd")
        name = f"part-{os.urandom(8).hex()}{SUFFIX}"
        self._files.replace(join(folder, f"partition={day}", name), buffer.getvalue())

    def staged(self, folder: str) -> dict[str, str]:
        """The folders of the days that were written into a staging folder."""
        found = {file.path.rsplit("/", 1)[0] for file in self._files.listed(folder) if _is_data(file.path)}
        return {name_of(path).partition("=")[2]: path for path in found}

    def publish(self, finished: Iterable[Finished]) -> None:
        """Make these days visible."""
        partitions = dict(self.current().partitions)
        for day in finished:
            old = partitions.get(day.day)
            partitions[day.day] = self._place(day, None if old is None or old.erased else old)
            if self._shown:
                self._show(day.day, partitions[day.day])
        self._files.replace(join(self._folder, CURRENT), Manifest(partitions).encode())
        for day_name, partition in partitions.items():
            self._forget(day_name, {partition.inputs, partition.before})
        self._files.remove(self._staging)

    def over(self, first_day: str) -> list[str]:
        """The days before this one that are not erased yet."""
        partitions = self.current().partitions
        return sorted(day for day, kept in partitions.items() if day < first_day and not kept.erased)

    def erase(self, first_day: str) -> list[str]:
        """Remove all rows of the days before this one, in every version; the days that had any."""
        over = self.over(first_day)
        if over:
            partitions = dict(self.current().partitions)
            for day in over:
                partitions[day] = replace(partitions[day], files=(), rows=0, before=None, erased=True)
            self._files.replace(join(self._folder, CURRENT), Manifest(partitions).encode())
        # After the manifest, and again in the next run if this one is killed: nobody reads them any more.
        for file in list(self._files.listed(self._versions)):
            day = file.path[len(self._versions) + 1 :].split("/")[0]
            if day.removeprefix("day=") < first_day:
                self._files.remove(join(self._versions, day))
        for file in list(self._files.listed(self._folder)):
            if _is_data(file.path) and name_of(file.path).removesuffix(SUFFIX) < first_day:
                self._files.remove(file.path)
        return over

    def _version(self, day: str, inputs: str) -> str:
        return join(self._versions, f"day={day}", inputs)

    def _place(self, done: Finished, old: Partition | None) -> Partition:
        target = self._version(done.day, done.inputs)
        before = None if old is None else old.before if old.inputs == done.inputs else old.inputs
        outcome = done.outcome
        if not (old is not None and old.inputs == done.inputs):
            self._files.remove(target)  # only a killed run can have left it there
            if done.folder is not None:
                self._files.move(done.folder, target)
            if done.added and old is not None:
                self._keep(self._version(done.day, old.inputs), target)
                outcome = outcome.beside(Outcome(old.rows, old.content, dict(old.broken)))
            if done.made_of:
                self._files.replace(join(target, MADE_OF), "\n".join(sorted(done.made_of)).encode())
        names = sorted(name_of(file.path) for file in self._files.listed(target) if _is_data(file.path))
        return Partition(
            done.inputs,
            tuple(names),
            outcome.rows,
            outcome.content,
            outcome.broken,
            int(time.time()),
            before,
        )

    def _keep(self, version: str, target: str) -> None:
        """Let the files of a version be seen in another, with what is kept beside them."""
        for file in list(self._files.listed(version)):
            if (name := name_of(file.path)) != MADE_OF:
                self._files.show(file.path, join(target, name))

    def made_of(self, day: str) -> frozenset[str]:
        """What a published day was made of, one by one; empty if that is not known."""
        kept = self.current().partitions.get(day)
        if kept is None or kept.erased:
            return frozenset()
        content = self._files.read(join(self._version(day, kept.inputs), MADE_OF))
        return frozenset() if content is None else frozenset(content.decode().splitlines())

    def _show(self, day: str, partition: Partition) -> None:
        visible = join(self._folder, f"{day}{SUFFIX}")
        if not partition.files:
            self._files.remove(visible)
            return
        (file,) = partition.files
        self._files.show(join(self._version(day, partition.inputs), file), visible)

    def _forget(self, day: str, kept: set[str | None]) -> None:
        folder = join(self._versions, f"day={day}")
        versions = {file.path[len(folder) + 1 :].split("/")[0] for file in self._files.listed(folder)}
        for version in versions - kept:
            self._files.remove(join(folder, version))


def _is_data(path: str) -> bool:
    name = name_of(path)
    return name.endswith(SUFFIX) and not name.startswith((".", "_"))
