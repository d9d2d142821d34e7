"""A backup of every running server with a store is restored to a server that has the same data."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path

import asyncpg
import pytest

from blindpost.canary import backup as canary_backup
from blindpost.ds import backup as ds_backup
from blindpost.ds.process import open_store as open_ds
from blindpost.ds.settings import DsPlace
from blindpost.ds.tables import DsStore
from blindpost.engine.loop import StoreFailedError
from blindpost.ntf import backup as ntf_backup
from blindpost.ntf.process import open_store as open_ntf
from blindpost.ntf.settings import NtfPlace
from blindpost.ntf.tables import NtfStore
from blindpost.ntf.tables_postgres import SCHEMA
from blindpost.ops import actions
from blindpost.serving.backups import DUMP
from blindpost.serving.children import free_port
from blindpost.serving.failures import OperatorError
from blindpost.store import copying, dumps
from tests.support.serving.commands import ENVIRONMENT, run
from tests.support.serving.kinds import CANARY, DS, NTF, ROUTER, Kind, change, make, started
from tests.support.store.postgres import PostgresServer, programs

APART = {ROUTER: ["keys/ca.key"], NTF: ["keys/ca.key", "store.key"], DS: []}


@pytest.fixture
def client_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the server's own version."""
    path = f"{programs()}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setitem(ENVIRONMENT, "PATH", path)


