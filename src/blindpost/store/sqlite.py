"""The relational store: SQLite in one file, for the agent and for a notification router on one host.

Every transaction is short, synchronous and the only one: `with store.transaction() as sql:` commits when
the block ends and rolls everything back when it raises. WAL with `synchronous=FULL` means that what was
committed survives `kill -9` and power loss. An owner that groups its commits may sync the log itself, in a
thread of its own, while the next transaction is written: see `defer_syncs`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from blindpost.engine.loop import StoreFailedError
from blindpost.store.contract import Durability, NotTheirStoreError, Seen, StoreVersionError, seen
from blindpost.wire.frozen import dataclass

_PRIVATE = 0o600
_LOG_PAGES = 4000
"""How many pages the log may hold before it is folded into the file, which costs two syncs of its own.

SQLite's default is 1000. With 4000 (16 MB) a busy store folds a quarter as often, and still starts at once.
"""
_LOG_SHARE = 4
"""The log takes no more than this part of the room on the disk: to fold it takes as much again."""
_LOG_PAGES_MIN = 100
_MAGIC = b"SQLite format 3\x00"
_HEADER = struct.Struct(">60xi4xI")
"""Schema version and application in the first page of a file."""
_datasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
_UNNAMED = 0x426C706F
"""`Blpo`: our file from before files named their owner; its kind is recognised by a table."""

_OF_THE_DISK = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
)
"""Errors that the machine's owner can fix; any other is our bug."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose file it is: the number that SQLite keeps in it, and a table that each of its versions has."""

    name: str
    application: int
    table: str


AGENT = Owner("agent", 0x426C7061, "users")
NTF = Owner("notification router", 0x426C706E, "tokens")
_OWNERS = {owner.application: owner for owner in (AGENT, NTF)}


class DiskFailedError(StoreFailedError, sqlite3.OperationalError):
    """A statement that failed for its disk, as SQLite says it and as every store does."""

    def __init__(self, error: sqlite3.OperationalError) -> None:
        super().__init__(str(error))
        self.sqlite_errorcode = error.sqlite_errorcode
        self.sqlite_errorname = error.sqlite_errorname


def is_of_the_disk(error: BaseException) -> TypeGuard[sqlite3.OperationalError]:
    """Whether a statement failed for a reason that the machine's owner can mend."""
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in _OF_THE_DISK


Migration = str | Callable[[sqlite3.Connection], None]
"""Brings a store from one schema version to the next, inside one transaction: statements, or a function."""


class NotOurFileError(Exception):
    """The file is not a database of this program."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is not a Blindpost database: name another file, or restore a backup")


class StoreInUseError(Exception):
    """Another process has the store open."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is in use by another process: stop it first, or name another file")


UNUSABLE = (StoreVersionError, StoreFailedError, NotOurFileError, StoreInUseError)
"""Reasons for not opening a store; a person can fix each of them."""


