"""A network in memory: the same sessions over byte pipes that delay, cut, stall and crawl on request.

What happens when is drawn from a seed and depends on byte counts alone, never on the bytes, so that two
runs with one seed on a virtual clock take the same steps although TLS is random.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count as counted
from typing import Any, TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)


@dataclass(frozen=True, slots=True)
class Link:
    """How bytes travel in one direction."""

    delay_s: tuple[float, float] = (0.0, 0.0)
    """Each piece takes a time drawn from here; pieces do not overtake each other."""
    piece: tuple[int, int] | None = None
    """Bytes travel in pieces whose sizes are drawn from here; None: as they were written."""
    rate: float | None = None
    """Bytes in a second; None: no limit."""
    window: int = 256 * 1024
    """How many bytes may be under way or unread; more wait in the writer's buffer."""
    cut_after: int | None = None
    """The connection breaks, in both directions, when this many bytes have arrived."""
    stall_after: int | None = None
    """Nothing arrives any more when this many bytes have."""


PERFECT = Link()


class MemoryNetwork:
    """Names of hosts and ports, and connections between them."""

    def __init__(self, seed: int | str = 0) -> None:
        self._seed = seed
        self._listeners: dict[tuple[str, int], MemoryListener] = {}
        self._numbers = counted(1)
        self._free_ports = counted(49152)
        self._planned: deque[tuple[Link, Link]] = deque()
        self.to_listener = PERFECT
        self.to_caller = PERFECT
        self.connections: list[tuple[MemoryTransport, MemoryTransport]] = []
        """Both ends of each connection, the caller's first, in the order they were made."""

    def plan(self, to_listener: Link = PERFECT, to_caller: Link = PERFECT) -> None:
        """The next connection, after those already planned, uses these links."""
        self._planned.append((to_listener, to_caller))

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        listener = self._listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        links = self._planned.popleft() if self._planned else (self.to_listener, self.to_caller)
        number = next(self._numbers)
        protocol = factory()
        caller = MemoryTransport(protocol)
        called = MemoryTransport(listener.factory())
        caller.join(called, links[0], random.Random(f"{self._seed}/{number}/up"))
        called.join(caller, links[1], random.Random(f"{self._seed}/{number}/down"))
        self.connections.append((caller, called))
        called.open()
        caller.open()
        return protocol

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> MemoryListener:
        place = (host or "localhost", port or next(self._free_ports))
        if place in self._listeners:
            raise OSError(f"{place[0]}:{place[1]} is in use")
        listener = self._listeners[place] = MemoryListener(factory, place, self._listeners)
        return listener


class MemoryListener:
    """One listening place."""

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        place: tuple[str, int],
        listeners: dict[tuple[str, int], MemoryListener],
    ) -> None:
        self.factory = factory
        self._place = place
        self._listeners = listeners
        self.ports = (place[1],)

    async def close(self) -> None:
        self._listeners.pop(self._place, None)


