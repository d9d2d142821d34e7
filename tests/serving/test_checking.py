"""`check` reports what a start would run into, for every server, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from typer.testing import CliRunner

from blindpost.cli.main import GROUPS
from blindpost.serving import checking, ports
from tests.support.serving.commands import edit, set_fronts
from tests.support.serving.kinds import CANARY, DS, KINDS, NTF, ROUTER, Kind, change, make, started

ANY = "0.0.0.0"  # noqa: S104 - nothing is bound

Findings = dict[str, tuple[str, str]]


def checked(kind: Kind, folder: Path, code: int = 0) -> Findings:
    """Grade and text of each subject; the worst, if there are several."""
    done = CliRunner().invoke(GROUPS[kind.word](), ["check", "-c", str(folder), "--json"])
    assert done.exit_code == code, (done.output, done.exception)
    told = json.loads(done.stdout)
    assert told["ok"] is (code == 0)
    order = ("ok", "warning", "error")
    found: Findings = {}
    for row in sorted(told["findings"], key=lambda row: order.index(row["grade"])):
        found[row["subject"]] = row["grade"], row["found"]
        assert row["remedy"] or row["grade"] != "warning"
    return found


def picture(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """All files with their content, mode and time."""
    return {
        str(file): (file.read_bytes(), file.stat().st_mode, file.stat().st_mtime_ns)
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.word))
async def test_a_new_server_can_start_and_is_left_as_it_was(kind: Kind, tmp_path: Path) -> None:
    folder = tmp_path / "server"
    await asyncio.to_thread(make, kind, folder)
    before = picture(folder)
    found = await asyncio.to_thread(checked, kind, folder)
    assert picture(folder) == before
    assert {"settings", "process", "owner", "keys", "disk", "clock", "open files"} <= set(found)
    assert found["process"] == ("ok", "does not run")
    if kind is not CANARY:
        assert found["store"][0] == "ok"
        ports = {text for subject, (_, text) in found.items() if re.match("port [1-9]", subject)}
        assert ports == {f"free, at {'127.0.0.1' if kind is ROUTER else 'all addresses'}"}
    server = started(kind, folder)
    try:
        await server.start()
        running = await asyncio.to_thread(checked, kind, folder)
        assert running["process"] == ("ok", "runs already")
        assert not [subject for subject, (grade, _) in running.items() if grade == "error"]
    finally:
        await server.close()


def test_unreadable_settings_are_a_finding(tmp_path: Path) -> None:
    make(ROUTER, tmp_path / "server")
    edit(tmp_path / "server", "quota = 128", "quota = -1")
    (subject,) = checked(ROUTER, tmp_path / "server", code=1).items()
    assert subject[0] == "settings"
    assert "rules.quota" in subject[1][1]


def readable(folder: Path) -> None:
    (folder / "keys" / "router.pem").chmod(0o644)


def another_owner(folder: Path) -> None:
    os.chown(folder / "store" / "data.mdb", 4711, 4711)


def newer_schema(folder: Path) -> None:
    with lmdb.open(str(folder / "store"), max_dbs=20) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin(write=True) as transaction:
            transaction.put(b"schema version", (99).to_bytes(4, "big"), db=meta)


def of_another(folder: Path) -> None:
    with lmdb.open(str(folder / "store"), max_dbs=20) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin(write=True) as transaction:
            transaction.put(b"owner", b"delivery service", db=meta)


def future(folder: Path) -> None:
    os.utime(folder / "router.toml", (4e9, 4e9))


def no_store(folder: Path) -> None:
    (folder / "store" / "data.mdb").unlink()


def other_keys(folder: Path) -> None:
    (folder / "keys" / "ca.crt").write_text("nonsense")


def too_many(folder: Path) -> None:
    edit(folder, "connections = 50000", "connections = 99999999")


def too_little_memory(folder: Path) -> None:
    set_fronts(folder, 7)
    edit(folder, "memory_mib = 2048", "memory_mib = 128")


def no_proxy(folder: Path) -> None:
    edit(folder, 'socks = ""', 'socks = "127.0.0.1:1"')


def no_name(folder: Path) -> None:
    edit(folder, 'hosts = ["127.0.0.1"]', 'hosts = ["nowhere.invalid"]')


@pytest.mark.parametrize(
    ("spoil", "subject", "grade", "part"),
    [
        (readable, "keys", "warning", "can be read by other users"),
        (newer_schema, "store", "error", "schema version 99"),
        (of_another, "store", "error", "belongs to a delivery service"),
        (no_store, "store", "error", "there is no store"),
        (other_keys, "certificate", "error", "PEM form expected"),
        (future, "clock", "warning", "are newer"),
        (too_many, "open files", "warning", "limits.connections = 99999999"),
        (too_little_memory, "fronts", "warning", "limits.memory_mib = 128"),
        (no_proxy, "proxy 127.0.0.1:1", "warning", "nothing answers"),
        (no_name, "host nowhere.invalid", "warning", "cannot be looked up"),
        pytest.param(
            another_owner,
            "owner",
            "error",
            "not of the user",
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away"),
        ),
    ],
)
def test_findings_are_reported_with_their_grade(
    spoil: Callable[[Path], None], subject: str, grade: str, part: str, tmp_path: Path
) -> None:
    make(ROUTER, tmp_path / "server")
    spoil(tmp_path / "server")
    found = checked(ROUTER, tmp_path / "server", code=int(grade == "error"))
    assert found[subject][0] == grade
    assert part in found[subject][1]


def test_a_port_used_by_another_program_is_an_error(tmp_path: Path) -> None:
    make(ROUTER, tmp_path / "server")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        edit(tmp_path / "server", 'plain_port = "off"', f"plain_port = {port}")
        found = checked(ROUTER, tmp_path / "server", code=1)
    assert found[f"port {port}"][0] == "error"
    assert "in use by another program" in found[f"port {port}"][1]


@pytest.mark.parametrize("service", ["blindpost-router.service", "nginx.service"])
def test_a_port_that_systemd_holds_for_the_server_is_no_error(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what `systemctl` tells; the port itself is open, as systemd has it while the server is stopped."""
    make(ROUTER, tmp_path / "server")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port, unit = held.getsockname()[1], service.replace(".service", ".socket")
        systemctl = tmp_path / "systemctl"
        rows = f"/run/dbus dbus.socket dbus.service\n127.0.0.1:{port} {unit} {service}\n[::]:{port} {unit} x"
        systemctl.write_text(f"#!/bin/sh\ncat <<END\n{rows}\nEND\n")
        systemctl.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        edit(tmp_path / "server", 'plain_port = "off"', f"plain_port = {port}")
        ours = service.startswith("blindpost")
        grade, text = checked(ROUTER, tmp_path / "server", code=int(not ours))[f"port {port}"]
    assert grade == ("ok" if ours else "error")
    assert unit in text
    assert service in text


