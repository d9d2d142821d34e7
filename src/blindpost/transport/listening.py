"""Listening TCP sockets, and how they outlive their program: nobody is refused while it is replaced.

A program that is about to be replaced keeps its listening sockets open and names them in an environment
variable. Connections wait in the system's queue meanwhile. What the new program does not ask for is closed.

A supervisor may own the sockets instead, and pass them at every start as systemd does (LISTEN_FDS): then
nobody is refused even while a program that was killed is started again. The next program gets all of them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import socket
from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

LISTEN_BACKLOG = 1024
ACCEPT_AT_ONCE = 1
"""How many connections asyncio takes before it looks at anything else.

It tries this often even when no file can be opened, and each failure schedules its own retry a second later:
with more than one at a time the retries multiply without end.
"""
VARIABLE = "BLINDPOST_LISTENING"
PASSED = "BLINDPOST_PASSED"
FIRST_PASSED = 3
"""The descriptor at which a supervisor begins."""

Key = tuple[str | None, int]
"""The address and port that were asked for."""


def let_wait(server: asyncio.Server) -> None:
    """Let the system queue connections until asyncio takes them; asyncio only asked for `ACCEPT_AT_ONCE`."""
    for listening in server.sockets:
        with listening.dup() as sock:
            sock.listen(LISTEN_BACKLOG)


def stop_accepting(server: asyncio.Server) -> None:
    """Take no more connections, and close the listening sockets in the next turn of the loop.

    A connection that asyncio took in this turn gets its transport in the next. If its server were closed by
    then, asyncio would forget it without closing it: the other side would wait in vain.
    """
    loop = server.get_loop()
    for listening in server.sockets:
        loop.remove_reader(listening)
    loop.call_soon(server.close)


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
        """With the sockets that the program before this one had there, or a supervisor has, if any."""
        loop, left = asyncio.get_running_loop(), _inherited.pop((host, port), None) or _passed_for(host, port)
        if left:
            made = [await loop.create_server(factory, sock=sock, backlog=ACCEPT_AT_ONCE) for sock in left]
        else:
            _make_room(host, port)
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
            stop_accepting(server)

    async def close(self) -> None:
        self.stop()
        await asyncio.sleep(0)

    def duplicates(self) -> list[int]:
        """Descriptors of the same sockets, which a program that is started from here has too."""
        return [_duplicate(sock) for sock in self._sockets()]


_listeners: set[TcpListener] = set()
_inherited: dict[Key, list[socket.socket]] = {}
_passed: dict[socket.socket, bool] = {}
"""What a supervisor passed, and whether anybody listens there. It stays open: a server may listen again."""


def _duplicate(sock: socket.socket) -> int:
    descriptor = os.dup(sock.fileno())
    os.set_inheritable(descriptor, True)
    return descriptor


def left_open() -> dict[str, str]:
    """Keep what is listened on open for the next program: the variable that names it."""
    own = [listener for listener in _listeners if not any(_is_at(sock, *listener.key) for sock in _passed)]
    return {VARIABLE: json.dumps([[*listener.key, listener.duplicates()] for listener in own])}


def passed_on() -> dict[str, str]:
    """Keep what a supervisor passed for the next program, which has no other way to these ports."""
    return {PASSED: json.dumps([_duplicate(sock) for sock in _passed])}


def passed_at() -> list[tuple[str, int]]:
    """The addresses and ports that a supervisor holds for this process, whoever listens there."""
    return [sock.getsockname()[:2] for sock in _passed if _is_tcp(sock)]


def inherit() -> None:
    """Take over what the program before this one left open, and what a supervisor passes."""
    for host, port, descriptors in json.loads(os.environ.pop(VARIABLE, "[]")):
        _inherited[host, port] = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        for sock in _inherited[host, port]:
            sock.set_inheritable(False)
    passed: list[int] = json.loads(os.environ.pop(PASSED, "[]"))
    pid, count, _ = (os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if pid == str(os.getpid()) and count.isdecimal():
        passed += range(FIRST_PASSED, FIRST_PASSED + int(count))
    for descriptor in passed:
        sock = socket.socket(fileno=descriptor)
        sock.set_inheritable(False)
        _passed[sock] = False


def _passed_for(host: str | None, port: int) -> list[socket.socket]:
    """Duplicates of the sockets that a supervisor has at this address, or at all of them."""
    found = [sock for sock in _passed if _is_at(sock, host, port)]
    for sock in found:
        _passed[sock] = True
    return [sock.dup() for sock in found]


def _make_room(host: str | None, port: int) -> None:
    """Close what was left open at this port and would be in the way of a new socket."""
    for sockets in _inherited.values():
        for sock in tuple(sockets):
            at, at_port, *_ = sock.getsockname()
            if at_port == port and overlap(at, host):
                sockets.remove(sock)
                sock.close()


def overlap(one: str | None, other: str | None) -> bool:
    """Whether no two sockets can have the same port at these addresses; None is all of them."""
    if one is None or other is None:
        return True
    first, second = ipaddress.ip_address(one), ipaddress.ip_address(other)
    if first.version != second.version:
        return False
    return first == second or first.is_unspecified or second.is_unspecified


def _is_at(sock: socket.socket, host: str | None, port: int) -> bool:
    if not _is_tcp(sock):
        return False
    at, at_port, *_ = sock.getsockname()
    return at_port == port and is_meant(at, host)


def _is_tcp(sock: socket.socket) -> bool:
    return sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type is socket.SOCK_STREAM


def is_meant(at: str, host: str | None) -> bool:
    """Whether a socket at this address serves who asks for `host`; None is all of them."""
    address = ipaddress.ip_address(at)
    if host is None:
        return address.is_unspecified
    try:
        return address == ipaddress.ip_address(host)
    except ValueError:
        return False


def refuse() -> None:
    """Close what was left open, since nobody is served here now; what a supervisor holds cannot be closed."""
    _close_left()
    if _passed:
        log.warning(
            "the supervisor holds the ports open: whoever connects to this standby waits in vain. "
            "Disable its socket unit (blindpost-router.socket)"
        )


def _close_left() -> None:
    for sockets in _inherited.values():
        for sock in sockets:
            sock.close()
    _inherited.clear()


def let_go() -> None:
    """Close what was left open and nobody asked for; say what a supervisor passed in vain."""
    _close_left()
    for sock, is_used in _passed.items():
        if not is_used:
            log.warning(
                "the supervisor passed a socket at %s that [listen] does not name: nobody is served there",
                sock.getsockname(),
            )
