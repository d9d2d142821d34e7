"""A router whose store is a PostgreSQL database, through the real command."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import asyncpg

from blindpost.router.running.settings import RouterPlace
from tests.support.router.routers import a_message, new_queue
from tests.support.serving.commands import edit, init, run, started


def with_password(dsn: str) -> str:
    """The server trusts everybody: any password will do."""
    return dsn.replace("tests@", "tests:hush-hush@")


def _store(folder: Path, code: int = 0) -> tuple[str, str]:
    """What `check` says of the store."""
    found = json.loads(run("router", "check", "-c", folder, "--json", code=code).stdout)["findings"]
    return next((row["grade"], row["found"]) for row in found if row["subject"] == "store")


async def test_a_router_keeps_its_queues_in_a_database(tmp_path: Path, database: str) -> None:
    folder = tmp_path / "router"
    init(tmp_path / "before")
    edit(tmp_path / "before", 'kind = "lmdb"', 'kind = "postgres"')
    edit(tmp_path / "before", 'dsn = ""', f'dsn = "{with_password(database)}"')
    assert "holds no store" in _store(tmp_path / "before", code=1)[1]
    init(folder, "--store", "postgres", "--dsn", with_password(database))
    assert not (folder / "store").exists()
    assert _store(folder) == ("ok", "the database: schema 1")
    async with started(folder) as router:
        assert _store(folder)[0] == "ok", "its own server is no stranger"
        client = await router.connect()
        queue = await new_queue(client)
        await client.send(a_message(), queue.sender_id)
        await client.close()
        assert (await router.ask("stats"))["stored"]["messages"] == 1
        audited = run("router", "audit", "-c", folder, "--json")
        assert (json.loads(audited.stdout)["queues"], json.loads(audited.stdout)["clean"]) == (1, True)
        assert "is running" in run("router", "audit", "--repair", "-c", folder, code=1).stderr
        refused = run("router", "start", "-c", folder, code=1)
        assert "a router is running in this folder" in refused.stderr
        assert await router.end() == 0
        assert b"hush" not in router.log
    async with started(folder) as router:
        assert (await router.ask("stats"))["stored"]["queues"] == 1
        shutil.copytree(folder, tmp_path / "twin", ignore=shutil.ignore_patterns("*.sock"))
        assert "another process uses this store" in _store(tmp_path / "twin", code=1)[1]
        await router.end(signal.SIGKILL)
    audited = run("router", "audit", "-c", folder, "--json")
    assert json.loads(audited.stdout)["queues"] == 1
    told = run("router", "backup", tmp_path / "backup", "-c", folder, code=1).stderr
    assert "pg_dump" in told
    again = run(
        *("router", "init", tmp_path / "other", "--host", "localhost"),
        *("--store", "postgres", "--dsn", with_password(database)),
        code=1,
    )
    assert "holds the queues of a router already" in again.stderr
    assert "hush" not in again.stdout + again.stderr


async def test_another_router_in_the_same_database_is_refused(tmp_path: Path, database: str) -> None:
    init(tmp_path / "one", "--store", "postgres", "--dsn", with_password(database))
    init(tmp_path / "two", "--store", "postgres", "--dsn", with_password(database))
    async with started(tmp_path / "one"):
        told = run("router", "start", "-c", tmp_path / "two", code=1).stderr
    assert "another server uses this database" in told
    assert "hush" not in told


async def test_queues_move_between_the_stores(tmp_path: Path, database: str) -> None:
    init(tmp_path / "folder")
    async with started(tmp_path / "folder") as router:
        client = await router.connect()
        queue = await new_queue(client)
        await client.send(a_message(b"moved"), queue.sender_id)
        await client.close()
        assert await router.end() == 0
    init(tmp_path / "database", "--store", "postgres", "--dsn", database)
    run("router", "import", "--from", tmp_path / "folder", "--to", tmp_path / "database")
    init(tmp_path / "back")
    run("router", "import", "--from", tmp_path / "database", "--to", tmp_path / "back")
    async with started(tmp_path / "back") as router:
        stored = (await router.ask("stats"))["stored"]
        assert (stored["queues"], stored["messages"]) == (1, 1)


async def test_database_problems_are_reported_without_the_password(tmp_path: Path, database: str) -> None:
    at = ("--host", "localhost", "--store", "postgres")
    for dsn, told in (
        ("", "the address of the database expected in dsn"),
        ("mysql://me:hush-hush@host/x", "postgresql://user@host/database expected"),
        ("postgresql://me:hush-hush@127.0.0.1:1/x", "the database cannot be opened"),
    ):
        said = run("router", "init", tmp_path / "router", *at, "--dsn", dsn, code=1)
        assert told in said.stderr
        assert "hush" not in said.stdout + said.stderr
        for file in sorted((tmp_path / "router").rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
    folder = tmp_path / "newer"
    init(folder, "--store", "postgres", "--dsn", with_password(database))
    assert "hush" not in repr(RouterPlace.read(folder).settings)
    connection = await asyncpg.connect(database)
    await connection.execute("UPDATE blindpost_router.state SET version = 99")
    await connection.close()
    said = run("router", "start", "-c", folder, code=1)
    assert "schema version 99" in said.stderr
    edit(folder, 'kind = "postgres"', 'kind = "oracle"')
    said = run("router", "start", "-c", folder, code=1)
    assert "store.kind" in said.stderr
    assert "hush" not in said.stdout + said.stderr
