"""Listening sockets that a supervisor owns: nobody is refused while a killed server is started again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from pathlib import Path

from blindpost.wire.smp.commands import PING
from blindpost.wire.smp.responses import PONG
from tests.support.serving.commands import StartedRouter, edit, init, run
from tests.support.serving.passing import pass_sockets


async def test_whoever_connects_between_a_kill_and_the_next_start_waits_and_is_served(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    init(folder)
    with contextlib.ExitStack() as stack:
        listening, idle, unix = (
            stack.enter_context(socket.create_server(("127.0.0.1", 0))),
            stack.enter_context(socket.create_server(("127.0.0.1", 0))),
            stack.enter_context(socket.socket(socket.AF_UNIX)),
        )
        port = listening.getsockname()[1]
        edit(folder, "ports = [0]", f"ports = [{port}]")
        router = StartedRouter(folder)
        pass_sockets(router.child, [unix, idle, listening])
        try:
            await router.start()
            assert router.status["ports"] == [port]
            await router.told(b"the supervisor passed a socket at", 2)
            assert str(idle.getsockname()[1]).encode() in router.log
            before = await router.connect()
            assert await router.end(signal.SIGKILL) == -signal.SIGKILL
            await before.wait_closed()
            waiting = asyncio.create_task(router.connect())
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            assert not waiting.done()
            await router.start()
            client = await waiting
            assert isinstance(await client.send(PING()), PONG)
            await client.close()
            writer.close()
            assert await router.end(signal.SIGTERM) == 0
        finally:
            await router.close()


async def test_an_upgraded_router_has_every_socket_that_was_passed(tmp_path: Path) -> None:
    """Also those that it did not need before: the supervisor holds these ports."""
    folder = tmp_path / "router"
    init(folder)
    with contextlib.ExitStack() as stack:
        passed = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        first, second, idle = (sock.getsockname()[1] for sock in passed)
        edit(folder, "ports = [0]", f"ports = [{first}]")
        router = StartedRouter(folder)
        pass_sockets(router.child, passed)
        try:
            await router.start()
            edit(folder, f"ports = [{first}]", f"ports = [{first}, {second}]")
            for number in (1, 2):
                await asyncio.to_thread(run, "router", "upgrade", "-c", folder)
                router.status = await router.ask("status")
                assert (router.status["upgrades"], router.status["ports"]) == (number, [first, second])
                await (await router.connect()).close()
            told = [line for line in router.log.splitlines() if b"the supervisor passed a socket at" in line]
            unused = [[first, second, idle].index(int(line.split(b", ")[1].split(b")")[0])) for line in told]
            assert unused == [1, 2, 2, 2]
            assert await router.end(signal.SIGTERM) == 0
        finally:
            await router.close()


async def test_an_address_that_the_supervisor_does_not_pass_is_refused_before_an_upgrade(
    tmp_path: Path,
) -> None:
    """It keeps the port at its own address: the new program would have ended, and nobody served."""
    folder = tmp_path / "router"
    init(folder)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        edit(folder, "ports = [0]", f"ports = [{port}]")
        router = StartedRouter(folder)
        pass_sockets(router.child, [listening])
        try:
            await router.start()
            told = f"port {port} cannot be listened on: the supervisor holds it at 127.0.0.1. Name"
            edit(folder, 'addresses = ["127.0.0.1"]', 'addresses = ["*"]')
            done = await asyncio.to_thread(run, "router", "upgrade", "-c", folder, code=1)
            assert told in done.stderr
            done = await asyncio.to_thread(run, "router", "check", "-c", folder, "--json", code=1)
            assert told in done.stdout
            status = await router.ask("status")
            assert (status["state"], status["upgrades"]) == ("running", 0)
            assert await router.end() == 0
            router.child.spawn()
            assert await asyncio.to_thread(router.child.wait) == 1
            assert told.encode() in router.log
        finally:
            await router.close()
