"""A server that is replaced by the installed program: the same process, the same ports, nobody refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from blindpost.cli import output
from blindpost.ds.process import DsService
from blindpost.ds.settings import DsPlace
from blindpost.router.running.settings import RouterPlace
from blindpost.serving import control, upgrading
from blindpost.serving import process as processes
from blindpost.serving.children import free_port
from blindpost.serving.control import NotRunningError
from blindpost.serving.failures import OperatorError
from blindpost.serving.place import Place, ask_running
from blindpost.serving.process import Process
from blindpost.store.postgres import CONNECT_S
from blindpost.transport import listening
from tests.support.router.load import Pair, Tally
from tests.support.serving.commands import StartedRouter, edit, init, run, started
from tests.support.serving.kinds import DS, NTF, ROUTER, Kind, http, make
from tests.support.serving.kinds import started as server_of
from tests.support.serving.systemd import Systemd

UPGRADES = 3


async def knock(port: int, stop: asyncio.Event) -> int:
    """Connect again and again; how often. A refused connection is an error."""
    count = 0
    while not stop.is_set():
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        count += 1
        await asyncio.sleep(0.005)
    return count


@pytest.mark.timeout(180)
async def test_nothing_is_lost_and_nobody_is_refused_while_a_router_is_upgraded(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    init(folder)
    edit(folder, "new_per_address_per_second = 10.0", "new_per_address_per_second = 1e6")
    edit(folder, "new_per_address_burst = 500", "new_per_address_burst = 1000000")
    edit(folder, "connections_per_address = 1000", "connections_per_address = 100000")
    async with started(folder) as router:
        tally, stop = Tally(), asyncio.Event()
        pair, pid = Pair(router, tally, 1), router.child.pid
        port = router.status["ports"][0]
        knocking = asyncio.create_task(knock(port, stop))
        for number in range(1, UPGRADES + 1):
            tally.aim(100)
            living = asyncio.create_task(pair.live())
            await tally.reached.wait()
            if number == UPGRADES:
                await by_signal(router, number)
            else:
                told = await asyncio.to_thread(run, "router", "upgrade", "-c", folder)
                assert "runs version" in told.stderr + told.stdout
            await living
            status = await router.ask("status")
            assert (status["pid"], status["upgrades"], status["ports"]) == (pid, number, [port])
        await pair.check()
        stop.set()
        assert await knocking > 0
        assert await router.end() == 0
        assert b" ERROR " not in router.log, router.log.decode()


async def by_signal(router: StartedRouter, number: int) -> None:
    router.child.send(signal.SIGUSR2)
    await router.told(b"is ready", number + 1)


@pytest.mark.parametrize("kind", [NTF, DS], ids=lambda kind: str(kind.word))
async def test_every_server_keeps_what_it_stored(kind: Kind, tmp_path: Path) -> None:
    made = await asyncio.to_thread(make, kind, tmp_path / "one")
    server = server_of(kind, tmp_path / "one")
    try:
        await server.start()
        await kind.use(server, made)
        await asyncio.to_thread(run, kind.word, "upgrade", "-c", tmp_path / "one")
        await kind.use(server, made)
        status = await server.ask("status")
        assert (status["upgrades"], kind.kept(status)) == (1, 2)
        assert await server.end(signal.SIGTERM) == 0
    finally:
        await server.close()


async def test_the_watchdog_waits_for_a_program_that_takes_over(tmp_path: Path) -> None:
    """A drain and a store that is brought up to date may take longer than a loop may stand still."""
    await asyncio.to_thread(make, DS, tmp_path / "one")
    server = server_of(DS, tmp_path / "one")
    server.environment |= {"NOTIFY_SOCKET": str(tmp_path / "systemd"), "WATCHDOG_USEC": "60000000"}
    with Systemd(tmp_path / "systemd") as systemd:
        try:
            await server.start()
            await asyncio.to_thread(run, "ds", "upgrade", "-c", tmp_path / "one")
            assert await server.end(signal.SIGTERM) == 0
        finally:
            await server.close()
    said = [
        text.partition("STATUS=")[0].split("\n") for text in systemd.said if not text.startswith("WATCHDOG=")
    ]
    ready = ["READY=1", "WATCHDOG_USEC=60000000", ""]
    assert [row for row in said if not row[0].startswith("RELOADING")] == [
        ready,
        ["WATCHDOG_USEC=86400000000", ""],
        ready,
        ["STOPPING=1", "WATCHDOG=1", ""],
    ]


def test_whoever_asks_for_an_upgrade_waits_longer_than_the_server_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would be told of a failure, and the upgrade could come about after that."""
    make(DS, tmp_path / "one")
    waited: list[float] = []

    def asked(_place: object, command: str, timeout_s: float = control.ASK_TIMEOUT_S) -> dict[str, object]:
        if command == "upgrade":
            waited.append(timeout_s)
            raise OperatorError("the installed program does not answer.")
        return {"pid": os.getpid(), "upgrades": 0}

    monkeypatch.setattr(output, "ask_running", asked)
    with pytest.raises(OperatorError, match="does not answer"):
        output.upgraded(DsPlace.read(tmp_path / "one"), as_json=False)
    (seconds,) = waited
    assert seconds > upgrading.CHECK_S_MAX + CONNECT_S


