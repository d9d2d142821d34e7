"""The relational store: whole transactions, numbered migrations, one process, consistent backups."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blindpost.engine.loop import StoreFailedError
from blindpost.store.contract import StoreVersionError
from blindpost.store.copying import copy_beside
from blindpost.store.sqlite import NTF, NotOurFileError, SqliteStore, StoreInUseError

ONE = """
CREATE TABLE letters (number INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE counts (letters INTEGER NOT NULL) STRICT;
INSERT INTO counts VALUES (0);
CREATE TRIGGER counted AFTER INSERT ON letters BEGIN
    UPDATE counts SET letters = letters + 1;
    UPDATE counts SET letters = letters;
END;
"""
TWO = "ALTER TABLE letters ADD COLUMN seen INTEGER NOT NULL DEFAULT 0"


def letters(store: SqliteStore) -> int:
    (count,) = store.reading.execute("SELECT letters FROM counts").fetchone()
    (rows,) = store.reading.execute("SELECT count(*) FROM letters").fetchone()
    assert count == rows
    return int(count)


def put(store: SqliteStore, number: int) -> None:
    with store.transaction() as sql:
        sql.execute("INSERT INTO letters (number, body) VALUES (?, ?)", (number, b"letter"))


def test_a_transaction_is_atomic(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "a.db", [ONE], NTF)
    put(store, 1)
    with pytest.raises(sqlite3.IntegrityError), store.transaction() as sql:
        sql.executemany("INSERT INTO letters (number, body) VALUES (?, x'00')", [(2,), (3,), (1,)])
    assert letters(store) == 1
    put(store, 2)
    assert letters(store) == 2
    store.close()


def test_the_file_is_private_to_its_owner(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "a.db", [ONE], NTF)
    put(store, 1)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    store.close()
    assert modes == {0o600}


def test_migrations_run_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore.open(path, [ONE], NTF)
    put(store, 1)
    store.close()
    store = SqliteStore.open(path, [ONE, TWO], NTF)
    assert store.reading.execute("SELECT number, seen FROM letters").fetchall() == [(1, 0)]
    store.close()
    store = SqliteStore.open(path, [ONE, TWO], NTF)
    assert letters(store) == 1
    store.close()
    with pytest.raises(StoreVersionError, match="version 2"):
        SqliteStore.open(path, [ONE], NTF)


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    SqliteStore.open(path, [ONE], NTF).close()
    with pytest.raises(sqlite3.OperationalError):
        SqliteStore.open(path, [ONE, TWO + "; CREATE TABLE letters (x INTEGER)"], NTF)
    store = SqliteStore.open(path, [ONE, TWO], NTF)
    assert letters(store) == 0
    store.close()


def test_a_migration_may_be_a_function(tmp_path: Path) -> None:
    def fill(sql: sqlite3.Connection) -> None:
        sql.executemany("INSERT INTO letters (number, body) VALUES (?, x'00')", [(1,), (2,)])

    store = SqliteStore.open(tmp_path / "a.db", [ONE, fill], NTF)
    assert letters(store) == 2
    store.close()


def test_two_processes_never_share_a_store(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "a.db", [ONE], NTF)
    put(store, 1)
    with pytest.raises(StoreInUseError, match="another process"):
        SqliteStore.open(tmp_path / "a.db", [ONE], NTF)
    store.close()
    SqliteStore.open(tmp_path / "a.db", [ONE], NTF).close()


def test_a_foreign_file_is_not_touched(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be looked at " * 50)
    before = text.read_bytes()
    with pytest.raises(NotOurFileError, match=r"notes\.txt"):
        SqliteStore.open(text, [ONE], NTF)
    assert text.read_bytes() == before
    other = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(other)) as foreign:
        foreign.execute("CREATE TABLE theirs (x)")
    before = other.read_bytes()
    with pytest.raises(NotOurFileError):
        SqliteStore.open(other, [ONE], NTF)
    assert other.read_bytes() == before


def test_a_backup_is_consistent_and_never_overwrites(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "a.db", [ONE], NTF)
    put(store, 1)
    steps: list[tuple[int, int]] = []
    store.backup(tmp_path / "copy.db", lambda done, every: steps.append((done, every)))
    assert steps[-1][0] == steps[-1][1] > 0
    put(store, 2)
    with pytest.raises(FileExistsError):
        store.backup(tmp_path / "copy.db")
    store.close()
    copy = SqliteStore.open(tmp_path / "copy.db", [ONE], NTF)
    assert letters(copy) == 1
    copy.close()
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"a.db", "copy.db"}


def test_a_backup_for_which_there_is_no_room_leaves_nothing(tmp_path: Path) -> None:
    """Neither while it is written, nor while it is changed."""
    store = SqliteStore.open(tmp_path / "a.db", [ONE], NTF)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    for options in ({"progress": full}, {"change": full}):
        with pytest.raises(StoreFailedError, match="not made: database or disk is full"):
            store.backup(tmp_path / "copy.db", **options)
        assert not list(tmp_path.glob("copy*"))
    store.backup(tmp_path / "copy.db", change=lambda copy: copy.execute("DELETE FROM letters"))
    store.close()
    assert {path.name for path in tmp_path.iterdir()} == {"a.db", "copy.db"}


async def test_a_held_file_is_copied_while_commits_continue(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "a.db", [ONE], NTF)
    put(store, 1)
    with store.held() as file:
        put(store, 2)
        copying = asyncio.create_task(copy_beside(file, tmp_path / "copy.db"))
        for number in range(3, 30):
            with store.transaction() as sql:  # in all more than the log may usually hold
                sql.execute("INSERT INTO letters (number, body) VALUES (?, zeroblob(300000))", (number,))
            await asyncio.sleep(0)
        with pytest.raises(StoreFailedError, match="another copy"), store.held():
            pass
        await copying
    with pytest.raises(StoreFailedError, match="exists"):
        await copy_beside(tmp_path / "a.db", tmp_path / "copy.db")
    copy = SqliteStore.open(tmp_path / "copy.db", [ONE], NTF)
    assert letters(copy) == 1
    copy.close()
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    assert letters(store) == 29
    program = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('SELECT 1 FROM counts')"
    words = [sys.executable, "-c", program, str(tmp_path / "a.db")]
    other = await asyncio.to_thread(lambda: subprocess.run(words, capture_output=True, text=True))
    assert "locked" in other.stderr, "our lock is still there"
    store.close()


def test_a_full_disk_rolls_back_the_transaction(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "a.db", [ONE], NTF)
    put(store, 1)
    store.reading.execute("PRAGMA max_page_count = 8")
    with pytest.raises(StoreFailedError, match="full"), store.transaction() as sql:
        sql.execute("INSERT INTO letters (number, body) VALUES (2, zeroblob(100000))")
    assert letters(store) == 1
    store.reading.execute("PRAGMA max_page_count = 10000")
    put(store, 2)
    store.close()


class SmallDisk(sqlite3.Connection):
    """A disk on which the log may have so many bytes."""

    log_max = 1 << 40

    def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            ((_, _, path),) = super().execute("PRAGMA database_list").fetchall()
            if os.path.getsize(f"{path}-wal") > self.log_max:
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
        return super().execute(sql, *given)


def refused(store: SqliteStore, number: int) -> None:
    with pytest.raises(StoreFailedError, match="full"):
        put(store, number)


def test_a_log_for_which_there_is_no_room_is_folded(tmp_path: Path) -> None:
    """Not while somebody copies the file."""
    log = tmp_path / "a.db-wal"
    store = SqliteStore.open(tmp_path / "a.db", [ONE], NTF, connection_type=SmallDisk)
    assert isinstance(store.reading, SmallDisk)
    with store.held():
        for number in range(10):
            put(store, number)
        store.reading.log_max = log.stat().st_size - 1
        for _ in range(2):
            refused(store, 10)
        assert log.stat().st_size > store.reading.log_max
    refused(store, 10)
    assert log.stat().st_size == 0
    put(store, 10)
    assert letters(store) == 11
    store.close()


@pytest.mark.parametrize(
    ("free", "pages"), [(1 << 40, 4000), (6 << 20, 384), (65_536_000, 4000), (65_535_999, 3999), (0, 100)]
)
def test_a_log_leaves_room_to_be_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, pages: int
) -> None:
    asked: list[Path] = []

    def disk_usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(free=free)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    store = SqliteStore.open(tmp_path / "a.db", [ONE], NTF)

    def bound() -> int:
        return int(store.reading.execute("PRAGMA wal_autocheckpoint").fetchone()[0])

    assert bound() == pages
    free = 10 << 20
    store.erase()
    assert bound() == 640
    with store.held():
        assert bound() == 0
        store.erase()
        assert bound() == 0
        free = 5 << 20
    assert bound() == 320
    assert set(asked) == {tmp_path}
    store.close()


CHILD = """
import sys
from pathlib import Path
from blindpost.store.sqlite import NTF, SqliteStore
from tests.store.test_sqlite import ONE, put
store = SqliteStore.open(Path(sys.argv[1]), [ONE], NTF)
number = 0
while True:
    number += 1
    put(store, number)
    print(number, flush=True)
"""


FORKED = """
import os, signal, sys
from pathlib import Path
from blindpost.engine.loop import StoreFailedError
from blindpost.store.sqlite import NTF, SqliteStore
from tests.store.test_sqlite import ONE, put
store = SqliteStore.open(Path(sys.argv[1]), [ONE], NTF)
store.defer_syncs()
closed = SqliteStore.open(Path(sys.argv[1] + ".other"), [ONE], NTF)
closed.close()
put(store, 1)
if not os.fork():
    for what in (store.begin, store.commit, store.sync, store.erase, store.held().__enter__):
        try:
            what()
        except StoreFailedError as error:
            print(error)
    store.rollback()
    if sys.argv[2] == "closes":
        store.close()
        del store
    sys.exit()
os.wait()
put(store, 2)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["closes", "ends"])
def test_a_fork_leaves_the_store_to_the_process_that_has_it(tmp_path: Path, how: str) -> None:
    """Whatever it does: SQLite would delete the log."""
    path = tmp_path / "a.db"
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(path), how],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    assert done.stdout == 5 * f"{path} is open in the process that this one is a fork of: open it later\n"
    store = SqliteStore.open(path, [ONE], NTF)
    assert letters(store) == 2
    store.close()


def test_what_was_committed_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as child:
        assert child.stdout is not None
        last = 0
        for line in child.stdout:
            last = int(line)
            if last == 20:
                child.send_signal(signal.SIGKILL)
    store = SqliteStore.open(path, [ONE], NTF)
    assert letters(store) >= last >= 20
    store.close()
