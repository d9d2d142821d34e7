"""Listening TCP sockets, and how they outlive their program: nobody is refused while it is replaced.

A program that is about to be replaced keeps its listening sockets open and names them in an environment
variable. Connections wait in the system's queue meanwhile. What the new program does not ask for is closed.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Sequence

LISTEN_BACKLOG = 1024
ACCEPT_AT_ONCE = 1
"""How many connections asyncio takes before it looks at anything else.

It tries this often even when no file can be opened, and each failure schedules its own retry a second later:
with more than one at a time the retries multiply without end.
"""
VARIABLE = "BLINDPOST_LISTENING"

Key = tuple[str | None, int]
"""The address and port that were asked for."""


def let_wait(server: asyncio.Server) -> None:
    """Let the system queue connections until asyncio takes them; asyncio only asked for `ACCEPT_AT_ONCE`."""
    for listening in server.sockets:
        with listening.dup() as sock:
            sock.listen(LISTEN_BACKLOG)


class TcpListener:
    """A listening socket, or several."""

    def __init__(self, key: Key, servers: Sequence[asyncio.Server]) -> None:
        """Use `listen`."""
        self.key = key
        self._servers = servers
        self.ports: tuple[int, ...] = tuple(sock.getsockname()[1] for sock in self._sockets())
        _listeners.add(self)

    @classmethod
    async def listen(
        cls, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> TcpListener:
        """With the sockets that the program before this one had there, if it left them."""
        loop, left = asyncio.get_running_loop(), _inherited.pop((host, port), ())
        if left:
            made = [await loop.create_server(factory, sock=sock, backlog=ACCEPT_AT_ONCE) for sock in left]
        else:
            made = [await loop.create_server(factory, host, port, backlog=ACCEPT_AT_ONCE)]
        for server in made:
            let_wait(server)
        return cls((host, port), made)

    def _sockets(self) -> list[socket.socket]:
        return [sock for server in self._servers for sock in server.sockets]

    def stop(self) -> None:
        """Accept no more; the sockets are closed in the next turn of the loop."""
        _listeners.discard(self)
        for server in self._servers:
            server.close()

    async def close(self) -> None:
        self.stop()
        await asyncio.sleep(0)

    def duplicates(self) -> list[int]:
        """Descriptors of the same sockets, which a program that is started from here has too."""
        found = [os.dup(sock.fileno()) for sock in self._sockets()]
        for descriptor in found:
            os.set_inheritable(descriptor, True)
        return found


_listeners: set[TcpListener] = set()
_inherited: dict[Key, list[socket.socket]] = {}


def left_open() -> dict[str, str]:
    """Keep what is listened on open for the next program: the variable that names it."""
    return {VARIABLE: json.dumps([[*listener.key, listener.duplicates()] for listener in _listeners])}


def inherit() -> None:
    """Take over what the program before this one left open."""
    for host, port, descriptors in json.loads(os.environ.pop(VARIABLE, "[]")):
        _inherited[host, port] = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        for sock in _inherited[host, port]:
            sock.set_inheritable(False)


def let_go() -> None:
    """Close what was left open and nobody asked for."""
    for sockets in _inherited.values():
        for sock in sockets:
            sock.close()
    _inherited.clear()
