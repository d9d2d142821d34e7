"""Where connections come from: TCP here, memory in `blindpost.testing`, both behind one interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

LISTEN_BACKLOG = 1024
ACCEPT_AT_ONCE = 1
"""How many connections asyncio takes before it looks at anything else.

It tries this often even when no file can be opened, and each failure schedules its own retry a second later:
with more than one at a time the retries multiply without end.
"""

P = TypeVar("P", bound=asyncio.BaseProtocol)


class HostRefusedError(OSError):
    """The host may not be connected to from here."""

    def __init__(self) -> None:
        super().__init__("this host may not be connected to from here")


class Listener(Protocol):
    """Accepts connections until it is closed."""

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports on which it listens, one for each address."""

    async def close(self) -> None:
        """Accept no more. Connections that were accepted stay."""


class Network(Protocol):
    """Makes and accepts connections; each gets a protocol object from `factory`."""

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P: ...

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> Listener: ...


class TcpListener:
    """A listening socket, or several."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.ports = tuple(sock.getsockname()[1] for sock in server.sockets)

    async def close(self) -> None:
        self._server.close()
        # ClosedError sockets leave the selector in the next turn of the loop.
        await asyncio.sleep(0)


class TcpNetwork:
    """The real one."""

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        _, protocol = await asyncio.get_running_loop().create_connection(factory, host, port)
        return protocol

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> TcpListener:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(factory, host, port, backlog=ACCEPT_AT_ONCE)
        let_wait(server)
        return TcpListener(server)


def let_wait(server: asyncio.Server) -> None:
    """Let the system queue connections until asyncio takes them; asyncio only asked for `ACCEPT_AT_ONCE`."""
    for listening in server.sockets:
        with listening.dup() as sock:
            sock.listen(LISTEN_BACKLOG)


TCP = TcpNetwork()