async def test_a_program_that_is_not_there_any_more_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(make, DS, tmp_path / "one")
    monkeypatch.setattr(upgrading, "COMMAND", (str(tmp_path / "old" / "python"), "-m", "blindpost.cli"))
    with pytest.raises(OperatorError, match=r"the installed program cannot be started .*Nothing was changed"):
        await upgrading.check(DsPlace.read(tmp_path / "one"))


@contextlib.asynccontextmanager
async def asked_program(folder: Path, upgrade: Callable[[], object]) -> AsyncIterator[None]:
    """The installed program is asked whether it would start, and waits for its key as long as the block."""
    key = folder / "keys" / "router.pem"
    content, real = key.read_bytes(), key.rename(key.with_name("real.pem"))
    os.mkfifo(key)
    upgrade()
    end = await asyncio.to_thread(os.open, key, os.O_WRONLY)
    try:
        yield
    finally:
        real.rename(key)
        with contextlib.suppress(BrokenPipeError):
            os.write(end, content)
        os.close(end)


async def test_one_upgrade_at_a_time(tmp_path: Path) -> None:
    await asyncio.to_thread(make, ROUTER, tmp_path / "one")
    async with started(tmp_path / "one") as router:
        async with asked_program(tmp_path / "one", lambda: router.child.send(signal.SIGUSR2)):
            for _ in range(10):
                router.child.send(signal.SIGUSR2)
            told = await asyncio.gather(*(router.ask("upgrade") for _ in range(5)), return_exceptions=True)
            assert all(isinstance(each, OperatorError) for each in told)
            assert {str(each) for each in told} == {"an upgrade is under way already."}
        await router.told(b"is ready", 2)
        assert (await router.ask("status"))["upgrades"] == 1
        assert await router.end(signal.SIGTERM) == 0
        assert [line for line in router.log.splitlines() if b"ERROR" in line] == []


