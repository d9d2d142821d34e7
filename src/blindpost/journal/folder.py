"""The folder of a journal: where files are, and how one becomes visible.

    segments/               what is being written, and what waits to be sealed
    P/p_counters/date=2031-05-01/<router>-<role>-<boot>-<first>-<last>.parquet

A file with a final name is complete and never changes. Everything else begins with a dot: Spark skips
such names, and a glob of `*.parquet` does not match them.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from blindpost.journal.schema import Table

SEGMENTS = "segments"
SUFFIX = ".parquet"
DATE = "date="
DAY_S = 86_400
PRIVATE, PRIVATE_FOLDER = 0o600, 0o700


def reason_of(error: Exception) -> str:
    """What may be reported about a failure: the system's own text; any other may hold a user's data."""
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


def day_of(seconds: float) -> int:
    """The start of the UTC day, in Unix seconds."""
    return int(seconds) // DAY_S * DAY_S


def date_of(day_s: int) -> str:
    return dt.datetime.fromtimestamp(day_s, dt.UTC).date().isoformat()


def table_folder(root: Path, table: Table) -> Path:
    return root / table.tier.value / table.name


def partition(root: Path, table: Table, day_s: int) -> Path:
    """Where the rows of a day are."""
    return table_folder(root, table) / f"{DATE}{date_of(day_s)}"


def partitions(root: Path, table: Table) -> list[tuple[int, Path]]:
    """The existing days of a table, each with its folder."""
    found = []
    folder = table_folder(root, table)
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.startswith(DATE):
            with contextlib.suppress(ValueError):
                date = dt.date.fromisoformat(path.name.removeprefix(DATE))
                noon = dt.datetime(date.year, date.month, date.day, tzinfo=dt.UTC)
                found.append((int(noon.timestamp()), path))
    return sorted(found)


def file_name(stem: str, first: int, last: int) -> str:
    """The name of a sealed file with these records."""
    return f"{stem}-{first:012d}-{last:012d}{SUFFIX}"


def sealed(folder: Path) -> list[Path]:
    """The visible files of a partition."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))


def make_folder(path: Path) -> None:
    """A folder that survives a power loss, with those above it."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def published(path: Path) -> Iterator[Path]:
    """Where to write what becomes visible as `path`, complete, when the block succeeds.

    The file is there and locked as long as it is being written: `sweep` leaves it alone.
    """
    make_folder(path.parent)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    held = os.open(fresh, os.O_RDWR | os.O_CREAT, PRIVATE)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield fresh
        descriptor = os.open(fresh, os.O_RDONLY)
        try:
            os.fchmod(descriptor, PRIVATE)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    finally:
        os.close(held)
    sync_folder(path.parent)


def remove_partition(folder: Path) -> None:
    """Delete the rows of a day: atomically for readers, even if interrupted."""
    hidden = folder.with_name(f".{folder.name}.deleted")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden)
    sync_folder(folder.parent)


def sweep(root: Path, table: Table) -> None:
    """Remove what killed writers left behind; only the holder of the folder's lock may call this."""
    folder = table_folder(root, table)
    for path in folder.glob(f".{DATE}*.deleted"):
        shutil.rmtree(path)
    for path in folder.glob(f"{DATE}*/.*.new"):
        with contextlib.suppress(FileNotFoundError), owned(path) as ours:
            if ours:
                path.unlink()


@contextlib.contextmanager
def owned(path: Path) -> Iterator[bool]:
    """Whether nobody writes to a file any more."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Whether the lock at `path` is held in this block; False if another process has it."""
    make_folder(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