def test_the_store_and_keys_of_a_notification_router_are_checked(tmp_path: Path) -> None:
    make(NTF, tmp_path / "server")
    file = tmp_path / "server" / "ntf.db"
    content = bytearray(file.read_bytes())
    content[60:64] = struct.pack(">i", 77)
    file.write_bytes(content)
    (tmp_path / "server" / "store.key").write_text("short")
    change(tmp_path / "server", NTF, ('key_file = ""\nkey_id = ""', 'key_file = "apple.p8"\nkey_id = "X"'))
    found = checked(NTF, tmp_path / "server", code=1)
    assert [found[subject][0] for subject in ("store", "store key", "Apple")] == ["error"] * 3
    assert "schema version 77" in found["store"][1]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_another_key_than_the_stores_and_missing_push_keys_are_known_before_a_start(
    database: str, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "server #1"
    make(NTF, folder, *(("--store", "postgres", "--dsn", database) if kind == "postgres" else ()))
    right = checked(NTF, folder)
    assert [right[subject] for subject in ("store key", "Apple", "Web Push")] == [
        ("ok", "it is the key of this store"),
        ("ok", "off: [apns] names no key"),
        ("ok", "its key is there"),
    ]
    (folder / "store.key").write_text("00" * 32)
    (folder / "vapid.pem").unlink()
    wrong = checked(NTF, folder, code=1)
    assert wrong["store key"][0] == "error"
    assert "sealed with another key" in wrong["store key"][1]
    assert [wrong[subject][0] for subject in ("Apple", "Web Push")] == ["warning"] * 2
    assert "nobody is notified" in wrong["Apple"][1]
    assert "is missing: such devices are refused" in wrong["Web Push"][1]


def test_an_open_delivery_service_is_reported(tmp_path: Path) -> None:
    make(DS, tmp_path / "server")
    assert checked(DS, tmp_path / "server")["access"][0] == "warning"


@pytest.mark.parametrize("kind", [ROUTER, DS], ids=lambda kind: str(kind.word))
async def test_a_port_of_another_program_is_not_taken_for_one_of_the_running_server(
    kind: Kind, tmp_path: Path
) -> None:
    folder = tmp_path / "server"
    await asyncio.to_thread(make, kind, folder)
    server = started(kind, folder)
    sort = socket.SOCK_DGRAM if kind is DS else socket.SOCK_STREAM
    with socket.socket(type=sort) as other:
        other.bind(("127.0.0.1", 0))
        if kind is ROUTER:
            other.listen()
        port = other.getsockname()[1]
        try:
            await server.start()
            if kind is ROUTER:
                own = server.status["ports"][0]
                change(folder, kind, (f"ports = [{own}]", f"ports = [{own}, {port}]"))
            else:
                own = server.status["ports"]["quic"]
                change(folder, kind, (f"quic_port = {own}", f"quic_port = {port}"))
            found = await asyncio.to_thread(checked, kind, folder, 1)
        finally:
            await server.close()
    assert found[f"port {own}"][0] == "ok"
    assert "the running server has it" in found[f"port {own}"][1]
    name = f"port {port}{'/udp' if kind is DS else ''}"
    assert found[name][0] == "error"
    assert "in use by another program" in found[name][1]


async def test_all_addresses_are_the_servers_own_if_nobody_else_has_one_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    await asyncio.to_thread(make, ROUTER, folder)
    server = started(ROUTER, folder)
    with socket.socket() as other:
        try:
            await server.start()
            port = server.status["ports"][0]
            edit(folder, 'addresses = ["127.0.0.1"]', 'addresses = ["*"]')
            alone = await asyncio.to_thread(checked, ROUTER, folder)
            other.bind(("127.0.0.2", port))
            other.listen()
            found = await asyncio.to_thread(checked, ROUTER, folder, 1)
        finally:
            await server.close()
    assert alone[f"port {port}"] == ("ok", "the running server has it, at all addresses")
    assert found[f"port {port}"][0] == "error"


async def test_a_busy_port_is_a_doubt_if_nobody_may_look_into_the_running_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "server"
    await asyncio.to_thread(make, ROUTER, folder)
    server = started(ROUTER, folder)
    try:
        await server.start()
        monkeypatch.setattr(checking, "sockets_of", lambda pid: None)
        found = await asyncio.to_thread(checked, ROUTER, folder)
    finally:
        await server.close()
    grade, text = found[f"port {server.status['ports'][0]}"]
    assert (grade, "cannot be seen" in text) == ("warning", True)


def test_what_a_process_has_open_is_unknown_if_it_is_not_there() -> None:
    assert ports.sockets_of(1 << 30) is None


def test_a_port_that_the_settings_name_twice_is_an_error(tmp_path: Path) -> None:
    make(ROUTER, tmp_path / "server")
    text = (tmp_path / "server" / "router.toml").read_text()
    port = re.search(r"^ports = \[(\d+)\]$", text, re.MULTILINE)
    assert port is not None
    edit(tmp_path / "server", 'plain_port = "off"', f"plain_port = {port[1]}")
    found = checked(ROUTER, tmp_path / "server", code=1)[f"port {port[1]}"]
    assert found == ("error", "the settings name it twice: choose another port for one of them.")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("*", "127.0.0.1", True),
        ("::1", "*", True),
        (ANY, "127.0.0.1", True),
        ("127.0.0.1", ANY, True),
        ("127.0.0.1", "127.0.0.1", True),
        ("::", "::1", True),
        ("::", "127.0.0.1", False),
        (ANY, "::1", False),
        ("127.0.0.1", "127.0.0.2", False),
    ],
)
def test_addresses_that_cannot_have_the_same_port(one: str, other: str, expected: bool) -> None:
    assert ports.clash(one, other) is expected
