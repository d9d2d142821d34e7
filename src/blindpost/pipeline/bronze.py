"""Bronze: the journal's sealed files as they were written, and a ledger of what each of them is.

Files are never moved or changed; one that is set aside stays where it is, and the ledger says why. A file
is looked at once: as long as its size and time do not change, its verdict stands (but one of a future version
is looked at again, since this program may be newer now, and one from the future when its day has come).
Files that have gone, because they were compacted or their time was over, keep their row, since silver still
holds what was in them. So does a good file that was overwritten by a bad one, until a good one is there.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from blindpost.pipeline.examine import VERDICT_SCHEMA, Reason, examine, examine_batches
from blindpost.pipeline.files import FileInfo, Files, join, literal
from blindpost.pipeline.publish import SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEDGER = "files.parquet"
FEW_FILES, FEW_BYTES = 1_000, 64 << 20
"""So many new files are looked at here: sending them to Spark's Python would cost more."""
_BEFORE = "@"
"""Between the path of an overwritten file and the hash of what it was."""
TRIES = 5
"""How often files are listed anew because some of them went away before they were read."""


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
    gone: bool = False

    @property
    def good(self) -> bool:
        return not self.reason


_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("modified_us", pa.int64()),
        *[field for field in VERDICT_SCHEMA if field.name != "path"],
        ("gone", pa.bool_()),
    ]
)


class Ledger:
    """What is known of all files that were ever seen."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._path = join(root, "bronze", LEDGER)

    def read(self) -> dict[str, Entry]:
        content = self._files.read(self._path)
        if content is None:
            return {}
        names = {field.name for field in fields(Entry)}
        rows = pq.read_table(pa.BufferReader(content)).to_pylist()
        entries = (Entry(**{name: row[name] for name in names}) for row in rows)
        return {entry.path: replace(entry, days=tuple(entry.days)) for entry in entries}

    def write(self, entries: Iterable[Entry]) -> None:
        rows = [asdict(entry) for entry in sorted(entries, key=lambda entry: entry.path)]
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), buffer)
        self._files.replace(self._path, buffer.getvalue())


def sealed(files: Files, journal: str) -> dict[str, FileInfo]:
    """The files that writers have finished, by their path below the journal's folder."""
    prefix = len(journal) + 1
    found = ((file.path, file) for file in files.listed(journal))
    return {
        path[prefix:]: file
        for path, file in found
        if path.endswith(SUFFIX) and not any(part.startswith((".", "_")) for part in path[prefix:].split("/"))
    }


def take_stock(
    spark: SparkSession, files: Files, journal: str, known: Mapping[str, Entry], now_s: float
) -> dict[str, Entry]:
    """The ledger as it is now: new and changed files are examined, the rest is known."""
    for tries in range(TRIES):
        there = sealed(files, journal)
        new = {path: file for path, file in there.items() if not _is_known(known.get(path), file, now_s)}
        try:
            found = _examined(spark, files, new, now_s)
        except Exception:
            if tries + 1 < TRIES and not all(files.exists(file.path) for file in new.values()):
                continue  # compacted meanwhile: what was in them is in others
            raise
        break
    entries = {path: replace(entry, gone=path not in there) for path, entry in known.items()}
    for path, entry in found.items():
        _replace(entries, path, entry)
    return entries


def _replace(entries: dict[str, Entry], path: str, entry: Entry) -> None:
    """What was once read well is kept until something better stands in its place."""
    old = entries.get(path)
    if old is not None and old.good and not entry.good:
        name = f"{path}{_BEFORE}{old.sha256[:16]}"
        entries[name] = replace(old, path=name, gone=True)
    elif entry.good and old is not None and not old.good:
        for name in [name for name in entries if name.startswith(path + _BEFORE)]:
            del entries[name]
    entries[path] = entry


def _is_known(entry: Entry | None, file: FileInfo, now_s: float) -> bool:
    if entry is None or entry.reason == Reason.FUTURE.value:
        return False
    if entry.reason == Reason.AHEAD.value:
        today = datetime.fromtimestamp(now_s, UTC).date().isoformat()
        if entry.days[-1] <= today:
            return False
    return (entry.size, entry.modified_us) == (file.size, file.modified_us)


def _examined(
    spark: SparkSession, files: Files, new: Mapping[str, FileInfo], now_s: float
) -> dict[str, Entry]:
    nothing = examine(b"")  # Spark passes over files without a byte
    found = {
        name: Entry(name, 0, file.modified_us, **asdict(nothing))
        for name, file in new.items()
        if not file.size
    }
    by_path = {file.path: name for name, file in new.items() if file.size}
    if len(by_path) <= FEW_FILES and sum(file.size for file in new.values()) <= FEW_BYTES:
        for path, name in by_path.items():
            if (whole := files.read(path)) is not None:  # else it was compacted meanwhile
                file = new[name]
                found[name] = Entry(name, file.size, file.modified_us, **asdict(examine(whole, now_s)))
        return found
    paths = [literal(path) for path in sorted(by_path)]
    content: DataFrame = spark.read.format("binaryFile").load(paths).select("path", "content")
    verdicts = content.mapInArrow(
        functools.partial(examine_batches, now_s),
        "path string, sha256 string, table string, version int, rows bigint, days array<string>, "
        "reason string, detail string",
    )
    for row in verdicts.collect():
        path = _same_as_listed(row["path"], by_path)
        file = new[by_path[path]]
        values = {**row.asDict(), "path": by_path[path], "days": tuple(row["days"])}
        found[by_path[path]] = Entry(size=file.size, modified_us=file.modified_us, **values)
    return found


def _same_as_listed(shown: str, listed: Mapping[str, str]) -> str:
    """Spark shows paths as URIs, escaped or not; a listing may have them as plain paths."""
    plain = "/" + shown.removeprefix("file:").lstrip("/")
    return next(path for path in (shown, plain, unquote(shown), unquote(plain)) if path in listed)


def set_aside(entries: Iterable[Entry]) -> list[Entry]:
    """The quarantine: files that are there and not read."""
    return sorted((entry for entry in entries if entry.reason and not entry.gone), key=lambda e: e.path)
