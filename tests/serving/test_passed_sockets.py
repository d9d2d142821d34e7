"""Listening sockets that a supervisor owns: nobody is refused while a killed server is started again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from pathlib import Path

from blindpost.wire.smp.commands import PING
from blindpost.wire.smp.responses import PONG
from tests.support.serving.commands import StartedRouter, edit, init
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
