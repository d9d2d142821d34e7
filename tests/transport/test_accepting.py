"""A listener out of file descriptors, and one that closes while somebody connects."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from typing import Any

import pytest

from blindpost.transport.network import TcpNetwork

CLIENTS = 30
TURNS = 6
"""Of the loop, within which a new connection has its protocol."""


async def test_without_file_descriptors_connections_wait_and_errors_are_rare() -> None:
    """By default asyncio would try a thousand times at once, and each failure would schedule a retry."""
    accepted: list[asyncio.BaseTransport] = []
    ended = asyncio.Event()
    told: list[dict[str, Any]] = []

    class Taken(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(transport)
            transport.close()

        def connection_lost(self, error: Exception | None) -> None:
            if len(accepted) == CLIENTS:
                ended.set()

    loop = asyncio.get_running_loop()
    listener = await TcpNetwork().listen(Taken, "127.0.0.1", 0)
    loop.set_exception_handler(lambda _, context: told.append(context))
    clients = [socket.socket() for _ in range(CLIENTS)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        for client in clients:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", listener.ports[0]))
        await asyncio.sleep(2.5)
        assert 1 <= len(told) <= 4
        assert not accepted
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await ended.wait()
    await listener.close()
    for client in clients:
        client.close()


async def test_a_connection_that_is_just_being_made_when_its_listener_closes_is_not_forgotten() -> None:
    """asyncio alone would keep it open for ever if its server is closed before it has a transport."""

    class Ending(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()

    loop = asyncio.get_running_loop()
    for turns in range(TURNS):
        listener = await TcpNetwork().listen(Ending, "127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", listener.ports[0])) as client:
            client.setblocking(False)
            for _ in range(turns):
                await asyncio.sleep(0)
            await listener.close()
            async with asyncio.timeout(10):
                with contextlib.suppress(ConnectionResetError):
                    assert await loop.sock_recv(client, 1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", listener.ports[0]))
