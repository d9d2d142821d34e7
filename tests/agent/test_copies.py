"""A store copied other than by `backup` recognises that it is a copy, and synchronises first."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from blindpost.agent import Agent, AgentConfig, CommandError, RatchetSync, Received, SyncState
from blindpost.agent.store import lives
from blindpost.agent.store.database import AgentStore
from blindpost.engine.loop import StoreFailedError
from blindpost.store.contract import Durability
from blindpost.store.sqlite import SqliteStore
from blindpost.testing import Peer, World, virtual


@virtual
async def test_nothing_sent_from_a_restored_file_is_lost(world: World) -> None:
    alice, bob = await world.pair()
    conn_id = alice.conn.id
    await alice.agent.close()
    path = world.folder / "alice.db"
    shutil.copy(path, world.folder / "kept.db")

    def opened() -> Agent:
        return Agent.open(path, [world.server], config=world.config())

    async with opened() as again:
        for number in range(3):
            await again.connection(conn_id).send(b"later %d" % number)
            await (await bob.expect(Received)).msg.ack()
    shutil.copy(world.folder / "kept.db", path)
    async with opened() as older:
        with pytest.raises(CommandError, match="synchronised"):
            await older.connection(conn_id).send(b"too early")
        await Peer(older).expect(RatchetSync, lambda event: event.state is SyncState.OK)
        await older.connection(conn_id).send(b"from the copy")
        assert (await bob.expect(Received)).msg.body == b"from the copy"
    async with opened() as once_more:
        await once_more.connection(conn_id).send(b"as any other")


@virtual
async def test_a_copy_made_while_ratchets_were_agreed_begins_again(world: World) -> None:
    """What it waits for came to the store that stayed in use, and will not come again."""
    alice, bob = await world.pair()
    conn_id, path, kept = alice.conn.id, world.folder / "alice.db", world.folder / "kept.db"
    await bob.agent.suspend()
    await alice.conn.synchronize(force=True)
    alice.agent.backup(kept)
    bob.agent.resume()
    await alice.expect(RatchetSync, lambda event: event.state is SyncState.OK)
    await bob.expect(RatchetSync, lambda event: event.state is SyncState.OK)
    await alice.agent.close()
    for state in (SyncState.STARTED, SyncState.AGREED):
        shutil.copy(kept, path)
        with contextlib.closing(sqlite3.connect(path)) as file, file:
            file.execute("UPDATE connections SET ratchet_sync_state = ?", (state.value,))
        async with Agent.open(path, [world.server], config=world.config()) as older:
            began = asyncio.get_running_loop().time()
            await Peer(older).expect(RatchetSync, lambda event: event.state is SyncState.OK)
            assert asyncio.get_running_loop().time() - began < 60, "not only when keys are offered again"
            await older.connection(conn_id).send(state.value.encode())
            came = await bob.expect(Received)
            assert came.msg.body == state.value.encode()
            await came.msg.ack()


def is_copy(path: Path) -> bool:
    store = AgentStore.open(path, durability=Durability.OS)
    try:
        return store.is_copy
    finally:
        store.close()


def test_which_files_count_as_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, beside = tmp_path / "a.db", tmp_path / "a.db-life"
    assert [is_copy(path) for _ in range(3)] == [False] * 3
    shutil.copy(path, tmp_path / "b.db")
    assert is_copy(tmp_path / "b.db"), "elsewhere"
    shutil.copy(path, tmp_path / "c.db")
    shutil.copy(beside, tmp_path / "c.db-life")
    assert is_copy(tmp_path / "c.db"), "elsewhere, with the file beside it"
    assert not is_copy(path), "the original"
    shutil.copy(path, tmp_path / "kept.db")
    assert not is_copy(path)
    shutil.copy(tmp_path / "kept.db", path)
    assert is_copy(path), "put back over what was newer"

    path = tmp_path / "d.db"
    assert not is_copy(path)

    def full(path: Path, life: bytes) -> None:
        raise StoreFailedError("no room for the number beside it")

    def no_room(file: SqliteStore) -> None:
        raise StoreFailedError("no room in the store")

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(lives, "finish", full)
            with pytest.raises(StoreFailedError):
                AgentStore.open(path)
    assert not is_copy(path), "it ended before the number of its opening was beside it, several times"
    store = AgentStore.open(path)
    with monkeypatch.context() as patch:
        patch.setattr(lives, "finish", full)
        store.close()
        with pytest.raises(StoreFailedError):
            AgentStore.open(path)
    assert not is_copy(path), "it ended before the number of its closing was beside it, and of an opening"
    store = AgentStore.open(path)
    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "commit", no_room)
        store.close()
    assert not is_copy(path), "the disk was full when it was closed"
    path.with_name("d.db-life").write_text("rubbish")
    assert is_copy(path)


async def test_a_program_may_go_to_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its store stays where it was when the agent was named, with all that is beside it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    agent = Agent.open("a.db", config=AgentConfig(subscribe=False))
    monkeypatch.chdir(elsewhere)
    async with agent:
        pass
    async with Agent.open(tmp_path / "a.db", config=AgentConfig(subscribe=False)) as agent:
        store = agent._ground.store
        assert not store.is_copy
        assert not store.was_cut
    assert os.listdir(elsewhere) == []


def test_a_copy_made_while_the_store_was_open_is_recognised_where_it_lay(tmp_path: Path) -> None:
    """As a snapshot of the folder has it: the file with its log, or both as one file."""
    path, log = tmp_path / "a.db", tmp_path / "a.db-wal"
    assert not is_copy(path)
    store = AgentStore.open(path)
    content, logged = path.read_bytes(), log.read_bytes()
    store.close()
    path.write_bytes(content)
    log.write_bytes(logged)
    assert is_copy(path)


def test_the_number_beside_a_store_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power loss it might be an empty file, and the store be taken for a copy."""
    synced: list[tuple[int, int]] = []
    original = os.fsync

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append((found.st_ino, found.st_size))
        original(descriptor)

    path, beside = tmp_path / "a.db", tmp_path / "a.db-life"
    monkeypatch.setattr(os, "fsync", fsync)
    store = AgentStore.open(path)
    begun = beside.stat()
    store.close()
    ended = beside.stat()
    assert [(each.st_ino, each.st_size) for each in (begun, ended)] == synced
    assert not is_copy(path)


def test_nobody_else_writes_to_what_is_beside_a_store_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        AgentStore.open(tmp_path / "a.db").close()
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


def test_a_store_whose_folder_is_gone_is_closed_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "folder").mkdir()
    store = AgentStore.open(tmp_path / "folder" / "a.db")
    shutil.rmtree(tmp_path / "folder")
    store.close()
    assert "moved or deleted" in caplog.text


def test_a_store_that_cannot_be_read_for_a_moment_is_not_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"

    def unreadable(sql: sqlite3.Connection) -> set[tuple[str, int]]:
        raise StoreFailedError("the disk cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(lives, "in_doubt", unreadable)
        with pytest.raises(StoreFailedError) as failed:
            AgentStore.open(path)
    AgentStore.open(path).close()
    assert "cannot be read" in str(failed.value), "it is still held, with all that it refers to"
