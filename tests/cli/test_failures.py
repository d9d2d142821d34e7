"""Every failure is one message that says what to do, with exit code 1; wrong usage is 2."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from blindpost.router.running.settings import RouterPlace
from blindpost.router.tables import MIGRATIONS
from blindpost.serving.identity import Identity
from blindpost.serving.locking import locked
from blindpost.store.lmdb import LmdbStore
from blindpost.wire.keys import Algorithm
from tests.support.serving.commands import edit, init, run

Call = Callable[..., str]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "router"
    init(folder)
    return folder


@pytest.fixture
def router(template: Path, tmp_path: Path) -> Path:
    """A router that is set up but not running."""
    return Path(shutil.copytree(template, tmp_path / "router"))


def test_wrong_usage_exits_with_2(call: Call, tmp_path: Path) -> None:
    assert "No such command" in call("router", "fly", code=2)
    assert "--host" in call("router", "init", tmp_path / "new", code=2)
    nothing = call("router", "init", tmp_path / "new", "--host", "a.org", "--password", "", code=2)
    assert "say --open" in nothing, "an empty variable must not open a router"
    for kind in ("router", "ntf"):
        at = ("--host", "a.org", "--dsn", "postgresql://localhost/x")
        assert "needs --store postgres" in call(kind, "init", tmp_path / "new", *at, code=2)
    assert "--reason" in call("router", "queues", "block", "AAAA", code=2)
    assert "spam" in call("router", "queues", "block", "AAAA", "--reason", "boredom", code=2)


def test_help_names_every_command() -> None:
    said = run("router", "--help").stdout
    for name in ("init", "start", "address", "status", "backup", "restore", "rotate-cert"):
        assert name in said
    for name in ("queues", "check", "connections", "stats"):
        assert name in said
    assert run("--version").stdout.startswith("blindpost ")


@pytest.mark.parametrize(
    "command", ["start", "address", "status", "stats", "connections", "rotate-cert", "backup"]
)
def test_a_folder_without_a_router(failed: Call, tmp_path: Path, command: str) -> None:
    target = (tmp_path / "to",) if command == "backup" else ()
    said = failed("router", command, *target, "-c", tmp_path)
    assert "no router is set up here" in said
    assert "blindpost router init" in said


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("router", "identity.keys=../old/keys"),
        ("router", "store.folder=../old/store"),
        ("ntf", "identity.keys=../old/keys"),
        ("ntf", "store.key_file=../old/store.key"),
        ("ntf", "store.file=../old/ntf.db"),
        ("ntf", "webpush.key_file=../old/vapid.pem"),
    ],
)
def test_init_replaces_nothing_that_settings_name(
    failed: Call, tmp_path: Path, kind: str, named: str
) -> None:
    old = tmp_path / "old"
    init = (kind, "init", old, "--host", "localhost")
    run(*init)
    before = {file: file.read_bytes() for file in old.rglob("*") if file.is_file()}
    said = failed(kind, "init", tmp_path / "new", "--host", "localhost", "--set", named)
    assert "is there already, and a new router makes its own" in said
    assert {file: file.read_bytes() for file in old.rglob("*") if file.is_file()} == before
    assert not (tmp_path / "new").exists()


def test_a_failed_init_leaves_nothing_elsewhere(failed: Call, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    at = ("--set", f"identity.keys={tmp_path / 'keys'}", "--set", "store.folder=/dev/null/store")
    failed("router", "init", tmp_path / "new", "--host", "localhost", *at)
    assert list((tmp_path / "keys").iterdir()) == []
    run("router", "init", tmp_path / "new", "--host", "localhost", *at[:2])
    assert (tmp_path / "keys" / "ca.key").exists()


def test_init_does_not_touch_a_folder_with_content(failed: Call, router: Path, tmp_path: Path) -> None:
    before = (router / "router.toml").read_bytes()
    assert "the folder is not empty" in failed("router", "init", router, "--host", "localhost")
    assert (router / "router.toml").read_bytes() == before
    assert "a host expected" in failed("router", "init", tmp_path / "new", "--host", "not a host")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["router", "ntf", "ds"])
def test_hosts_are_checked_before_anything_is_made(failed: Call, tmp_path: Path, kind: str) -> None:
    for host, part in {
        "not a host": "a host expected",
        "stra\u00dfe.example": "write this name in its xn-- form",
        "a" * 300: "at most 253 characters",
        "": "host expected",
        "a.org:5223": "with nothing after it",
    }.items():
        said = failed(kind, "init", tmp_path / "new", f"--host={host}")
        assert part in said
        assert said.startswith("blindpost: --host: "), "there is no file yet that could be named"
        assert not (tmp_path / "new").exists()


def test_names_that_are_not_utf8_are_one_message(failed: Call, tmp_path: Path) -> None:
    odd = os.fsdecode(b"a\xff")
    for arguments in (
        (odd, "--host=localhost"),
        ("new", f"--host={odd}"),
        ("new", "--host=b", f"--password={odd}"),
    ):
        said = failed("router", "init", tmp_path / arguments[0], *arguments[1:])
        assert "is not UTF-8" in said
        assert not list(tmp_path.iterdir())


def test_names_with_other_letters_are_written_as_they_travel_and_long_ones_fit(tmp_path: Path) -> None:
    long = f"{'a' * 63}.{'b' * 63}.example.org"
    at = ("--host", "m\u00fcnchen.example", "--host", long, "--port", "0", "--no-qr")
    said = run("router", "init", tmp_path / "router", *at)
    assert f"@xn--mnchen-3ya.example,{long}:0\n" in said.stdout
    assert "the system chooses a port at every start" in said.stderr
    assert f"@xn--mnchen-3ya.example,{long}:0" in run("router", "address", "-c", tmp_path / "router").stdout
    run("ntf", "init", tmp_path / "ntf", "--host", long)
    run("ds", "init", tmp_path / "ds", "--host", long)


@pytest.mark.parametrize("command", ["status", "stats", "connections"])
def test_nobody_answers_on_the_control_socket(failed: Call, router: Path, command: str) -> None:
    assert "no server listens at this control socket" in failed("router", command, "-c", router)
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(router / "control.sock"))
    assert "no server listens" in failed("router", command, "-c", router)


def test_a_server_at_work_without_its_control_socket_is_not_to_be_started(failed: Call, router: Path) -> None:
    """As after somebody deleted the socket."""
    with locked(router / "router.lock", ""):
        said = failed("router", "status", "-c", router)
        assert "a router, or a command that needs it stopped, is at work in this folder" in said
        assert "opens it again within seconds" in said
        assert "Start it" not in said
        assert "runs already" in run("router", "check", "-c", router).stdout


def test_a_wrong_configuration(failed: Call, router: Path) -> None:
    edit(router, "quota = 128", "qouta = 128")
    said = failed("router", "start", "-c", router)
    assert "line " in said
    assert "Did you mean rules.quota?" in said


def test_a_port_in_use(failed: Call, router: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        edit(router, "ports = [0]", f"ports = [{port}]")
        done = run("router", "start", "-c", router, code=1)
    assert f"127.0.0.1 port {port} is in use by another program" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_metrics_port_in_use(failed: Call, router: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        edit(router, "port = 9464", f"port = {other.getsockname()[1]}")
        edit(router, "only.\nenabled = false", "only.\nenabled = true")
        assert "metrics" in run("router", "start", "-c", router, code=1).stderr


@pytest.mark.parametrize("name", ["router.pem", "ca.crt"])
def test_a_missing_key_or_certificate(failed: Call, router: Path, name: str) -> None:
    (router / "keys" / name).unlink()
    assert f"{name}: the server's" in failed("router", "start", "-c", router)
    assert "missing" in failed("router", "address", "-c", router)


@pytest.mark.parametrize("name", ["router.pem", "ca.crt"])
def test_a_key_or_certificate_that_cannot_be_read(failed: Call, router: Path, name: str) -> None:
    (router / "keys" / name).write_text("nonsense")
    assert f"{name}: a certificate in PEM form expected" in failed("router", "start", "-c", router)


def test_a_certificate_without_its_key(failed: Call, router: Path) -> None:
    online = router / "keys" / "router.pem"
    text = online.read_text()
    online.write_text(text[text.index("-----BEGIN CERTIFICATE") :])
    assert "a private Ed25519 or Ed448 key" in failed("router", "start", "-c", router)


def test_files_of_different_identities(failed: Call, router: Path, tmp_path: Path) -> None:
    other = Identity(tmp_path / "other")
    other.create("localhost", Algorithm.ED25519)
    mine = Identity(router / "keys")
    shutil.copy(other.ca_certificate, tmp_path / "ca.crt")
    shutil.copy(other.online, mine.online)
    assert "was not issued by" in failed("router", "start", "-c", router)
    shutil.copy(other.ca_key, mine.ca_key)
    assert "ca.key is not the key of" in failed("router", "rotate-cert", "-c", router)
    shutil.copy(other.ca_certificate, mine.ca_certificate)
    said = failed("router", "start", "-c", router)
    assert "fingerprint mismatch" in said
    assert "the configuration names" in said


def test_a_key_that_does_not_match_its_certificate(failed: Call, router: Path, tmp_path: Path) -> None:
    other, mine = Identity(tmp_path / "other"), Identity(router / "keys")
    other.create("localhost", Algorithm.ED25519)
    cut = b"-----BEGIN CERTIFICATE"
    key, certificate = other.online.read_bytes().split(cut)[0], mine.online.read_bytes().split(cut)[1]
    mine.online.write_bytes(key + cut + certificate)
    assert "is not the key of the certificate in it" in failed("router", "start", "-c", router)


def test_the_ca_key_is_offline(failed: Call, router: Path) -> None:
    (router / "keys" / "ca.key").unlink()
    before = (router / "keys" / "router.pem").read_bytes()
    said = failed("router", "rotate-cert", "-c", router)
    assert "the CA key is not here" in said
    assert "--ca-key" in said
    assert (router / "keys" / "router.pem").read_bytes() == before


def test_a_store_of_a_newer_version(failed: Call, router: Path) -> None:
    store = LmdbStore(router / "store", (), owner="router", migrations=MIGRATIONS)
    store.commit([("meta", b"schema version", (1000).to_bytes(4, "big"))])
    store.close()
    said = failed("router", "start", "-c", router)
    assert "schema version 1000" in said
    assert "newer program" in said


def test_a_missing_or_damaged_store(failed: Call, router: Path) -> None:
    (router / "store" / "data.mdb").write_bytes(b"nonsense" * 1000)
    assert "the store cannot be opened" in failed("router", "start", "-c", router)
    (router / "store" / "data.mdb").write_bytes(b"")
    assert "store is missing" in failed("router", "start", "-c", router)
    (router / "store" / "data.mdb").unlink()
    assert "store is missing" in failed("router", "start", "-c", router)


def test_a_router_is_already_running(failed: Call, router: Path) -> None:
    with RouterPlace.read(router).locked():
        assert "a router is running in this folder" in failed("router", "start", "-c", router)


def test_permission_denied(failed: Call, router: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", denied)
    assert "permission denied. Run this as the user who owns" in failed("router", "start", "-c", router)


def test_a_socket_path_that_is_too_long(failed: Call, router: Path) -> None:
    edit(router, 'socket = "control.sock"', f'socket = "{"x" * 120}"')
    assert "too long for a socket" in run("router", "start", "-c", router, code=1).stderr


def test_a_file_that_is_not_a_backup(failed: Call, router: Path, tmp_path: Path) -> None:
    assert "not a backup" in failed("router", "restore", router, "--to", tmp_path / "new")
    backup = tmp_path / "backup"
    run("router", "backup", backup, "-c", router)
    (backup / "keys" / "router.pem").unlink()
    assert "router.pem" in failed("router", "restore", backup, "--to", tmp_path / "new")
    (backup / "store" / "data.mdb").unlink()
    assert "the store is missing" in failed("router", "restore", backup, "--to", tmp_path / "new")
    (backup / "backup.json").write_text('{"format": 2, "program": "9.9"}')
    assert "newer" in failed("router", "restore", backup, "--to", tmp_path / "new")
    for damaged in ("", "[]", "{}", '{"format": "?", "program": 1}', "[" * 100_000):
        (backup / "backup.json").write_text(damaged)
        assert "backup.json: this is damaged" in failed("router", "restore", backup, "--to", tmp_path / "new")
    assert not (tmp_path / "new").exists()
