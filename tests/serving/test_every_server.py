"""What every server promises, shown on the real process of each kind."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from blindpost.ops.servers import find
from blindpost.serving.children import free_port
from tests.support.serving.bugs import BUGS
from tests.support.serving.commands import Started, run
from tests.support.serving.dashboards import missing
from tests.support.serving.kinds import CANARY, DS, KINDS, NTF, ROUTER, Kind, change, http, make, started
from tests.support.serving.systemd import Systemd

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.word))

SECRET = "device token 5ecre7"
SABOTAGE = f"""
import os
if os.environ.get("BLINDPOST_SABOTAGE"):
    from blindpost.serving import health
    health.LOOK_S = 0.05
    look = health.Watch.look
    async def fail(self):
        if self.looked:
            raise ValueError({SECRET!r})
        self.looked = True
        return await look(self)
    health.Watch.looked = False
    health.Watch.look = fail
"""

FULL_DISK = """
import os
if os.environ.get("BLINDPOST_FULL"):
    look = os.statvfs
    def full(path):
        found = look(path)
        if str(path) != os.environ["BLINDPOST_FULL"]:
            return found
        return os.statvfs_result((*found[:4], 0, *found[5:]))
    os.statvfs = full
"""
STORES = {
    ROUTER: ('folder = "store"', 'folder = "{}"', "store"),
    NTF: ('file = "ntf.db"', 'file = "{}/ntf.db"', "ntf.db"),
    DS: ('durability = "full"', 'durability = "full"\nfolder = "{}"', "store"),
}
"""The setting that locates a store, its replacement, and what is found there."""
FAILING_ROUND = """
import os
if os.environ.get("BLINDPOST_SABOTAGE"):
    from blindpost.{module} import {owner}
    from blindpost.serving.logs import log
    work = {owner}.{name}
    def fail(self, *arguments):
        if self.failed:
            log.info("another round was done")
            return work(self, *arguments)
        {owner}.failed = True
        raise ValueError({secret!r})
    {owner}.failed = False
    {owner}.{name} = fail