class SqliteStore:
    """One file, one connection, one writer: this process."""

    def __init__(self, connection: sqlite3.Connection, path: Path, owner: Owner) -> None:
        self._connection = connection
        self.path = path
        self._owner = owner
        self._is_held = False
        self._log: int | None = None
        self._syncing = threading.Lock()
        self._sync_failed: str | None = None
        self._forked = False
        _opened.add(self)

    @classmethod
    def open(
        cls,
        path: Path,
        migrations: Sequence[Migration],
        owner: Owner,
        durability: Durability = Durability.FULL,
        connection_type: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> SqliteStore:
        """The store at `path`, created if there is none, migrated to the newest schema version.

        The file is locked as long as it is open, so that two processes never work on one store.
        """
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, _PRIVATE))
        except FileExistsError:
            pass
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "Make room" if is_full else "Make the folder, or name one that you may write to"
            raise StoreFailedError(f"the file cannot be made: {error.strerror}. {remedy}") from error
        try:
            connection = sqlite3.connect(
                path, isolation_level=None, timeout=0, cached_statements=512, factory=connection_type
            )
        except sqlite3.OperationalError as error:
            raise StoreFailedError(
                f"{path} cannot be opened: name a file that you own, or a new one, and not a folder"
            ) from error
        try:
            _prepare(connection, path, owner, durability)
            _migrate(connection, migrations)
        except sqlite3.OperationalError as error:
            connection.close()
            if not is_of_the_disk(error):
                raise
            raise StoreFailedError(
                f"{path} cannot be used: {error}. Make room if the disk is full, "
                "and look at who owns the file and its folder"
            ) from error
        except BaseException:
            connection.close()
            raise
        return cls(connection, path, owner)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of the block's changes, durable when it ends, or none of them."""
        self.begin()
        try:
            yield self._connection
            self.commit()
        except BaseException as error:
            self.rollback()
            if isinstance(error, sqlite3.OperationalError):
                raise self.failed(error) from error
            raise

    def begin(self) -> None:
        """The start of a transaction that `commit` or `rollback` ends."""
        self.must_be_ours()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise self.failed(error) from error

    def commit(self) -> None:
        """Everything since `begin` is durable, or nothing of it happened."""
        self.must_be_ours()
        try:
            self._connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            self.rollback()
            self._make_room(error)
            raise self.failed(error) from error

    def _make_room(self, error: sqlite3.OperationalError) -> None:
        """The log is folded after a commit: a disk that is too full for one would stay so."""
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL and not self._is_held:
            with contextlib.suppress(sqlite3.OperationalError):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def defer_syncs(self) -> None:
        """From now on a commit survives `kill -9`, and a power loss once `sync` was called after it.

        SQLite takes its locks on the database, never on the log, so a descriptor of our own does no harm.
        """
        self._log = os.open(f"{self.path}-wal", os.O_RDONLY)
        self._connection.execute("PRAGMA synchronous = NORMAL")

    @property
    def defers_syncs(self) -> bool:
        return self._log is not None

    def sync(self) -> None:
        """Everything that was committed before the call survives a power loss; may be called in a thread.

        Once it fails it fails for good: the kernel tells only once that it could not write, and forgets it.
        """
        self.must_be_ours()
        if self._log is None:
            return
        with self._syncing:
            if self._sync_failed is None:
                try:
                    _datasync(self._log)
                except OSError as error:
                    self._sync_failed = f"{self.path}: its log cannot be synced: {error.strerror}"
            if self._sync_failed is not None:
                raise StoreFailedError(self._sync_failed)

    def rollback(self) -> None:
        """Take everything since `begin` back, if SQLite has not done so by itself."""
        if not self._forked and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def failed(self, error: sqlite3.Error) -> StoreFailedError:
        return StoreFailedError(f"{self.path}: {error}")

    def probe(self) -> None:
        """Write what is already there, to find out whether the store takes writes."""
        with self.transaction() as sql:
            sql.execute(f"PRAGMA application_id = {self._owner.application}")

    @property
    def reading(self) -> sqlite3.Connection:
        """For statements that only read."""
        return self._connection

    def backup(
        self,
        target: Path,
        progress: Callable[[int, int], None] | None = None,
        change: Callable[[sqlite3.Connection], object] | None = None,
    ) -> None:
        """A consistent copy in a new file, changed and synced before it gets its name; `progress` gets page
        counts."""
        if target.exists():
            raise FileExistsError(f"{target} exists: a backup never overwrites a file")
        partial = target.with_name(target.name + ".partial")
        partial.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL, _PRIVATE))
        try:
            with contextlib.closing(sqlite3.connect(partial)) as copy:

                def step(_status: int, remaining: int, total: int) -> None:
                    if progress is not None:
                        progress(total - remaining, total)

                self._connection.backup(copy, pages=1024, progress=step)
                if change is not None:
                    with copy:
                        change(copy)
            sync_whole(partial)
            os.rename(partial, target)
            sync_whole(target.parent)
        except BaseException as error:
            for left in ("", "-wal", "-shm"):
                partial.with_name(partial.name + left).unlink(missing_ok=True)
            if isinstance(error, sqlite3.OperationalError):
                raise StoreFailedError(f"{target} was not made: {error}") from error
            raise

    @contextlib.contextmanager
    def held(self) -> Iterator[Path]:
        """The file, whole as of now and unchanged until the end of the block: commits go to the log only.

        It is for another process to copy. SQLite's locks on it would end as soon as this one closed it.
        """
        self.must_be_ours()
        if self._is_held:
            raise StoreFailedError(f"{self.path}: another copy of it is being made")
        try:
            ((busy, _, _),) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if busy:
                raise StoreFailedError(f"{self.path}: it is being read, try again")
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        except sqlite3.OperationalError as error:
            raise StoreFailedError(f"{self.path}: {error}") from error
        self._is_held = True
        try:
            yield self.path
        finally:
            self._is_held = False
            with contextlib.suppress(sqlite3.ProgrammingError):  # closed meanwhile
                _bound_log(self._connection, self.path)

    def erase(self) -> None:
        """Fold the log into the file and empty it: what was replaced or deleted is then in neither.

        Deleted rows are overwritten in the file itself (`secure_delete`); the log keeps them until this.
        """
        self.must_be_ours()
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.OperationalError as error:
            raise self.failed(error) from error
        if not self._is_held:
            _bound_log(self._connection, self.path)

    def must_be_ours(self) -> None:
        """`StoreFailedError` in a fork of the process that opened it."""
        if self._forked:
            raise StoreFailedError(
                f"{self.path} is open in the process that this one is a fork of: open it later"
            )

    def forked(self) -> None:
        """This process is a fork of the one that has the file. It has no lock on it, and would delete the log
        with what the other one commits by closing the connection: it is never closed here."""
        import ctypes

        self._forked = True
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))

    def close(self) -> None:
        """Folds the log into the file and closes it."""
        _opened.discard(self)
        if not self._forked:
            self._connection.close()
        if self._log is not None:
            os.close(self._log)
            self._log = None