async def test_a_signal_does_not_end_a_server_that_is_about_to_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop, which handles it, is closed a moment before; nor does a second upgrade begin."""
    asked: list[Place[Any]] = []

    async def would_start(place: Place[Any]) -> None:
        asked.append(place)

    monkeypatch.setattr(upgrading, "check", would_start)
    await asyncio.to_thread(make, DS, tmp_path / "one")
    running: list[Process[DsService]] = []

    def ready(process: Process[DsService]) -> None:
        running.append(process)
        process.asked_to_upgrade()

    handled = (signal.SIGHUP, signal.SIGUSR2)
    try:
        assert await processes._serve(DsService, DsPlace.read(tmp_path / "one"), ready) is not None
        assert [signal.getsignal(number) for number in handled] == [signal.SIG_IGN, signal.SIG_IGN]
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
    (process,) = running
    with pytest.raises(OperatorError, match="it is stopping already"):
        await process.upgrade()
    assert len(asked) == 1


async def test_an_upgrade_that_is_asked_for_while_a_server_begins_passes_all_of_its_listeners_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def would_start(_place: Place[Any]) -> None:
        pass

    async def begin(_service: DsService) -> None:
        await process.upgrade()

    monkeypatch.setattr(upgrading, "check", would_start)
    monkeypatch.setattr(DsService, "begin", begin)
    await asyncio.to_thread(make, DS, tmp_path / "one")
    process = await Process.open(DsService, DsPlace.read(tmp_path / "one"))
    await process.run(lambda: None)
    assert process.successor is not None
    left = json.loads(process.successor[listening.VARIABLE])
    for _, _, descriptors in left:
        for descriptor in descriptors:
            os.close(descriptor)
    assert isinstance(process.ports, dict)
    assert [port for _, port, _ in left] == [process.ports["tls"]]


async def test_stopping_while_the_installed_program_is_asked_leaves_nothing_behind(tmp_path: Path) -> None:
    await asyncio.to_thread(make, ROUTER, tmp_path / "one")
    async with started(tmp_path / "one") as router:
        asked: list[asyncio.Task[object]] = []

        def upgrade() -> None:
            asked.append(asyncio.create_task(router.ask("upgrade")))

        async with asked_program(tmp_path / "one", upgrade):
            (child,) = children_of(router.child.pid)
            assert await router.end(signal.SIGTERM) == 0
        with pytest.raises(OperatorError):
            await asked[0]
        assert child not in os.listdir("/proc")
        assert [line for line in router.log.splitlines() if b"ERROR" in line] == []


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def test_a_program_that_would_not_start_does_not_take_over(tmp_path: Path) -> None:
    await asyncio.to_thread(make, ROUTER, tmp_path / "one")
    async with started(tmp_path / "one") as router:
        edit(tmp_path / "one", "quota = 128", "quota = 0")
        told = await asyncio.to_thread(run, "router", "upgrade", "-c", tmp_path / "one", code=1)
        assert "quota" in told.stderr
        edit(tmp_path / "one", "quota = 0", "quota = 128")
        (tmp_path / "one" / "keys" / "router.pem").rename(tmp_path / "away")
        told = await asyncio.to_thread(run, "router", "upgrade", "-c", tmp_path / "one", code=1)
        assert "would not start here" in told.stderr
        assert "Nothing was changed" in told.stderr
        status = await router.ask("status")
        assert (status["state"], status["upgrades"]) == ("running", 0)


async def test_a_port_that_another_program_has_does_not_end_the_running_router(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    await asyncio.to_thread(make, ROUTER, folder)
    async with started(folder) as router:
        own = router.status["ports"][0]
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            edit(folder, f"ports = [{own}]", f"ports = [{own}, {port}]")
            told = await asyncio.to_thread(run, "router", "upgrade", "-c", folder, code=1)
        assert f"port {port} is in use by another program" in told.stderr
        assert "Nothing was changed" in told.stderr
        status = await router.ask("status")
        assert (status["state"], status["upgrades"]) == ("running", 0)


async def test_a_router_is_upgraded_to_fewer_and_to_more_addresses_at_the_same_port(tmp_path: Path) -> None:
    folder, changed = tmp_path / "one", ('addresses = ["127.0.0.1"]', 'addresses = ["*"]')
    await asyncio.to_thread(make, ROUTER, folder)
    async with started(folder) as router:
        ports = router.status["ports"]
        for number, (before, after) in enumerate((changed, changed[::-1]), 1):
            edit(folder, before, after)
            await asyncio.to_thread(run, "router", "upgrade", "-c", folder)
            status = await router.ask("status")
            assert (status["upgrades"], set(status["ports"])) == (number, set(ports))
            await (await router.connect()).close()


async def test_the_port_of_the_site_may_be_one_that_was_for_smp_before(tmp_path: Path) -> None:
    folder, second = tmp_path / "one", free_port()
    await asyncio.to_thread(make, ROUTER, folder)
    first = re.search(r"ports = \[(\d+)\]", (folder / "router.toml").read_text())
    assert first is not None
    edit(folder, first[0], f"ports = [{first[1]}, {second}]")
    async with started(folder) as router:
        edit(folder, f"ports = [{first[1]}, {second}]", first[0])
        edit(folder, 'plain_port = "off"', f"plain_port = {second}")
        await asyncio.to_thread(run, "router", "upgrade", "-c", folder)
        assert (await router.ask("status"))["upgrades"] == 1
        assert (await http(second, "/"))[0] == 200


async def test_a_program_that_ends_instead_of_serving_is_told_at_once(tmp_path: Path) -> None:
    """Its settings are spoilt after it said that it would start."""
    folder = tmp_path / "one"
    await asyncio.to_thread(make, ROUTER, folder)
    async with started(folder) as router:
        asked: list[asyncio.Task[subprocess.CompletedProcess[str]]] = []

        def upgrade() -> None:
            words = ("router", "upgrade", "-c", folder)
            asked.append(asyncio.create_task(asyncio.to_thread(run, *words, code=1)))

        async with asked_program(folder, upgrade):
            edit(folder, "quota = 128", "quota = 0")
        assert "ended before it served" in (await asked[0]).stderr
        assert await router.end() == 1


async def test_the_installed_program_is_asked_about_the_settings_that_the_server_has(tmp_path: Path) -> None:
    await asyncio.to_thread(make, ROUTER, tmp_path / "one")
    default = tmp_path / "one" / "router.toml"
    other = default.rename(default.with_name("other.toml"))
    place = RouterPlace.read(other)
    await upgrading.check(place)
    with pytest.raises(NotRunningError, match=f"start -c {other}`"):
        ask_running(place, "status")
    other.rename(default)
    with pytest.raises(NotRunningError, match=f"start -c {default.parent}`"):
        ask_running(RouterPlace.read(default), "status")
    other.write_text("nonsense")
    with pytest.raises(OperatorError, match="would not start here"):
        await upgrading.check(place)