"""
ROUNDS = {
    CANARY: ("sending", "canary.book", "Book", "overdue"),
    DS: ("closing overdue connections", "ds.server", "DeliveryService", "close_overdue"),
    NTF: ("the scan of the store", "ntf.server", "NtfRouter", "look"),
}
"""What a server does periodically: its task, and the function that does it."""


@pytest.fixture
def made(kind: Kind, tmp_path: Path) -> dict[str, Any]:
    """What `init` printed about a new server."""
    return make(kind, tmp_path / "server")


@pytest.fixture
def folder(made: dict[str, Any], tmp_path: Path) -> Path:
    """Where that server is."""
    return tmp_path / "server"


def open_files(pid: int) -> int:
    """The limit on open files of a process."""
    found = re.search(r"Max open files\s+(\d+)", Path(f"/proc/{pid}/limits").read_text())
    assert found is not None
    return int(found[1])


def move_store(kind: Kind, folder: Path, elsewhere: Path) -> None:
    """Move the store of a stopped server into a separate folder."""
    before, after, name = STORES[kind]
    change(folder, kind, (before, after.format(elsewhere)))
    if (folder / name).is_dir():
        (folder / name).rename(elsewhere)
    else:
        elsewhere.mkdir()
        for file in folder.glob(f"{name}*"):
            file.rename(elsewhere / file.name)


@contextlib.asynccontextmanager
async def running(kind: Kind, folder: Path, **options: Any) -> AsyncIterator[Started]:
    server = started(kind, folder)
    server.environment.update(options.get("environment", {}))
    server.child.wrapper = tuple(options.get("wrapper", ()))
    try:
        await server.start()
        yield server
    finally:
        await server.close()


@every_kind
async def test_it_answers_on_any_socket_path_reloads_and_drains(
    kind: Kind, folder: Path, tmp_path: Path
) -> None:
    change(folder, kind, ('socket = "control.sock"', 'socket = "../elsewhere.sock"'))
    environment = {"NOTIFY_SOCKET": str(tmp_path / "systemd"), "WATCHDOG_USEC": "100000"}
    with Systemd(tmp_path / "systemd") as systemd:
        await _answers_reloads_and_drains(kind, folder, tmp_path, environment)
    said = systemd.said
    assert "READY=1" in said[0]
    assert said.count(f"WATCHDOG=1\nSTATUS={said[0].partition('STATUS=')[2]}") + said.count("WATCHDOG=1") > 1
    reloads = [number for number, text in enumerate(said) if text.startswith("RELOADING=1\nMONOTONIC_USEC=")]
    assert len(reloads) == 2
    assert all("READY=1" in said[number + 1 :] for number in reloads)
    assert said[-1].startswith("STOPPING=1")


async def _answers_reloads_and_drains(
    kind: Kind, folder: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    async with running(kind, folder, environment=environment) as server:
        assert not (folder / "control.sock").exists()
        told = await asyncio.to_thread(run, kind.word, "status", "-c", folder)
        assert str(server.child.pid) in told.stdout, "a pid is no amount"
        if kind is not CANARY:
            told = await asyncio.to_thread(run, kind.word, "status", "-c", folder, "--top")
            assert re.search(r"(?m)^handshakes +0$", told.stdout)
            assert re.search(r"(?m)^made room +0$", told.stdout)
        card = await find(folder).look()
        ready = server.status["ready"]
        expected = ("running", "") if ready else ("not ready", server.status["health"])
        assert (card.health.value, card.note) == expected

        port = int(server.status["metrics_port"])
        status = await server.ask("status")
        code, sentence = await http(port, "/health")
        assert (code == 200, sentence.strip()) == (status["ready"], status["health"])
        assert status["ready"] is (kind is not CANARY), status["health"]
        assert await http(port, "/live") == (200, "the event loop turns\n")
        code, metrics = await http(port, "/metrics")
        assert code == 200
        ready = f'blindpost_{kind.word}_ready{{reason="{status["health"]}"}} {int(status["ready"])}'
        assert ready in metrics.splitlines()
        exposed = {re.split("[ {]", line)[0] for line in metrics.splitlines() if not line.startswith("#")}
        assert missing(kind.word, exposed) == [], "of what the dashboard and the alerts show"
        for name in ("memory_limit_bytes", "disk_size_bytes", "connections_limit", "certificate_until"):
            value, unit = status["machine"][name], "_seconds" * name.startswith("certificate")
            metric = f"blindpost_{kind.word}_{name}{unit}"
            assert (f"{metric} {value}" in metrics.splitlines()) if value else (f"{metric} " not in metrics)
        assert status["machine"]["memory_bytes"] > 1 << 20
        assert (status["failed_work"], status["accept_failures"]) == ({}, 0)
        assert bool(status["schema"]) is (kind is not CANARY)

        new_port = free_port()
        change(folder, kind, kind.taken, kind.restart, ("port = 0\n", f"port = {new_port}\n"))
        server.child.send(signal.SIGHUP)
        await server.told(b"need a restart")
        assert re.search(rb"need a restart: [a-z_.]+\n", server.log), "only the one that does"
        assert (await http(new_port, "/live"))[0] == 200
        with pytest.raises(ConnectionRefusedError):
            await http(port, "/live")
        name = kind.taken[0].partition(" ")[0]
        assert re.search(rf"now in effect: .*\.{name}\b".encode(), server.log)
        change(folder, kind, ("[metrics]", "[metrics"))
        server.child.send(signal.SIGHUP)
        await server.told(b"nothing was changed")
        change(folder, kind, ("[metrics", "[metrics]"))
        assert (await server.ask("status"))["pid"] == server.child.pid
        assert await server.end(signal.SIGTERM) == 0
    assert b"everything it accepted is stored and answered" in server.log
    assert not (tmp_path / "elsewhere.sock").exists()


@every_kind
async def test_kill_9_loses_nothing(kind: Kind, folder: Path, made: dict[str, Any]) -> None:
    async with running(kind, folder) as server:
        await kind.use(server, made)
        assert await server.end(signal.SIGKILL) == -signal.SIGKILL
        await server.start()
        assert kind.kept(await server.ask("status")) == 1


@every_kind
@pytest.mark.parametrize("limit", ["soft", "hard"])
async def test_the_limit_on_open_files_is_raised_or_reported(kind: Kind, limit: str, folder: Path) -> None:
    if kind is not CANARY:
        change(folder, kind, kind.connections)
    wanted, files = (80, 72) if kind is CANARY else (564, 128)
    lowered = f"-Sn {files}" if limit == "soft" else f"-n {files}"
    shell = ("sh", "-c", f'ulimit {lowered} && exec "$@"', "sh")
    async with running(kind, folder, wrapper=shell) as server:
        allowed = open_files(server.child.pid)
        told = b"connections at once are refused (raise LimitNOFILE" in server.log
        assert (allowed, told) == ((wanted, False) if limit == "soft" else (files, True))


@every_kind
async def test_keys_that_others_can_read_are_reported(kind: Kind, folder: Path) -> None:
    async with running(kind, folder) as server:
        assert b"can be read by other users" not in server.log
        await server.end(signal.SIGTERM)
        for name in kind.secrets:
            (folder / name).chmod(0o644)
        await server.start()
        for name in kind.secrets:
            assert f"{folder / name} can be read by other users".encode() in server.log


@every_kind
async def test_a_failed_background_task_is_restarted_and_its_error_text_not_logged(
    kind: Kind, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SABOTAGE)
    environment = {"PYTHONPATH": str(tmp_path), "BLINDPOST_SABOTAGE": "1"}
    async with running(kind, folder, environment=environment) as server:
        await server.told(b"the health check failed; restarting")
        code, metrics = await http(int(server.status["metrics_port"]), "/metrics")
        assert code == 200
        counted = re.search(r'task_failures_total\{task="the health check"\} (\d+)', metrics)
        assert counted is not None
        assert int(counted[1]) >= 1
        assert b"ValueError" in server.log
        assert SECRET.encode() not in server.log
        assert await server.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("kind", BUGS, ids=lambda kind: str(kind.word))
async def test_a_bug_in_one_command_is_answered_and_rolls_back_only_that_command(
    kind: Kind, folder: Path, made: dict[str, Any], tmp_path: Path
) -> None:
    """One block holds a good command, one that hits the bug after changing everything, and a good one."""
    bug = BUGS[kind]
    async with running(kind, folder, environment=bug.plant(tmp_path, SECRET)) as server:
        done, stored = await bug.block(server, made)
        assert done == [True, False, True]
        assert b"ValueError" in server.log
        assert SECRET.encode() not in server.log
        assert await server.end(signal.SIGKILL) == -signal.SIGKILL
        await server.start()
        assert await stored()


@pytest.mark.parametrize("kind", ROUNDS, ids=lambda kind: str(kind.word))
async def test_a_failed_round_is_contained_and_followed_by_others(
    kind: Kind, folder: Path, tmp_path: Path
) -> None:
    task, module, owner, name = ROUNDS[kind]
    planted = FAILING_ROUND.format(module=module, owner=owner, name=name, secret=SECRET)
    (tmp_path / "sitecustomize.py").write_text(planted)
    environment = {"PYTHONPATH": str(tmp_path), "BLINDPOST_SABOTAGE": "1"}
    async with running(kind, folder, environment=environment) as server:
        await server.told(f"{task} failed; restarting".encode())
        await server.told(b"another round was done")
        _, metrics = await http(int(server.status["metrics_port"]), "/metrics")
        assert f'task_failures_total{{task="{task}"}} 1' in metrics
        assert SECRET.encode() not in server.log
        assert await server.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("kind", STORES, ids=lambda kind: str(kind.word))
async def test_the_disk_of_a_store_elsewhere_is_checked(kind: Kind, folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    move_store(kind, folder, elsewhere)
    (tmp_path / "sitecustomize.py").write_text(FULL_DISK)
    environment = {"PYTHONPATH": str(tmp_path), "BLINDPOST_FULL": str(elsewhere)}
    async with running(kind, folder, environment=environment) as server:
        assert not server.status["ready"]
        assert server.status["health"].startswith(f"the disk of {elsewhere} is full: 0 MiB are left")


@every_kind
async def test_nothing_is_imported_from_the_working_folder(
    kind: Kind, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "contextlib.py").write_text("raise SystemExit('imported from the current directory')\n")
    monkeypatch.chdir(trap)
    async with running(kind, folder) as server:
        assert await server.end(signal.SIGTERM) == 0
