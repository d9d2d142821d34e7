"""The embedded store: LMDB, one writer, sorted keys, crash-safe without a log.

A commit takes a list of changes and makes all of them durable or none. Readers are short: long walks
go in chunks, because a reader that stays open keeps old pages from being reused. The map grows
between transactions when it is full, after the readers of other threads; `writemap` is never used, so
that a stray pointer or a lost machine cannot tear a page.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import lmdb

from blindpost.engine.loop import StoreFailedError
from blindpost.store.contract import Durability, NotTheirStoreError, Seen, StoreVersionError, seen
from blindpost.store.file_locks import is_held, take
from blindpost.store.owners import open_file
from blindpost.wire.frozen import dataclass

META = "meta"
_VERSION_KEY = b"schema version"
_PROBE_KEY = b"probe"
_OWNER_KEY = b"owner"
_LOCK_FILE = "owner.lock"
_READERS_FILE = "lock.mdb"
_MAP_START = 64 << 20
_GROWTH_MAX = 16 << 30
_DATA_FILE = "data.mdb"
_NO_KEY = frozenset({b""})
_DAMAGED = 3
_READ_EVERYTHING = f"""
import lmdb, os, sys
try:
    with lmdb.open(sys.argv[1], readonly=True, create=False, lock=sys.argv[2] == "lock") as environment:
        environment.copyfd(os.open(os.devnull, os.O_WRONLY), compact=True)
except lmdb.Error:
    sys.exit({_DAMAGED})
