"""The agent's file: opened, unlocked, copied; and the handle that every function of these tables takes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sqlite3
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from blindpost.agent.errors import InactiveError
from blindpost.agent.model import ConnId
from blindpost.agent.store import lives
from blindpost.agent.store.grouping import PARTS_MAX, UNSYNCED_MAX, Group
from blindpost.agent.store.intake import KEY_SIZE, Came, Entry, Intake, Record, left_at
from blindpost.agent.store.remembering import RememberingConnection
from blindpost.agent.store.schema import MIGRATIONS, add_functions
from blindpost.agent.store.syncing import SyncThread
from blindpost.agent.store.upgrading import seal_anew
from blindpost.agent.store.vault import STRETCHING, Stretching, Vault, open_vault
from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.engine.loop import StoreFailedError
from blindpost.store.contract import Durability
from blindpost.store.sqlite import AGENT, SqliteStore
from blindpost.wire.value import Buffer

_KEPT_MAX = 2048
COPY = "copy"
MARK_COPY = "INSERT OR REPLACE INTO settings (name, value) VALUES (?, x'01')"
ERASED_AFTER_S = 30.0
"""What a transaction replaces or deletes, such as ratchet keys, is in no file any more after this time."""

V = TypeVar("V")
log = logging.getLogger(__name__)


class Memo:
    """Values that were read from rows, by the rows themselves: what did not change is not read again.

    A row that changed is another key, so nothing here can be out of date; the oldest go first.
    """

    def __init__(self, most: int = _KEPT_MAX) -> None:
        self._most = most
        self._kept: dict[Hashable, Any] = {}

    def of(self, kind: str, row: Hashable, read: Callable[[], V]) -> V:
        """What `read` makes of this row."""
        found: V | None = self._kept.get((kind, row))
        return self.keep(kind, row, read()) if found is None else found

    def keep(self, kind: str, row: Hashable, value: V) -> V:
        """Remember what a row is read as."""
        self._kept[kind, row] = value
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]
        return value


class Db:
    """SQL, the vault of the secret columns, and what was read from them."""

    __slots__ = ("memo", "sql", "vault")

    def __init__(self, sql: RememberingConnection, vault: Vault, memo: Memo) -> None:
        self.sql = sql
        self.vault = vault
        self.memo = memo


def _intake(sql: sqlite3.Connection, path: Path, vault: Vault, entropy: Entropy) -> Intake:
    """The log beside a store, which has its key."""
    sql.execute("INSERT OR IGNORE INTO settings (name, value) VALUES ('intake', ?)", (entropy(KEY_SIZE),))
    (key,) = sql.execute("SELECT value FROM settings WHERE name = 'intake'").fetchone()
    beside = path.with_name(f"{path.name}-intake")
    return Intake(beside, key, vault, entropy, left_at(beside, key, vault))


class AgentStore:
    """One agent's connections, keys and messages. This process is the only one that has it open."""

    def __init__(self, file: SqliteStore, vault: Vault, intake: Intake, *, was_cut: bool) -> None:
        self._file = file
        self.intake = intake
        intake.on_failure = self._break
        self.was_cut = was_cut
        """Whether the program was killed the last time, or had told a router something that is not stored, or
        told it later, since this is a copy."""
        self.unsure = lives.in_doubt(file.reading) if was_cut else set[tuple[ConnId, int]]()
        """Messages that were acknowledged to their routers while the store does not say so yet, in this life
        or the one that was cut before it."""
        assert isinstance(file.reading, RememberingConnection)
        self._db = Db(file.reading, vault, Memo())
        self._closed = False
        self._inside = False
        self._erasing: asyncio.TimerHandle | None = None
        self._group: Group | None = None
        """The group that parts join."""
        self._committed: list[Group] = []
        """Groups that a power loss would take back."""
        self._under_sync: list[Group] = []
        """Those of them that the thread is about to make durable."""
        self._thread = SyncThread()
        self._broken: StoreFailedError | None = None
        self.on_break: Callable[[StoreFailedError], None] | None = None
        """Called when nothing is taken any more until the next start."""

    @classmethod
    def open(
        cls,
        path: Path,
        passphrase: str | None = None,
        *,
        durability: Durability = Durability.FULL,
        entropy: Entropy = system_entropy,
        stretching: Stretching = STRETCHING,
    ) -> AgentStore:
        """The store at `path`, made if there is none; a new one is sealed with the passphrase, if any."""
        file = SqliteStore.open(path, MIGRATIONS, AGENT, durability, RememberingConnection)
        try:
            add_functions(file.reading)
            with file.transaction() as sql:
                unused = "SELECT NOT EXISTS (SELECT 1 FROM settings WHERE name = 'made')"
                (new,) = sql.execute(unused).fetchone()
                vault, first = open_vault(sql, passphrase, entropy, stretching, new=bool(new))
                if first is not None:
                    seal_anew(sql, first, vault)
                sql.execute("INSERT OR IGNORE INTO settings (name, value) VALUES ('made', x'01')")
                is_copy = lives.is_other_file(sql, path)
                if is_copy:
                    sql.execute(MARK_COPY, (COPY,))
                intake = _intake(sql, path, vault, entropy)
                was_cut = not lives.ended_surely(sql) or is_copy or bool(intake.left)
                life = lives.begin(sql, path, entropy)
            lives.finish(path, life)
            if first is not None:
                file.erase()
            if durability is Durability.FULL:
                file.defer_syncs()
            return cls(file, vault, intake, was_cut=was_cut)
        except BaseException:
            file.close()
            raise

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Db]:
        """All of the block's changes, durable when it ends, or none; with them what joined before."""
        with self.part():
            yield self._db
        self.commit()

    @contextlib.contextmanager
    def part(self, *, sure: bool = False, spare: bool = False, seldom: bool = False) -> Iterator[Group]:
        """All of the block's changes, or none; they are committed with their group. One that is `sure` to
        raise before it changes anything needs no savepoint; otherwise all of the group is taken back. One
        that `seldom` raises later needs none where all before it are `spare`: those may be taken back."""
        sql = self.reading.sql
        if self._inside:
            raise RuntimeError("a transaction inside of another one")
        if self._broken is not None:
            raise StoreFailedError(*self._broken.args)
        if self._group is not None and self._group.parts >= PARTS_MAX:
            self._write()
        group, first = self._group, self._group is None
        saved = group is not None and not sure and not (seldom and group.spare)
        try:
            if group is None:
                self._file.begin()
                group = self._group = Group(self)
            elif saved:
                sql.execute("SAVEPOINT part")
            before = sql.total_changes
            try:
                self._inside = True
                try:
                    yield group
                finally:
                    self._inside = False
            except sqlite3.OperationalError:
                raise
            except BaseException:
                if first or (not saved and sql.total_changes != before):
                    self._drop(StoreFailedError("it was taken back"))
                elif saved:
                    sql.execute("ROLLBACK TO part")
                    sql.execute("RELEASE part")
                raise
            if saved:
                sql.execute("RELEASE part")
        except sqlite3.OperationalError as error:
            failure = self._file.failed(error)
            self._drop(failure)
            raise failure from error
        group.parts += 1
        group.spare = spare and (first or group.spare)

    def _drop(self, failure: StoreFailedError) -> None:
        """Nothing of the group happens."""
        group, self._group = self._group, None
        self._file.rollback()
        if group is not None:
            group.ended(failure)
        self._sync_if_due()

    def _write(self) -> None:
        """Commit the group, then do what follows from it."""
        group, self._group = self._group, None
        if group is None:
            return
        try:
            self._file.commit()
        except StoreFailedError as failure:
            group.ended(failure)
            self._sync_if_due()
            raise
        if self._erasing is None:
            with contextlib.suppress(RuntimeError):  # outside of a loop closing the store erases
                self._erasing = asyncio.get_running_loop().call_later(ERASED_AFTER_S, self._erase)
        if self._file.defers_syncs:
            self._committed.append(group)
            if group.awaited:
                self._begin_sync()  # while what follows from it happens
            group.committed()
        else:
            group.committed()
            group.ended()

    def commit(self) -> None:
        """Make everything durable, waiting for the disk."""
        self._write()
        if not self._committed and not self._under_sync:
            return
        try:
            self._file.sync()
        except StoreFailedError as failure:
            self._break(failure)
            raise
        ended, self._committed, self._under_sync = [*self._under_sync, *self._committed], [], []
        for group in ended:
            group.ended()

    def write(self) -> None:
        """Commit the group that is open, unless the disk is busy: then it waits, and takes others along."""
        if self._under_sync:
            return
        self._write()
        self._sync_if_due()

    def _sync_if_due(self) -> None:
        if len(self._committed) >= UNSYNCED_MAX or any(group.awaited for group in self._committed):
            self._begin_sync()

    def sync(self) -> None:
        """Make durable what is committed; a commit that comes in this moment is taken along."""
        asyncio.get_running_loop().call_soon(self._sync_now)

    def _sync_now(self) -> None:
        if self._group is None or not self._group.hurried:
            self._begin_sync()

    def _begin_sync(self) -> None:
        """Let the thread make durable what is committed; what comes meanwhile is next."""
        if self._under_sync or not self._committed:
            return
        self._under_sync, self._committed = self._committed, []
        try:
            syncing = asyncio.get_running_loop().run_in_executor(self._thread, self._file.sync)
        except RuntimeError:  # the machine has no thread for us
            with contextlib.suppress(StoreFailedError):  # who waits is told
                self.commit()
            return
        syncing.add_done_callback(functools.partial(self._synced, self._under_sync))

    def _synced(self, groups: list[Group], syncing: asyncio.Future[None]) -> None:
        if self._under_sync is not groups:
            return  # they were made durable without the thread
        error = syncing.exception()
        if error is not None:
            self._break(error if isinstance(error, StoreFailedError) else StoreFailedError(repr(error)))
            return
        self._under_sync = []
        for group in groups:
            group.ended()
        if self._group is not None and self._group.hurried:
            with contextlib.suppress(StoreFailedError):  # who waits for it is told
                self.write()
        else:
            self._sync_if_due()

    def _break(self, failure: StoreFailedError) -> None:
        """The disk lost something, and nobody can say what: nothing is taken and nothing leaves any more."""
        log.critical("the store needs a repaired disk, then a restart: %s", failure)
        self._broken = failure
        self.intake.fail()
        ended, self._committed, self._under_sync = [*self._under_sync, *self._committed], [], []
        self._drop(failure)
        for group in ended:
            group.ended(failure)
        if self.on_break is not None:
            self.on_break(failure)

    def came(self, came: Came, body: Buffer) -> Entry | None:
        """Make a message durable as it came, with what the program is done with, while it is opened. None:
        it is durable only with what comes of it."""
        if self._broken is not None or not self._file.defers_syncs:
            return None
        self._file.must_be_ours()
        done = () if self._group is None else tuple(self._group.done)
        return self.intake.add(Record(came, done, body))

    async def durable(self, name: Hashable = None) -> None:
        """Wait until everything that can be read is durable, or what a part gave this name: what leaves the
        program must be."""
        group = self._not_durable(name)
        if group is not None:
            await group.durable()

    def once_durable(self, name: Hashable, work: Callable[[bool], None]) -> None:
        """Do this in the moment in which what has this name is durable, which may be now, or turns out not to
        be."""
        group = self._not_durable(name)
        if group is None:
            work(True)
        else:
            group.leave(work)

    def _not_durable(self, name: Hashable) -> Group | None:
        """The last group with this name, or of all, that a power loss would take back."""
        if self._broken is not None:
            raise StoreFailedError(*self._broken.args)
        groups = [*self._under_sync, *self._committed, *([] if self._group is None else [self._group])]
        return next((group for group in reversed(groups) if name is None or name in group.names), None)

    async def is_durable(self, name: Hashable = None) -> bool:
        """The same for what was just read: false if it was taken back meanwhile, and is to be read again;
        `StoreFailedError` if this store is trusted no more, and would say so for ever."""
        try:
            await self.durable(name)
        except StoreFailedError:
            if self._broken is not None:
                raise
            return False
        return True

    @property
    def is_broken(self) -> bool:
        """Whether nothing is taken any more until the next start."""
        return self._broken is not None

    def _erase(self) -> None:
        self._erasing = None
        try:
            self.commit()
            self._file.erase()
        except StoreFailedError as error:
            log.warning("what was deleted stays in the store's log for now: %s", error)

    @property
    def reading(self) -> Db:
        """For functions that only read."""
        if self._closed:
            raise InactiveError("the agent is closed")
        return self._db

    def backup(self, target: Path) -> None:
        """A consistent copy, sealed like the store itself and marked as a copy."""
        if self._inside:
            raise RuntimeError("a backup inside of a transaction")

        def mark(copy: sqlite3.Connection) -> None:
            copy.execute(MARK_COPY, (COPY,))

        self.commit()
        self._file.backup(target, change=mark)

    @property
    def is_copy(self) -> bool:
        """Whether this file is a copy, made by `backup` or otherwise, that has not done yet what it must."""
        query = "SELECT EXISTS (SELECT 1 FROM settings WHERE name = ?)"
        return bool(self._db.sql.execute(query, (COPY,)).fetchone()[0])

    def forget_copy(self) -> None:
        """A copy has done what it must do first."""
        with self.transaction() as db:
            db.sql.execute("DELETE FROM settings WHERE name = ?", (COPY,))

    def close(self) -> None:
        ended: bytes | None = None
        try:
            self.commit()
            if self._broken is None and not self._closed:
                with self._file.transaction() as sql:
                    life = lives.begin(sql, self._file.path, system_entropy)
                    if not self.unsure:
                        lives.end_surely(sql)
                ended = life  # only what was committed may stand beside it
        except StoreFailedError as error:
            log.warning("what nobody waited for was not stored, and will be done again: %s", error)
        except OSError:
            log.warning("%s was moved or deleted while it was open", self._file.path)
        if self._erasing is not None:
            self._erasing.cancel()
        self._closed = True
        self._thread.shutdown()
        self.intake.close(is_stored=ended is not None)
        self._file.close()
        if ended is not None:
            with contextlib.suppress(StoreFailedError):  # the number before it is beside it, and known too
                lives.finish(self._file.path, ended)