_opened: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


def _forked() -> None:
    for store in list(_opened):
        store.forked()


os.register_at_fork(after_in_child=_forked)


def _check_owner(connection: sqlite3.Connection, path: Path, owner: Owner) -> None:
    """Before anything is written: accept only an empty file, or one of this owner."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not tables or application == owner.application:
        return
    if application == _UNNAMED:
        statement = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?"
        ((found,),) = connection.execute(statement, (owner.table,))
        if found:
            return
        raise NotTheirStoreError("server of another kind", owner.name)
    if application in _OWNERS:
        raise NotTheirStoreError(_OWNERS[application].name, owner.name)
    raise NotOurFileError(path)


def look(path: Path, owner: Owner, known: int) -> Seen:
    """Whose file it is and its schema version, from its header: opening it would write beside it."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
    except FileNotFoundError as error:
        raise StoreFailedError(f"there is no store at {path}") from error
    except OSError as error:
        raise StoreFailedError(f"{path}: {error.strerror or error}") from error
    if not head.startswith(_MAGIC) or len(head) < _HEADER.size:
        raise NotOurFileError(path)
    version, application = _HEADER.unpack(head)
    if application != owner.application and application in _OWNERS:
        raise NotTheirStoreError(_OWNERS[application].name, owner.name)
    return seen(version, known)


def peek(path: Path, statement: str) -> Any:
    """One value of a store that nobody uses, without a lock or a file beside it; None if it cannot be read.

    What is only in the log of a killed process is not seen.
    """
    try:
        address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as reading:
            row = reading.execute(statement).fetchone()
    except sqlite3.Error:
        return None
    return None if row is None else row[0]


def _prepare(connection: sqlite3.Connection, path: Path, owner: Owner, durability: Durability) -> None:
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        _check_owner(connection, path, owner)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA application_id = {owner.application}")
        connection.execute(f"PRAGMA synchronous = {'FULL' if durability is Durability.FULL else 'NORMAL'}")
        _bound_log(connection, path)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreInUseError(path) from error
        raise
    except sqlite3.DatabaseError as error:
        raise NotOurFileError(path) from error


def _bound_log(connection: sqlite3.Connection, path: Path) -> None:
    """Fold the log before the disk is too full for that."""
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    room = shutil.disk_usage(path.parent).free // _LOG_SHARE // page
    connection.execute(f"PRAGMA wal_autocheckpoint = {max(_LOG_PAGES_MIN, min(_LOG_PAGES, room))}")


def _migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > len(migrations):
        raise StoreVersionError(found, len(migrations))
    for number, migration in enumerate(migrations[found:], found + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            if callable(migration):
                migration(connection)
            else:
                for statement in _statements(migration):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # a full disk may have ended it
                connection.execute("ROLLBACK")
            raise


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, triggers with their inner semicolons whole."""
    pending = ""
    for piece in script.split(";"):
        pending += piece + ";"
        if sqlite3.complete_statement(pending):
            if pending.strip(" \n\t;"):
                yield pending
            pending = ""


def datasync(descriptor: int) -> None:
    """What was written there survives a power loss; `OSError` if not."""
    _datasync(descriptor)


def sync_whole(path: Path) -> None:
    """The same for a file with its size and dates, or for a folder with its names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