class MemoryTransport(asyncio.Transport):
    """One end of a connection. It behaves as asyncio's own transports do."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._peer: MemoryTransport
        self._link = PERFECT
        self._chance = random.Random()
        self._outbox = bytearray()
        self._high, self._low = 64 * 1024, 16 * 1024
        self._writing_paused = False
        self._eof_written = False
        self._eof_sent = False
        self._under_way = 0
        self._arrives_at = 0.0
        self._transit: deque[bytes | None] = deque()
        self._inbox: deque[bytes] = deque()
        self._eof_arrived = False
        self._reading = True
        self._closing = False
        self._lost = False
        self.bytes_delivered = 0
        """How many bytes of this end reached the other."""

    def join(self, peer: MemoryTransport, link: Link, chance: random.Random) -> None:
        """Send to `peer` over `link`."""
        self._peer, self._link, self._chance = peer, link, chance

    def open(self) -> None:
        self._protocol.connection_made(self)

    def cut(self) -> None:
        """Break the connection now, for both ends."""
        for end in (self, self._peer):
            end._lose(ConnectionResetError("cut"))

    # The interface of a transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return len(self._outbox)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._eof_written:
            return
        self._outbox += data
        self._carry()
        if len(self._outbox) > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof_written = True
        self._carry()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._reading = False
            self._eof_written = True
            self._carry()

    def abort(self) -> None:
        self._lose(None)
        self._loop.call_soon(self._peer._lose, ConnectionResetError("reset by peer"))

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing:
            self._reading = True
            self._loop.call_soon(self._deliver)

    # Inside

    def _carry(self) -> None:
        """Put as much on its way as the window lets through."""
        link = self._link
        while self._outbox and not self._lost:
            size = min(len(self._outbox), link.window - self._under_way)
            if link.piece is not None:
                size = min(size, self._chance.randint(*link.piece))
            if size <= 0:
                return
            piece = bytes(self._outbox[:size])
            del self._outbox[:size]
            self._under_way += size
            self._transit.append(piece)
            self._loop.call_at(self._arrival(size), self._land)
            if self._writing_paused and len(self._outbox) <= self._low:
                self._writing_paused = False
                self._loop.call_soon(self._resume_writing)
        if self._eof_written and not self._outbox and not self._eof_sent and not self._lost:
            self._eof_sent = True
            self._transit.append(None)
            self._loop.call_at(self._arrival(0), self._land)
        if self._closing and self._eof_sent:
            self._loop.call_soon(self._lose, None)

    def _land(self) -> None:
        """The oldest piece in transit, or None for the end of the stream, arrives at the other end."""
        piece = self._transit.popleft()
        if piece is None:
            self._peer._arrived_eof()
        else:
            self._peer._arrived(piece)

    def _resume_writing(self) -> None:
        if not self._lost:
            self._protocol.resume_writing()

    def _arrival(self, size: int) -> float:
        link = self._link
        spent = size / link.rate if link.rate else 0.0
        earliest = self._loop.time() + self._chance.uniform(*link.delay_s)
        self._arrives_at = max(earliest, self._arrives_at) + spent
        return self._arrives_at

    def _arrived(self, piece: bytes) -> None:
        sender, link = self._peer, self._peer._link
        for limit in (link.cut_after, link.stall_after):
            if limit is not None:
                piece = piece[: max(0, limit - sender.bytes_delivered)]
        sender.bytes_delivered += len(piece)
        if piece and self._lost:
            sender._lose(ConnectionResetError("nobody is there"))
        elif piece:
            self._inbox.append(piece)
            self._deliver()
        if link.cut_after is not None and sender.bytes_delivered >= link.cut_after:
            self.cut()

    def _arrived_eof(self) -> None:
        link, delivered = self._peer._link, self._peer.bytes_delivered
        if link.stall_after is None or delivered < link.stall_after:
            self._eof_arrived = True
            self._deliver()

    def _deliver(self) -> None:
        """Hand what has arrived to the protocol, as far as it reads."""
        while self._inbox and self._reading and not self._lost:
            piece = self._inbox.popleft()
            taken = self._hand_over(piece)
            if taken < len(piece):
                self._inbox.appendleft(piece[taken:])
            self._peer._under_way -= taken
            self._peer._carry()
        if self._eof_arrived and not self._inbox and self._reading and not self._lost:
            self._eof_arrived = False
            assert isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not self._protocol.eof_received():
                self.close()

    def _hand_over(self, piece: bytes) -> int:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            room = memoryview(protocol.get_buffer(-1))
            taken = min(len(room), len(piece))
            room[:taken] = piece[:taken]
            protocol.buffer_updated(taken)
            return taken
        assert isinstance(protocol, asyncio.Protocol)
        protocol.data_received(piece)
        return len(piece)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._outbox.clear()
            self._inbox.clear()
            self._loop.call_soon(self._protocol.connection_lost, error)
