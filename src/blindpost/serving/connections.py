"""A server's connections, whatever they carry: when they are read, what waits for them, when they are closed.

A connection's failure ends that connection. If a peer does not read, we stop reading from it; what waits in
memory for all peers together is bounded, and the connection with the most waiting is closed first.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from blindpost.engine.containment import contained
from blindpost.serving.limits import Limits, LimitSizes

BUFFERS_LOOK_S = 0.05
"""How long data waiting for peers may grow before it is checked."""
WEIGHED_BYTES = 64 << 10
"""Above this, data waiting for a connection counts even if it is not congested."""
OUTBOX = "outbox"
"""The reason for holding a connection whose peer does not read."""


class Connection(ABC):
    """A source of the engine's inbox that is read from unless there is a reason to pause."""

    __slots__ = ("account", "held", "number")

    def __init__(self, number: int, account: Hashable) -> None:
        self.number = number
        self.account = account
        """The account it is counted under."""
        self.held: set[str] = set()

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Bytes in memory that wait for the peer: to read them, or to finish what it began to say."""

    @abstractmethod
    def stop_reading(self) -> None: ...

    @abstractmethod
    def read_on(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """End it once everything written before is sent."""

    @abstractmethod
    def cut(self) -> None:
        """End it now, to free its memory."""

    @property
    def congested(self) -> bool:
        return OUTBOX in self.held

    def hold(self, reason: str) -> None:
        """Take nothing more in."""
        self.held.add(reason)
        self.stop_reading()

    def let_go(self, reason: str) -> None:
        self.held.discard(reason)
        if not self.held:
            self.read_on()


K = TypeVar("K", bound=Connection)


class Connections(ABC, Generic[K]):
    """The connections of one server, by number."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits(LimitSizes(), time.monotonic)
        self.connections: dict[int, K] = {}
        self.numbers = itertools.count(1)
        self._heavy: dict[K, None] = {}
        """Connections for which much may wait."""
        self._look: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    # --- what a room says about its own

    @abstractmethod
    def left(self, connection: K) -> None:
        """A connection has ended."""

    def lags(self, connection: K) -> None:
        """A peer does not read: nothing more is sent to it unasked."""

    def relieved(self, connection: K) -> None:
        """A peer that did not read has caught up."""

    # --- what every room has

    def join(self, connection: K) -> None:
        self.connections[connection.number] = connection

    def leave(self, connection: K) -> None:
        """A connection has ended; repeated calls do nothing."""
        if self.connections.pop(connection.number, None) is not None:
            self._heavy.pop(connection, None)
            self.left(connection)
        if not self.connections:
            if self._look is not None:
                self._look.cancel()
                self._look = None
            if self._emptied is not None:
                self._emptied.set()

    async def emptied(self) -> None:
        """Return when there is no connection."""
        if self.connections:
            self._emptied = asyncio.Event()
            await self._emptied.wait()

    def lag(self, connection: K) -> None:
        """A peer does not read, or still does not: take nothing from it."""
        if not connection.congested:
            connection.hold(OUTBOX)
            self.lags(connection)
        self.weigh(connection)

    def relieve(self, connection: K) -> None:
        """A peer reads again. What it is sent at once may fill it again."""
        if connection.congested:
            self._heavy.pop(connection, None)
            connection.held.discard(OUTBOX)
            self.relieved(connection)
            if not connection.held:
                connection.read_on()

    def weigh(self, connection: K) -> None:
        """Much may wait for this connection: schedule a check of the total."""
        if connection.number not in self.connections:
            return
        self._heavy[connection] = None
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(BUFFERS_LOOK_S, self._free_buffers)

    def close_if(self, is_due: Callable[[K], bool]) -> int:
        """Close the connections that are due; returns how many."""
        due = [connection for connection in self.connections.values() if is_due(connection)]
        for connection in due:
            contained("closing a connection", connection.close)
        return len(due)

    def _free_buffers(self) -> None:
        """Cut connections, most waiting first, until the total is within its bound."""
        self._look = None
        sizes = {heavy: heavy.waiting for heavy in self._heavy}
        waiting = sum(sizes.values())
        while waiting > self.limits.sizes.buffers:
            heaviest = max(sizes, key=lambda heavy: sizes[heavy])
            waiting -= sizes.pop(heaviest)
            self.limits.meters.made_room += 1
            self._heavy.pop(heaviest, None)
            contained("closing a connection", heaviest.cut)
        for light, size in sizes.items():
            if size < WEIGHED_BYTES and not light.congested:
                self._heavy.pop(light, None)
