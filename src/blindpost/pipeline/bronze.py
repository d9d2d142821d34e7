"""Bronze: the journal's sealed files as they were written, and what each of them is.

Files are never moved or changed; one that is set aside stays where it is, and the ledger says why. A file is
examined once: as long as its size and time do not change, its verdict stands (but one of a future version is
examined again, since this program may be newer now, and one from the future when its day has come). Files
that are gone, because they were compacted or past their retention, keep their row, since silver still holds
what was in them. So does a good file that was overwritten by a bad one, until a good one is there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from blindpost.pipeline.examine import Reason, Verdict, examine, examine_batches
from blindpost.pipeline.files import FileInfo, Files, literal
from blindpost.pipeline.ledger import Entry, Ledger, listing, summed
from blindpost.pipeline.publish import SUFFIX
from blindpost.pipeline.spans import placed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEW_FILES, FEW_BYTES = 1_000, 64 << 20
"""Up to this many new files are examined here: sending them to Spark's Python would cost more."""
FILES_IN_TASK = 250
_BEFORE = "@"
"""Between the path of an overwritten file and the hash of what it was."""
TRIES = 5
"""How often files are listed again because some of them disappeared before they were read."""


def sealed(files: Files, journal: str) -> Iterator[tuple[str, list[FileInfo]]]:
    """The files that writers have finished, by the folders below the journal's that they are in."""
    prefix = len(journal) + 1
    for path, found in files.folders(journal):
        folder = path[prefix:]
        if not any(part.startswith((".", "_")) for part in folder.split("/")):
            start = len(path) + 1
            ours = [file for file in found if file.path.endswith(SUFFIX) and file.path[start] not in "._"]
            if ours:
                yield folder, ours


def take_stock(spark: SparkSession, files: Files, journal: str, ledger: Ledger, now_s: float) -> None:
    """Bring the ledger up to date: only new and changed files are examined."""
    ledger.adopt()
    for tries in range(TRIES):
        changed, new = _changed(files, journal, ledger, now_s)
        found: dict[str, Entry] = {}
        try:
            found = _examined(spark, files, new, now_s)
        except Exception:
            if tries + 1 < TRIES and not all(files.exists(file.path) for file in new.values()):
                continue  # compacted meanwhile: what was in them is in others
            found = _unreadable(files, new)
            if not found:
                raise
            others = {name: file for name, file in new.items() if name not in found}
            found |= _examined(spark, files, others, now_s)
        break
    for path, entry in found.items():
        folder, _, name = path.rpartition("/")
        _replace(changed[folder].entries, path, replace(entry, spans=placed(entry.spans, name)))
    ledger.write({folder: (summed(one.seen, one.entries), one.entries) for folder, one in changed.items()})


@dataclass(slots=True)
class _Changed:
    """A folder of the journal that changed: its listing, and what was known of its files."""

    seen: str
    entries: dict[str, Entry]


def _changed(
    files: Files, journal: str, ledger: Ledger, now_s: float
) -> tuple[dict[str, _Changed], dict[str, FileInfo]]:
    """The folders that changed, and their files that must be looked at."""
    known = ledger.folders()
    changed: dict[str, _Changed] = {}
    new: dict[str, FileInfo] = {}
    left = set(known)

    def compare(folder: str, found: list[FileInfo]) -> None:
        seen = listing(found)
        if folder in known and known[folder].seen == seen and not known[folder].again:
            return
        there = {file.path[len(journal) + 1 :]: file for file in found}
        entries = ledger.entries(folder)
        unknown = (item for item in there.items() if not _is_known(entries.get(item[0]), item[1], now_s))
        new.update(unknown)
        kept = {name: replace(entry, gone=name not in there) for name, entry in entries.items()}
        changed[folder] = _Changed(seen, kept)

    for folder, found in sealed(files, journal):
        left.discard(folder)
        compare(folder, found)
    for folder in left:
        compare(folder, [])
    return changed, new


def _replace(entries: dict[str, Entry], path: str, entry: Entry) -> None:
    """What was once read well is kept until a good file replaces it."""
    old = entries.get(path)
    if old is not None and old.good and not entry.good:
        name = f"{path}{_BEFORE}{old.sha256[:16]}"
        entries[name] = replace(old, path=name, gone=True)
    elif entry.good and old is not None and not old.good:
        for name in [name for name in entries if name.startswith(path + _BEFORE)]:
            del entries[name]
    entries[path] = entry


def _is_known(entry: Entry | None, file: FileInfo, now_s: float) -> bool:
    if entry is None or entry.reason in (Reason.FUTURE.value, Reason.UNREADABLE.value):
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
    content: DataFrame
    if files.local:  # each task opens its files itself
        named = spark.createDataFrame(pa.table({"path": pa.array(sorted(by_path), pa.string())}))
        content = named.repartition(len(by_path) // FILES_IN_TASK + 1)
    else:
        paths = [literal(path) for path in sorted(by_path)]
        content = spark.read.format("binaryFile").load(paths).select("path", "content")
    verdicts = content.mapInArrow(
        functools.partial(examine_batches, now_s),
        "path string, sha256 string, table string, version int, rows bigint, days array<string>, "
        "reason string, detail string, spans array<string>",
    )
    for row in verdicts.collect():
        path = _same_as_listed(row["path"], by_path)
        file = new[by_path[path]]
        lists = {name: tuple(row[name]) for name in ("days", "spans")}
        values = {**row.asDict(), "path": by_path[path], **lists}
        found[by_path[path]] = Entry(size=file.size, modified_us=file.modified_us, **values)
    return found


def _unreadable(files: Files, new: Mapping[str, FileInfo]) -> dict[str, Entry]:
    """Those that the system does not let us read: they are tried again, and the others are read."""
    found = {}
    for name, file in new.items():
        try:
            files.read(file.path)
        except OSError as error:
            why = f"the system does not let it be read ({error.strerror or type(error).__name__})"
            verdict = Verdict("", reason=Reason.UNREADABLE.value, detail=why)
            found[name] = Entry(name, file.size, file.modified_us, **asdict(verdict))
    return found


def _same_as_listed(shown: str, listed: Mapping[str, str]) -> str:
    """Spark shows paths as URIs, escaped or not; a listing may have them as plain paths."""
    plain = "/" + shown.removeprefix("file:").lstrip("/")
    return next(path for path in (shown, plain, unquote(shown), unquote(plain)) if path in listed)
