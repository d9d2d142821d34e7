"""The embedded store: all of a commit or none of it, growth, walks in chunks, migrations, backups."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from blindpost.engine.loop import StoreFailedError
from blindpost.store.contract import Durability, StoreVersionError
from blindpost.store.lmdb import LmdbStore, Write, copy_store, look

ROWS = "rows"


def rows(store: LmdbStore) -> dict[bytes, bytes]:
    with store.read() as read:
        return dict(read.page(ROWS, b"", 1000).rows)


def test_changes_are_applied_in_order(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, [ROWS], owner="router")
    store.commit([(ROWS, b"a", b"1"), (ROWS, b"b", b"2"), (ROWS, b"a", None), (ROWS, b"b", b"3")])
    assert rows(store) == {b"b": b"3"}
    store.close()


def test_a_failed_commit_leaves_nothing_behind(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, [ROWS], owner="router")
    with pytest.raises(StoreFailedError):
        store.commit([(ROWS, b"a", b"1"), (ROWS, b"k" * 600, b"a key longer than the store takes")])
    assert rows(store) == {}
    store.commit([(ROWS, b"a", b"2")])
    assert rows(store) == {b"a": b"2"}
    store.close()


def test_the_map_grows_while_in_use_and_keeps_its_size_on_reopening(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, [ROWS], owner="router", durability=Durability.OS, map_size=1 << 20)
    body = bytes(16_000)
    for number in range(200):
        store.commit([(ROWS, number.to_bytes(8, "big"), body)])
    store.close()
    again = LmdbStore(tmp_path, [ROWS], owner="router", map_size=1 << 20)
    with again.read() as read:
        assert read.count(ROWS) == 200
        assert read.get(ROWS, (199).to_bytes(8, "big")) == body
    again.close()


def test_the_map_does_not_move_under_a_reader(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, [ROWS], owner="router", map_size=1 << 20)
    store.commit([(ROWS, b"a", b"1")])
    writing = threading.Thread(target=store.commit, args=([(ROWS, b"b", bytes(4 << 20))],))
    with store.read() as read:
        writing.start()
        writing.join(0.2)
        assert writing.is_alive(), "it waits for the reader"
        assert read.get(ROWS, b"a") == b"1"
    writing.join()
    assert rows(store) == {b"a": b"1", b"b": bytes(4 << 20)}
    store.close()


def test_many_rows_are_read_at_once(tmp_path: Path) -> None:
    """Only existing rows: keys that have none, or could not have one, are left out."""
    store = LmdbStore(tmp_path, [ROWS], owner="router")
    store.commit([(ROWS, b"a", b"1"), (ROWS, b"b", b""), (ROWS, b"c", b"3")])
    with store.read() as read:
        assert read.get_many(ROWS, {b"a", b"b", b"d", b""}) == {b"a": b"1", b"b": b""}
        assert read.get_many(ROWS, set()) == {}
    store.close()


def test_a_walk_goes_in_chunks_within_its_prefix(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, [ROWS], owner="router", durability=Durability.OS)
    store.commit([(ROWS, bytes([group, number]), b"") for group in (1, 2, 3) for number in range(5)])
    seen: list[bytes] = []
    start: bytes | None = b"\x02"
    chunks = 0
    while start is not None:
        with store.read() as read:
            page = read.page(ROWS, start, 2, prefix=b"\x02")
        seen += [key for key, _ in page.rows]
        start, chunks = page.following, chunks + 1
    assert seen == [bytes([2, number]) for number in range(5)]
    assert chunks == 3
    store.close()


def test_what_was_committed_survives_kill_9(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from blindpost.store.lmdb import LmdbStore
        store = LmdbStore(Path(sys.argv[1]), ["rows"], owner="router")
        store.commit([("rows", b"a", b"1")])
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert killed.returncode == -9
    store = LmdbStore(tmp_path, [ROWS], owner="router")
    assert rows(store) == {b"a": b"1"}
    store.close()


def test_migrations_run_once_each_in_order_and_a_newer_store_is_refused(tmp_path: Path) -> None:
    def first(write: Write) -> None:
        write.put(ROWS, b"order", b"1")

    def second(write: Write) -> None:
        before = write.get(ROWS, b"order")
        assert before is not None
        write.put(ROWS, b"order", before + b"2")

    LmdbStore(tmp_path, [ROWS], owner="router", migrations=[first]).close()
    LmdbStore(tmp_path, [ROWS], owner="router", migrations=[first, second]).close()
    store = LmdbStore(tmp_path, [ROWS], owner="router", migrations=[first, second])
    assert rows(store) == {b"order": b"12"}
    store.close()
    with pytest.raises(StoreVersionError, match="schema version 2"):
        LmdbStore(tmp_path, [ROWS], owner="router", migrations=[first])


def test_a_migration_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    def broken(write: Write) -> None:
        write.put(ROWS, b"half", b"done")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        LmdbStore(tmp_path, [ROWS], owner="router", migrations=[broken])
    store = LmdbStore(tmp_path, [ROWS], owner="router")
    assert rows(store) == {}
    store.close()


def test_a_backup_is_an_independent_store(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "live", [ROWS], owner="router")
    store.commit([(ROWS, b"a", b"1")])
    store.backup(tmp_path / "copy")
    store.commit([(ROWS, b"a", b"2")])
    store.close()
    copy = LmdbStore(tmp_path / "copy", [ROWS], owner="router")
    assert rows(copy) == {b"a": b"1"}
    copy.close()


def test_files_are_private_to_their_owner(tmp_path: Path) -> None:
    """Whatever the folder and the umask allow."""
    before = os.umask(0)
    try:
        live, copy, other = (tmp_path / name for name in ("live", "copy", "other"))
        store = LmdbStore(live, [ROWS], owner="router")
        store.backup(copy)
        store.close()
        other.mkdir()
        copy_store(live, other)
    finally:
        os.umask(before)
    files = [file for folder in (live, copy, other) for file in folder.iterdir()]
    assert sum(file.name == "data.mdb" for file in files) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def root_descriptor(folder: Path) -> int:
    """The descriptor through which the library writes its roots: the one that syncs each write."""
    for entry in Path("/proc/self/fd").iterdir():
        if entry.exists() and entry.readlink() == folder / "data.mdb":
            info = Path("/proc/self/fdinfo", entry.name).read_text()
            flags = re.search(r"^flags:\s+([0-7]+)$", info, re.MULTILINE)
            if flags is not None and int(flags[1], 8) & os.O_DSYNC:
                return int(entry.name)
    raise AssertionError("the store is not open")


def break_root(folder: Path) -> None:
    """Let pages be written, but fail with "no space" when the root is."""
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, root_descriptor(folder))
    os.close(full)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="NOT RUN: the system has no /dev/full")
def test_a_root_that_cannot_be_written_does_not_break_the_store(tmp_path: Path) -> None:
    """As on copy-on-write file systems: the commit fails and the next one finds the store intact."""
    store = LmdbStore(tmp_path, [ROWS], owner="router")
    store.commit([(ROWS, b"a", b"1")])
    for turn in range(2):
        break_root(tmp_path)
        with pytest.raises(StoreFailedError, match=r"the disk is full$"):
            store.commit([(ROWS, b"b", b"2")])
        assert rows(store) == {b"a": b"1"} | {b"%d" % before: b"" for before in range(turn)}
        store.commit([(ROWS, b"%d" % turn, b"")])
    store.close()
    again = LmdbStore(tmp_path, [ROWS], owner="router")
    assert rows(again) == {b"a": b"1", b"0": b"", b"1": b""}
    again.close()


def test_a_commit_that_reports_failure_but_was_written_counts_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LmdbStore(tmp_path, [ROWS], owner="router")
    begin = store._begin

    @contextmanager
    def failing(*, write: bool = False) -> Iterator[lmdb.Transaction]:
        with begin(write=write) as transaction:
            yield transaction
        if write:
            raise lmdb.DiskError("mdb_txn_commit: Input/output error")

    monkeypatch.setattr(store, "_begin", failing)
    store.commit([(ROWS, b"a", b"1")])
    monkeypatch.undo()
    assert rows(store) == {b"a": b"1"}
    store.close()


def test_a_short_write_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LmdbStore(tmp_path, [ROWS], owner="router")

    def short(write: Write) -> None:
        raise lmdb.DiskError("mdb_txn_commit: Input/output error")

    with pytest.raises(StoreFailedError, match="full or failing"):
        store.write(short)
    store.close()


def test_a_file_that_was_cut_is_refused_and_a_short_one_that_is_whole_is_not(tmp_path: Path) -> None:
    """Reading a page that is not there would end the process without a word."""
    store = LmdbStore(tmp_path / "lived", [ROWS], owner="router")
    store.commit([(ROWS, bytes([number]), bytes(3_000)) for number in range(50)])
    last = [(ROWS, b"never written", bytes(50_000)), (ROWS, b"never written", None)]
    store.commit(last)
    killed = Path(shutil.copytree(tmp_path / "lived", tmp_path / "killed"))
    store.close()
    short, whole = (folder / "data.mdb" for folder in (killed, tmp_path / "lived"))
    assert short.stat().st_size < whole.stat().st_size, "pages freed before they were written are left out"
    again = LmdbStore(killed, [ROWS], owner="router")
    assert len(rows(again)) == 50
    again.close()
    assert short.stat().st_size == whole.stat().st_size

    os.truncate(short, 3 * short.stat().st_size // 4)
    for use in (
        lambda: LmdbStore(killed, [ROWS], owner="router"),
        lambda: look(killed, "router", 1, runs=False),
        lambda: copy_store(killed, tmp_path),
    ):
        with pytest.raises(StoreFailedError, match=r"data\.mdb is cut short"):
            use()