"""
_PRIVATE = 0o600
"""Only the owner may access the files, even when the folder around them is open to others."""

Change = tuple[str, bytes, bytes | None]
"""Table, key, and the new row or None to delete it."""

Migration = Callable[["Write"], None]
"""Brings a store from one schema version to the next, inside one transaction."""


@dataclass(frozen=True, slots=True)
class Page:
    """One chunk of a walk: rows in key order and where the next chunk starts (None at the end)."""

    rows: tuple[tuple[bytes, bytes], ...]
    following: bytes | None


class Read:
    """A consistent view of the store, for as long as its `with` block lasts."""

    def __init__(self, transaction: lmdb.Transaction[bytes], tables: dict[str, lmdb._Database]) -> None:
        self._transaction = transaction
        self._tables = tables

    def get(self, table: str, key: bytes) -> bytes | None:
        """A row; no row has an empty key, so the library is not asked for one."""
        if not key:
            return None
        return self._transaction.get(key, db=self._tables[table])

    def get_many(self, table: str, keys: Set[bytes]) -> dict[bytes, bytes]:
        """The rows of those keys that have one, by one call of the library."""
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            return dict(cursor.getmulti(keys - _NO_KEY))

    def page(self, table: str, start: bytes, limit: int, prefix: bytes = b"") -> Page:
        """Up to `limit` rows from `start` on, as long as their keys begin with `prefix`."""
        rows: list[tuple[bytes, bytes]] = []
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            found = cursor.set_range(start) if start else cursor.first()
            while found:
                key = cursor.key()
                if not key.startswith(prefix):
                    break
                if len(rows) == limit:
                    return Page(tuple(rows), key)
                rows.append((key, cursor.value()))
                found = cursor.next()
        return Page(tuple(rows), None)

    def keys(self, table: str, prefix: bytes) -> tuple[bytes, ...]:
        """All keys that begin with `prefix`."""
        found: list[bytes] = []
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            more = cursor.set_range(prefix)
            while more and (key := cursor.key()).startswith(prefix):
                found.append(key)
                more = cursor.next()
        return tuple(found)

    def count(self, table: str) -> int:
        return int(self._transaction.stat(self._tables[table])["entries"])


class Write(Read):
    """A view that can be changed; everything becomes durable when its `with` block ends well."""

    def put(self, table: str, key: bytes, row: bytes) -> None:
        self._transaction.put(key, row, db=self._tables[table])

    def putter(self, table: str) -> Callable[[bytes, bytes], object]:
        """As `put`, for one table and many rows."""
        return functools.partial(self._transaction.put, db=self._tables[table])

    def delete(self, table: str, key: bytes) -> None:
        self._transaction.delete(key, db=self._tables[table])

    def apply(self, changes: Sequence[Change]) -> None:
        put, delete, tables = self._transaction.put, self._transaction.delete, self._tables
        for table, key, row in changes:
            if row is None:
                delete(key, db=tables[table])
            else:
                put(key, row, db=tables[table])


class LmdbStore:
    """One folder with the named tables of one server."""

    def __init__(
        self,
        folder: Path,
        tables: Sequence[str],
        *,
        owner: str,
        durability: Durability = Durability.FULL,
        migrations: Sequence[Migration] = (),
        map_size: int = _MAP_START,
    ) -> None:
        """`owner` is the kind of server whose store this is; a store of another kind is refused untouched."""
        self._folder = folder
        self._owner = owner
        self._names = (META, *tables)
        self._synced = durability is Durability.FULL
        self._map_size = map_size
        self._broken = False
        self._readers = 0
        self._unread = threading.Condition()
        self._lock = self._locked()
        try:
            self._open()
            self._migrate(migrations)
        except BaseException:
            os.close(self._lock)
            raise

    def _locked(self) -> int:
        """Lock the store itself, by whatever path it was opened; one process at a time writes."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = open_file(self._folder / _LOCK_FILE)
        except OSError as error:
            raise StoreFailedError(f"the store cannot be opened: {error}") from error
        if not take(lock):
            os.close(lock)
            raise StoreFailedError(
                "another process uses this store: stop it first, or give each server a store of its own"
            )
        return lock

    def _open(self) -> None:
        folder = self._folder
        try:
            self._environment = _opened(
                folder,
                map_size=max(self._map_size, _used_size(folder)),
                max_dbs=len(self._names),
                sync=self._synced,
                metasync=self._synced,
                readahead=False,
                max_readers=16,
                mode=_PRIVATE,
            )
            _fill_up(self._environment, folder)
            self._check_owner()
            self._tables = {name: self._environment.open_db(name.encode()) for name in self._names}
        except (lmdb.Error, OSError) as error:
            raise StoreFailedError(f"the store cannot be opened: {error}") from error

    def _check_owner(self) -> None:
        """Before any table is made: an old store that names no owner is recognised by its tables."""
        with self._environment.begin() as transaction:
            names = {bytes(key).decode() for key, _ in transaction.cursor()}
            owner = None
            if META in names:
                meta = self._environment.open_db(META.encode(), transaction, create=False)
                owner = transaction.get(_OWNER_KEY, db=meta)
        found = self._owner if owner is None else bytes(owner).decode(errors="replace")
        if owner is None and not names <= set(self._names):
            found = "server of another kind"
        if found != self._owner:
            self._environment.close()
            raise NotTheirStoreError(found, self._owner)

    def _begin(self, *, write: bool = False) -> lmdb.Transaction[bytes]:
        """A transaction. When the library could not write a root, it refuses everything until reopened."""
        if self._broken:
            self._environment.close()
            self._open()
            self._broken = False
        try:
            return self._environment.begin(write=write)
        except lmdb.PanicError:
            self._broken = True
            return self._begin(write=write)

    def read(self) -> Reading:
        """A short read of committed data; `StoreFailedError` if it cannot be read."""
        return Reading(self)

    def begin_reading(self) -> lmdb.Transaction[bytes]:
        with self._unread:
            self._readers += 1
        try:
            return self._begin()
        except BaseException:
            self.end_reading()
            raise

    def end_reading(self) -> None:
        with self._unread:
            self._readers -= 1
            if not self._readers:
                self._unread.notify_all()

    def opened(self, transaction: lmdb.Transaction[bytes]) -> Read:
        """The tables, as this transaction sees them."""
        return Read(transaction, self._tables)

    def commit(self, changes: Sequence[Change]) -> None:
        """Make all `changes` durable, in order, or raise `StoreFailedError` and none of them."""
        self.write(lambda write: write.apply(changes))

    def probe(self) -> None:
        """Write a row that nobody reads, to learn whether the store takes writes."""
        self.write(lambda write: write.put(META, _PROBE_KEY, b""))

    def write(self, work: Callable[[Write], None]) -> None:
        """Run `work` in one transaction; it may run again if the map had to grow."""
        while True:
            number = None
            try:
                with self._begin(write=True) as transaction:
                    work(Write(transaction, self._tables))
                    number = transaction.id()
                return
            except lmdb.MapFullError:
                self._grow()
            except (lmdb.Error, OSError) as error:
                if number is not None and self._is_there(number):
                    return
                raise StoreFailedError(_explained(error)) from error

    def _is_there(self, number: int) -> bool:
        """Whether a failed commit was stored anyway: its root was written, but syncing failed."""
        try:
            with self._begin() as transaction:
                if transaction.id() < number:
                    return False
            self._environment.sync(True)
        except lmdb.Error as error:
            raise StoreFailedError(_explained(error)) from error
        return True

    def backup(self, folder: Path) -> None:
        """A compact, consistent copy of everything committed so far, while the store stays in use."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _copy(self._environment, folder)

    def close(self) -> None:
        """Sync and close; the store cannot be used after."""
        self._environment.sync(True)
        _fill_up(self._environment, self._folder)
        self._environment.close()
        os.close(self._lock)

    def _grow(self) -> None:
        """Make room. The map may move, and a reader of another thread must not be looking at it then."""
        size = int(self._environment.info()["map_size"])
        with self._unread:
            self._unread.wait_for(lambda: not self._readers)
            try:
                self._environment.set_mapsize(size + min(size, _GROWTH_MAX))
            except lmdb.Error as error:
                raise StoreFailedError(_explained(error)) from error

    def _migrate(self, migrations: Sequence[Migration]) -> None:
        with self.read() as read:
            row, owner = read.get(META, _VERSION_KEY), read.get(META, _OWNER_KEY)
        done = int.from_bytes(row, "big") if row is not None else 0
        if done > len(migrations):
            self._environment.close()
            raise StoreVersionError(done, len(migrations))
        if owner is None:
            self.write(lambda write: write.put(META, _OWNER_KEY, self._owner.encode()))
        for number, migration in enumerate(migrations[done:], start=done + 1):
            self.write(functools.partial(_step, migration=migration, number=number))


class Reading:
    """The `with` block of one reader. Every turn of a server has two, and a generator costs more."""

    __slots__ = ("_store", "_transaction")

    def __init__(self, store: LmdbStore) -> None:
        self._store = store

    def __enter__(self) -> Read:
        try:
            self._transaction = self._store.begin_reading()
        except lmdb.Error as error:
            raise StoreFailedError(_explained(error)) from error
        return self._store.opened(self._transaction)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._transaction.abort()
        self._store.end_reading()
        if isinstance(error, lmdb.Error):
            raise StoreFailedError(_explained(error)) from error


def _opened(folder: Path, *, lock: bool = True, **options: Any) -> lmdb.Environment:
    """The store in `folder`, if its file is whole: reading a page that a cut copy lacks ends the process.

    The library leaves out pages at the end that were freed before they were written. So a file that is too
    short may still be whole; a process of its own reads everything to find out.
    """
    if lock:
        with contextlib.suppress(OSError):  # the library says what is wrong
            os.close(open_file(folder / _READERS_FILE))
    environment = lmdb.open(str(folder), lock=lock, **options)
    try:
        needed, size = _needed_size(environment), (folder / _DATA_FILE).stat().st_size
        if size < needed:
            command = [sys.executable, "-P", "-c", _READ_EVERYTHING, str(folder), "lock" if lock else ""]
            ended = subprocess.run(  # noqa: S603 - our own interpreter
                command, stdin=subprocess.DEVNULL, capture_output=True
            ).returncode
            if ended < 0 or ended == _DAMAGED:
                raise StoreFailedError(
                    f"{folder / _DATA_FILE} is cut short, it has {size:,} of {needed:,} bytes: "
                    "copy it again, or restore a backup"
                )
    except BaseException:
        environment.close()
        raise
    return environment


def _needed_size(environment: lmdb.Environment) -> int:
    return (int(environment.info()["last_pgno"]) + 1) * int(environment.stat()["psize"])


def _fill_up(environment: lmdb.Environment, folder: Path) -> None:
    """Give a whole file its full length, with a hole, so that the next start need not read everything."""
    data = folder / _DATA_FILE
    with contextlib.suppress(OSError):
        if data.stat().st_size < (needed := _needed_size(environment)):
            os.truncate(data, needed)


def copy_store(folder: Path, target: Path) -> None:
    """A compact, consistent copy of a store that another process may have open."""
    try:
        with _opened(folder, readonly=True, create=False) as environment:
            _copy(environment, target)
    except (lmdb.Error, OSError) as error:
        raise StoreFailedError(_explained(error)) from error


@contextlib.contextmanager
def snapshot(folder: Path, tables: Sequence[str], version: int, *, lock: bool = True) -> Iterator[Read]:
    """One consistent view of a store that another process may have open and keep writing to.

    Pages freed meanwhile are not reused until it ends: it is for minutes, not for hours. Without `lock`
    nothing is written, not even that there is a reader: for a store that nobody has open.
    """
    names = (META, *tables)
    try:
        with (
            _opened(folder, readonly=True, create=False, lock=lock, max_dbs=len(names)) as environment,
            environment.begin() as transaction,
        ):
            opened = {name: environment.open_db(name.encode(), transaction, create=False) for name in names}
            read = Read(transaction, opened)
            row = read.get(META, _VERSION_KEY)
            found = int.from_bytes(row, "big") if row is not None else 0
            if found != version:
                raise StoreVersionError(found, version)
            yield read
    except (lmdb.Error, OSError) as error:
        raise StoreFailedError(_explained(error)) from error


def look(folder: Path, owner: str, known: int, *, runs: bool) -> Seen:
    """Whose store it is and its schema version, changing nothing.

    While its server runs it is opened like by any reader; otherwise not even the lock file is written.
    """
    if not _used_size(folder):
        raise StoreFailedError(f"there is no store in {folder}")
    try:
        with (
            _opened(folder, readonly=True, create=False, lock=runs, max_dbs=1) as environment,
            environment.begin() as transaction,
        ):
            meta = environment.open_db(META.encode(), transaction, create=False)
            found, row = transaction.get(_OWNER_KEY, db=meta), transaction.get(_VERSION_KEY, db=meta)
    except (lmdb.Error, OSError) as error:
        raise StoreFailedError(_explained(error)) from error
    if found is not None and bytes(found) != owner.encode():
        raise NotTheirStoreError(bytes(found).decode(errors="replace"), owner)
    version = 0 if row is None else int.from_bytes(row, "big")
    return seen(version, known, in_use=is_held(folder / _LOCK_FILE))


def _copy(environment: lmdb.Environment, folder: Path) -> None:
    descriptor = os.open(folder / _DATA_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    try:
        environment.copyfd(descriptor, compact=True)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _step(write: Write, migration: Migration, number: int) -> None:
    migration(write)
    write.put(META, _VERSION_KEY, number.to_bytes(4, "big"))


def _used_size(folder: Path) -> int:
    data = folder / _DATA_FILE
    return data.stat().st_size * 2 if data.exists() else 0


def _explained(error: Exception) -> str:
    """The library tells its errors apart by their text only; it reports a short write as EIO."""
    text = str(error)
    if os.strerror(errno.ENOSPC) in text:
        return "the disk is full"
    if os.strerror(errno.EIO) in text:
        return "the disk is full or failing"
    return f"the store failed: {error}"
