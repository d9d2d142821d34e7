"""A small SOCKS5 proxy on a loopback socket, with a resolver of its own and a memory of what it was asked."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

NONE, PASSWORD, NO_ACCEPTABLE = 0, 2, 0xFF


class SocksProxy:
    """Connects every destination that it knows to a place on this machine."""

    def __init__(self) -> None:
        self.destinations: dict[tuple[str, int], int] = {}
        """Where a host and port really lead: to this local port."""
        self.credentials: tuple[bytes, bytes] | None = None
        """What is asked for; None: nothing."""
        self.bound = b"\x01\0\0\0\0\0\0"
        """The address with which it answers."""
        self.after_reply = b""
        """What it says when it should be silent."""
        self.stop_before_reply = False
        self.reply: int | None = None
        self.version = 5
        self.greetings: list[bytes] = []
        self.logins: list[tuple[bytes, bytes]] = []
        self.requests: list[tuple[int, str, int]] = []
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        """The client hung up while it waited for a reply."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        version, count = await reader.readexactly(2)
        methods = await reader.readexactly(count)
        self.greetings.append(bytes((version, count)) + methods)
        wanted = NONE if self.credentials is None else PASSWORD
        chosen = wanted if wanted in methods else NO_ACCEPTABLE
        writer.write(bytes((self.version, chosen)))
        if chosen == NO_ACCEPTABLE:
            return
        if chosen == PASSWORD and not await self._log_in(reader, writer):
            return
        _, command, _, kind = await reader.readexactly(4)
        assert command == 1
        if kind == 3:
            (size,) = await reader.readexactly(1)
            host = (await reader.readexactly(size)).decode("ascii")
        else:
            host = str(ipaddress.ip_address(await reader.readexactly(4 if kind == 1 else 16)))
        port = int.from_bytes(await reader.readexactly(2), "big")
        self.requests.append((kind, host, port))
        self.asked.set()
        if self.stop_before_reply:
            await reader.read()
            self.left.set()
            return
        local = self.destinations.get((host, port))
        reply = self.reply if self.reply is not None else (4 if local is None else 0)
        answer = bytes((5, reply, 0)) + self.bound
        for byte in answer[:-1]:
            writer.write(bytes((byte,)))
            await writer.drain()
        writer.write(answer[-1:] + self.after_reply)
        if reply == 0 and local is not None:
            await self._carry(reader, writer, local)

    async def _log_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        version, size = await reader.readexactly(2)
        assert version == 1
        user = await reader.readexactly(size)
        (size,) = await reader.readexactly(1)
        login = (user, await reader.readexactly(size))
        self.logins.append(login)
        writer.write(bytes((1, 0 if login == self.credentials else 1)))
        return login == self.credentials

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        onward_reader, onward_writer = await asyncio.open_connection("localhost", port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
            target.write_eof()

        try:
            await asyncio.gather(copy(reader, onward_writer), copy(onward_reader, writer))
        finally:
            onward_writer.close()

    async def stop(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def socks_proxy() -> AsyncIterator[tuple[SocksProxy, int]]:
    """A running proxy and its port."""
    proxy = SocksProxy()
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    try:
        yield proxy, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await proxy.stop()
        await server.wait_closed()
