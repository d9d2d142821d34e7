"""A backup of every running server with a store is restored to a server that has the same data."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.serving.commands import run
from tests.support.serving.kinds import DS, NTF, ROUTER, Kind, make, started

APART = {ROUTER: ["keys/ca.key"], NTF: ["keys/ca.key", "store.key"], DS: []}


@pytest.mark.parametrize("kind", APART, ids=lambda kind: str(kind.word))
async def test_a_backup_of_a_running_server_is_restored(kind: Kind, tmp_path: Path) -> None:
    folder, backup = tmp_path / "server", tmp_path / "backup"
    made = await asyncio.to_thread(make, kind, folder)
    server = started(kind, folder)
    try:
        await server.start()
        await kind.use(server, made)
        done = await asyncio.to_thread(run, kind.word, "backup", backup, "-c", folder, "--json")
        assert json.loads(done.stdout)["bytes"] > 1_000
        words = (kind.word, "restore", backup, "--to", folder, "--force")
        busy = await asyncio.to_thread(run, *words, code=1)
        assert "is running in this folder" in busy.stderr
    finally:
        await server.close()
    assert not [name for name in APART[kind] if (backup / name).exists()]
    assert {file.stat().st_mode & 0o077 for file in backup.rglob("*") if file.is_file()} == {0}
    assert "this exists already" in run(kind.word, "backup", backup, "-c", folder, code=1).stderr
    keys = {name: (folder / name).read_bytes() for name in APART[kind]}
    moved = json.loads(run(*words, "--json").stdout)
    assert moved["moved_aside"].startswith(f"{folder}.replaced-")
    assert {name: (folder / name).read_bytes() for name in APART[kind]} == keys
    again = started(kind, folder)
    try:
        await again.start()
        assert kind.kept(await again.ask("status")) == 1
    finally:
        await again.close()


def test_a_stopped_notification_router_is_backed_up_with_its_key_if_asked(tmp_path: Path) -> None:
    make(NTF, tmp_path / "server")
    told = run("ntf", "backup", tmp_path / "without", "-c", tmp_path / "server").stdout
    assert "The key of the store is not in it" in told
    run("ntf", "backup", tmp_path / "with", "-c", tmp_path / "server", "--with-store-key")
    assert (tmp_path / "with" / "store.key").exists()
    told = run("ntf", "restore", tmp_path / "without", "--to", tmp_path / "new").stdout
    assert "Put the key of its store back" in told
    (tmp_path / "with" / "keys" / "ntf.pem").unlink()
    assert "ntf.pem" in run("ntf", "restore", tmp_path / "with", "--to", tmp_path / "b", code=1).stderr
    assert not (tmp_path / "b").exists()