@pytest.fixture
def second(postgres: PostgresServer) -> Iterator[str]:
    dsn = postgres.new_database()
    yield dsn
    postgres.drop(dsn)


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
    damaged = max(
        (file for file in backup.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size
    )
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "differs from what was backed up" in run(*words, code=1).stderr
    damaged.write_bytes(content)
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


@pytest.mark.usefixtures("client_programs")
async def test_a_running_router_in_a_database_is_backed_up_and_restored(
    database: str, tmp_path: Path
) -> None:
    folder, backup = tmp_path / "my router #1 100%", tmp_path / "backup"
    made = await asyncio.to_thread(make, ROUTER, folder, "--store", "postgres", "--dsn", database)
    server = started(ROUTER, folder)
    try:
        await server.start()
        await ROUTER.use(server, made)
        await asyncio.to_thread(run, "router", "backup", backup, "-c", folder)
        await ROUTER.use(server, made)
        elsewhere = ("router", "restore", backup, "--to", tmp_path / "other")
        busy = await asyncio.to_thread(run, *elsewhere, "--force", code=1)
        assert "a server uses this database: stop it first" in busy.stderr
    finally:
        await server.close()
    assert {file.stat().st_mode & 0o077 for file in backup.rglob("*") if file.is_file()} == {0}
    assert "holds a store of this kind of server already" in run(*elsewhere, code=1).stderr
    assert not (tmp_path / "other").exists()
    moved = json.loads(run("router", "restore", backup, "--to", folder, "--force", "--json").stdout)
    assert not (folder / DUMP).exists()
    again = started(ROUTER, folder)
    try:
        await again.start()
        assert ROUTER.kept(await again.ask("status")) == 1
    finally:
        await again.close()
    rows = await asyncpg.connect(database)
    assert await rows.fetchval(f"SELECT messages FROM {moved['schema_moved_aside']}.state") == 2  # noqa: S608
    await rows.close()


async def opens(opening: Awaitable[NtfStore | DsStore]) -> None:
    (await opening).close()
    await asyncio.sleep(0)  # the connection ends


@pytest.mark.usefixtures("client_programs")
@pytest.mark.parametrize("word", ["ntf", "ds"])
def test_a_database_of_the_others_is_restored_where_it_was_empty(
    database: str, second: str, tmp_path: Path, word: str
) -> None:
    folder, backup = tmp_path / "server", tmp_path / "backup"
    kind: Kind = {"ntf": NTF, "ds": DS}[word]
    options = ("--store", "postgres", "--dsn", database) if kind is NTF else ()
    make(kind, folder, *options)
    if kind is DS:
        change(folder, DS, ("[store]\n", f'[store]\ndatabase = "{database}"\n'))
        asyncio.run(opens(open_ds(DsPlace.read(folder))))
    if kind is NTF:
        ntf_backup.back_up(NtfPlace.read(folder), backup, with_ca_key=False, with_store_key=True)
    else:
        ds_backup.back_up(DsPlace.read(folder), backup)
    change(backup, kind, (database, second))
    restored = (ntf_backup if kind is NTF else ds_backup).restore(backup, tmp_path / "new", force=False)
    assert restored == (None, None, [])
    if kind is NTF:
        asyncio.run(opens(open_ntf(NtfPlace.read(tmp_path / "new"))))
    else:
        asyncio.run(opens(open_ds(DsPlace.read(tmp_path / "new"))))


@pytest.mark.usefixtures("client_programs")
def test_what_two_restores_of_one_second_replace_is_kept_twice(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, backup = tmp_path / "server", tmp_path / "backup"
    make(NTF, folder, "--store", "postgres", "--dsn", database)
    ntf_backup.back_up(NtfPlace.read(folder), backup, with_ca_key=True, with_store_key=True)
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.5)
    told = [ntf_backup.restore(backup, folder, force=True) for _ in range(3)]
    names = [f"server.replaced-1800000000{number}" for number in ("", "-2", "-3")]
    assert [aside.folder for aside in told] == [tmp_path / name for name in names]
    for name in names:
        assert (tmp_path / name / "ntf.toml").read_bytes() == (folder / "ntf.toml").read_bytes()
    schemas = [f"{SCHEMA.name}_replaced_1800000000{number}" for number in ("", "_2", "_3")]
    assert [aside.schema for aside in told] == schemas

    async def kept() -> list[str]:
        rows = await asyncpg.connect(database)
        try:
            found = await rows.fetch("SELECT schemaname FROM pg_tables WHERE tablename = 'state'")
        finally:
            await rows.close()
        return sorted(row["schemaname"] for row in found)

    assert asyncio.run(kept()) == [SCHEMA.name, *schemas]


def test_the_page_backs_up_twice_in_one_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(DS, tmp_path / "ds")
    monkeypatch.setattr(time, "gmtime", lambda _s=None, *, real=time.gmtime: real(1_800_000_000))
    for _ in range(2):
        asyncio.run(actions.backup("ds", tmp_path / "ds", {}))
    kept = sorted(path.name for path in actions.backups_of(tmp_path / "ds").iterdir())
    assert kept == ["2027-01-15T08-00-00Z", "2027-01-15T08-00-00Z-2"]


def test_without_its_programs_a_database_backup_fails_with_a_remedy(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(NTF, tmp_path / "server", "--store", "postgres", "--dsn", database)
    place = NtfPlace.read(tmp_path / "server")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(OperatorError, match="`pg_dump` is not on the PATH: install PostgreSQL's client"):
        ntf_backup.back_up(place, tmp_path / "backup", with_ca_key=False, with_store_key=False)
    assert {path.name for path in tmp_path.iterdir()} == {"server"}


@pytest.mark.usefixtures("client_programs")
def test_what_keeps_a_database_from_being_restored_is_told(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where in a statement that was, nor what may be tried."""
    make(NTF, tmp_path / "server", "--store", "postgres", "--dsn", database)
    dumps.dump(database, SCHEMA, tmp_path / "dump")
    with monkeypatch.context() as meanwhile:
        meanwhile.setenv("PGOPTIONS", "-c default_transaction_read_only=on")
        with pytest.raises(StoreFailedError, match="cannot execute ALTER SCHEMA in a read-only transaction"):
            dumps.load(database, SCHEMA, tmp_path / "dump", replace=True)
    nowhere = f"postgresql://me@127.0.0.1:{free_port()}/db"
    with pytest.raises(StoreFailedError, match=r"Connection refused$"):
        dumps.load(nowhere, SCHEMA, tmp_path / "dump", replace=True)
    with pytest.raises(StoreFailedError, match=r"Connection refused$"):
        dumps.dump(nowhere, SCHEMA, tmp_path / "another")


def test_a_password_is_not_among_the_words_that_every_user_can_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "pg_dump"
    program.write_text('#!/bin/sh\necho "$@" > seen; echo "wrong password: $PGPASSWORD" >&2; exit 1\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.chdir(tmp_path)
    dsn = "postgresql://me:s%23cret@host/db?sslmode=require&password=other"
    with pytest.raises(StoreFailedError, match=r"pg_dump failed: wrong password: \*\*\*$"):
        dumps.dump(dsn, SCHEMA, tmp_path / "dump")
    words = (tmp_path / "seen").read_text().split()
    assert words[0] == "--dbname=postgresql://me@host/db?sslmode=require"
    assert "cret" not in "".join(words)


def test_a_restored_canary_has_its_settings_and_makes_new_connections(tmp_path: Path) -> None:
    make(CANARY, tmp_path / "canary")
    (tmp_path / "canary" / "agents").mkdir()
    (tmp_path / "canary" / "agents" / "home.db").write_bytes(b"used keys")
    run("canary", "backup", tmp_path / "backup", "-c", tmp_path / "canary")
    assert {path.name for path in (tmp_path / "backup").iterdir()} == {"canary.toml", "backup.json"}
    told = canary_backup.restore(tmp_path / "backup", tmp_path / "canary", force=True)
    assert {path.name for path in (tmp_path / "canary").iterdir()} == {"canary.toml"}
    assert told.folder is not None
    assert (told.folder / "agents" / "home.db").exists()


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


class Asked:
    """A running notification router, which may write beside its own store only."""

    def __init__(self, fails: bool = False) -> None:
        self.copies: list[Path] = []
        self.fails = fails

    def __call__(self, control: Path, command: str, *, timeout_s: float, to: str) -> dict[str, object]:
        assert (command, timeout_s) == ("copy-store", ntf_backup.COPY_S_MAX)
        self.copies.append(Path(to))
        copying.copy(control.parent / "ntf.db", Path(to))
        if self.fails:
            raise OperatorError("the disk is full.")
        return {}


@pytest.mark.parametrize("other_disk", [False, True])
def test_a_running_notification_router_writes_its_copy_beside_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_disk: bool
) -> None:
    folder = tmp_path / "server"
    make(NTF, folder)
    before = {path.name for path in folder.iterdir()}
    place, asked = NtfPlace.read(folder), Asked()
    monkeypatch.setattr(ntf_backup, "ask", asked)
    (folder / ".ntf.db.copy").write_bytes(b"left by a command that was killed")
    if other_disk:
        rename = Path.rename

        def refused(path: Path, target: Path) -> Path:
            if path.name == ".ntf.db.copy":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", refused)
    ntf_backup.back_up(place, tmp_path / "backup", with_ca_key=False, with_store_key=False)
    assert [copy.parent for copy in asked.copies] == [folder]
    assert (tmp_path / "backup" / "ntf.db").read_bytes() == (folder / "ntf.db").read_bytes()
    assert {path.name for path in folder.iterdir()} == before | {"backup.lock"}


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "server"
    make(NTF, folder)
    before = {path.name for path in folder.iterdir()}
    monkeypatch.setattr(ntf_backup, "ask", Asked(fails=True))
    with pytest.raises(OperatorError, match="the disk is full"):
        ntf_backup.back_up(NtfPlace.read(folder), tmp_path / "b", with_ca_key=False, with_store_key=False)
    assert {path.name for path in folder.iterdir()} == before | {"backup.lock"}
    assert {path.name for path in tmp_path.iterdir()} == {"server"}


def test_keys_and_certificates_outside_are_named_and_needed_where_a_backup_is_restored(
    tmp_path: Path,
) -> None:
    apart, folder = tmp_path / "apart", tmp_path / "ds"
    apart.mkdir()
    make(DS, folder)
    for name in ("ds.crt", "ds.key", "tokens"):
        (folder / name).rename(apart / name)
    identity = f'[identity]\ncertificate = "{apart}/ds.crt"\nkey = "../apart/ds.key"\n\n'
    change(folder, DS, ("[auth]", f'{identity}[auth]\ntokens = "{apart}/tokens"'))
    told = json.loads(run("ds", "backup", tmp_path / "backup", "-c", folder, "--json").stdout)
    assert told["left_out"] == [f"{apart}/ds.crt", f"{folder}/../apart/ds.key", f"{apart}/tokens"]
    said = run("ds", "backup", tmp_path / "second", "-c", folder).stdout
    assert said.count("lies outside the server's folder and is not in it") == 3
    on_page = asyncio.run(actions.backup("ds", folder, {}))
    assert f"machine. {apart}/ds.crt lies outside and is not in it. " in on_page
    run("ds", "restore", tmp_path / "backup", "--to", tmp_path / "new")
    run("ds", "check", "-c", tmp_path / "new")
    for name in ("ds.crt", "ds.key"):
        (apart / name).unlink()
    words = ("ds", "restore", tmp_path / "backup", "--to", folder, "--force")
    assert json.loads(run(*words, "--json").stdout)["missing"] == [
        f"{apart}/ds.crt",
        f"{folder}/../apart/ds.key",
    ]
    assert run(*words).stdout.count("was in no backup: put it back first") == 2


def test_a_store_key_that_is_kept_apart_does_not_prevent_a_backup(tmp_path: Path) -> None:
    folder, apart = tmp_path / "ntf", tmp_path / "store.key"
    make(NTF, folder)
    (folder / "store.key").rename(apart)
    change(folder, NTF, ('key_file = "store.key"', f'key_file = "{apart}"'))
    change(folder, NTF, ('key_file = ""\nkey_id = ""', f'key_file = "{tmp_path}/apple.p8"\nkey_id = "X"'))
    words = ("ntf", "backup", tmp_path / "backup", "-c", folder)
    assert "Copy it by hand" in run(*words, "--with-store-key", code=1).stderr
    assert "The key of the store is not in it" in run(*words).stdout
    said = run("ntf", "restore", tmp_path / "backup", "--to", folder, "--force").stdout
    assert f"{tmp_path}/apple.p8 lies outside" in said
    assert apart.exists()
    assert not (folder / "store.key").exists()


def test_a_server_behind_a_link_is_restored_where_the_link_leads(tmp_path: Path) -> None:
    large, link = tmp_path / "large disk", tmp_path / "server"
    large.mkdir()
    make(DS, large / "ds")
    link.symlink_to(large / "ds")
    ds_backup.back_up(DsPlace.read(link), tmp_path / "backup")
    aside = ds_backup.restore(tmp_path / "backup", link, force=True).folder
    assert link.is_symlink()
    assert (link / "ds.toml").exists()
    assert aside is not None
    assert aside.parent == large
    assert {path.name for path in tmp_path.iterdir()} == {"large disk", "server", "backup"}
