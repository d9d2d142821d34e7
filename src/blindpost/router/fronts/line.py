"""What a channel runs over: a Unix socket, through which sockets of connections travel as descriptors.

All that fronts ask of the system about it is here, so that they can be run over a network in memory.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from blindpost.serving.descriptors import SPARE
from blindpost.wire.value import Buffer

FOR_THE_ENGINE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
"""Signals that a supervisor may send to all processes of a router."""
DESCRIPTORS_MAX = SPARE // 2
"""Descriptors that leave in one call. A front that has all connections there may be has room for them still,
before it closes those that they replace.
"""
_SPACE = socket.CMSG_SPACE(DESCRIPTORS_MAX * array("i").itemsize)


class Line(Protocol):
    """One end."""

    def begin(self, room: int, readable: Callable[[], None]) -> None:
        """Let about so many bytes be under way in each direction; call whenever something can be received."""

    def send(self, pieces: list[Buffer], descriptors: Sequence[int]) -> int:
        """How many bytes were taken, with the first of them all descriptors; `BlockingIOError` if none."""

    def receive(self, room: memoryview) -> tuple[int, Sequence[int]]:
        """How many bytes came, and the descriptors beside them; `BlockingIOError` if none, 0 at the end."""

    def wait_for_room(self, writable: Callable[[], None]) -> None:
        """Call whenever something can be sent."""

    def wait_no_more(self) -> None: ...

    def close(self) -> None: ...

    def copy(self, transport: asyncio.Transport) -> int:
        """A descriptor of its connection, which outlives the transport."""

    def drop(self, descriptor: int) -> None:
        """Close one that nobody uses."""

    async def open(self, descriptor: int, protocol: asyncio.BufferedProtocol) -> None:
        """Go on with a connection that came as a descriptor."""


class SocketLine:
    """A Unix socket of the system."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    def begin(self, room: int, readable: Callable[[], None]) -> None:
        self._sock.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._sock.setsockopt(socket.SOL_SOCKET, option, room)
        self._loop.add_reader(self._sock, readable)

    def send(self, pieces: list[Buffer], descriptors: Sequence[int]) -> int:
        if not descriptors:
            return self._sock.sendmsg(pieces)
        leaving = array("i", descriptors)
        sent = self._sock.sendmsg(pieces, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, leaving)])
        for descriptor in leaving:
            os.close(descriptor)
        return sent

    def receive(self, room: memoryview) -> tuple[int, Sequence[int]]:
        count, ancillary, flags, _ = self._sock.recvmsg_into([room], _SPACE, socket.MSG_CMSG_CLOEXEC)
        # If some are missing the others cannot be told apart.
        count = 0 if flags & socket.MSG_CTRUNC else count
        if not ancillary:
            return count, ()
        came = array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                came.frombytes(data[: len(data) - len(data) % came.itemsize])
        return count, came

    def wait_for_room(self, writable: Callable[[], None]) -> None:
        self._loop.add_writer(self._sock, writable)

    def wait_no_more(self) -> None:
        self._loop.remove_writer(self._sock)

    def close(self) -> None:
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()

    def copy(self, transport: asyncio.Transport) -> int:
        return os.dup(transport.get_extra_info("socket").fileno())

    def drop(self, descriptor: int) -> None:
        os.close(descriptor)

    async def open(self, descriptor: int, protocol: asyncio.BufferedProtocol) -> None:
        sock = socket.socket(fileno=descriptor)
        try:
            sock.setblocking(False)
            await self._loop.connect_accepted_socket(lambda: protocol, sock)
        except OSError:
            sock.close()
            raise
