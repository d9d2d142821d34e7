"""What joins an engine and its fronts in memory: bytes and connections, late, in pieces, not too many."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence

from blindpost.wire.value import Buffer
from simulation.network import End
from simulation.processes import Process, SimulationLoop

LATE_S = (0.0, 0.0, 0.0, 0.0001, 0.002, 0.05)
"""How long something is under way: what other fronts say later may come sooner."""
PIECES_SHARE = 0.1
"""How often the system takes, or hands out, only a part."""


class Carried:
    """The connections of one router that are descriptors now."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._ends: dict[int, End] = {}

    def keep(self, end: End) -> int:
        end.keep()
        number = next(self._numbers)
        self._ends[number] = end
        return number

    def go(self, numbers: Sequence[int], process: Process) -> None:
        """From now on they end with that process."""
        for number in numbers:
            self._ends[number].process = process

    def take(self, number: int) -> End:
        return self._ends.pop(number)

    def drop(self, number: int) -> None:
        """Nobody has it any more."""
        end = self.take(number)
        if not end.lost:
            end.abort()


class MemoryLine:
    """One end, of the process that is given."""

    def __init__(
        self, process: Process, carried: Carried, chance: random.Random, counts: Counter[str]
    ) -> None:
        self.process = process
        self._carried = carried
        self._chance = chance
        self._counts = counts
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        self._outside = loop.outside
        self._peer: MemoryLine
        self._room = 0
        self._readable: Callable[[], None] | None = None
        self._writable: Callable[[], None] | None = None
        self._transit: deque[tuple[bytes, Sequence[int]] | None] = deque()
        """What is under way to the other end; None is the end of it."""
        self._arrives_at = 0.0
        self._unread = 0
        """What was sent and is not yet received."""
        self._inbox: deque[tuple[bytes, Sequence[int]]] = deque()
        self._ended = False
        """Whether the other end is closed, and all that it sent has arrived."""
        self._closed = False
        process.at_death.append(self.close)

    def join(self, peer: MemoryLine) -> None:
        self._peer, peer._peer = peer, self

    # What a channel calls

    def begin(self, room: int, readable: Callable[[], None]) -> None:
        self._room = room
        self._readable = readable
        self._outside.call_soon(self.wake)

    def send(self, pieces: list[Buffer], descriptors: Sequence[int]) -> int:
        if self._peer._closed:
            raise BrokenPipeError
        free = self._room - self._unread
        if free <= 0:
            self._counts["full channel of a front"] += 1
            raise BlockingIOError
        data = self._part(b"".join(pieces)[:free])
        self._unread += len(data)
        self._carried.go(descriptors, self._peer.process)
        self._put((data, tuple(descriptors)))
        return len(data)

    def receive(self, room: memoryview) -> tuple[int, Sequence[int]]:
        if not self._inbox:
            if self._ended:
                return 0, ()
            raise BlockingIOError
        data, descriptors = self._inbox.popleft()
        part = self._part(data[: len(room)])
        room[: len(part)] = part
        if len(part) < len(data):
            self._inbox.appendleft((data[len(part) :], ()))
        peer = self._peer
        peer._unread -= len(part)
        if peer._writable is not None:
            self._outside.call_soon(peer.has_room)
        return len(part), descriptors

    def wait_for_room(self, writable: Callable[[], None]) -> None:
        self._writable = writable

    def wait_no_more(self) -> None:
        self._writable = None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._readable = self._writable = None
            for _, descriptors in self._inbox:
                self._drop(descriptors)
            self._inbox.clear()
            self._put(None)

    def copy(self, transport: asyncio.Transport) -> int:
        assert isinstance(transport, End)
        return self._carried.keep(transport)

    def drop(self, descriptor: int) -> None:
        self._carried.drop(descriptor)

    async def open(self, descriptor: int, protocol: asyncio.BufferedProtocol) -> None:
        await asyncio.sleep(0)
        self._carried.take(descriptor).taken(protocol)

    # Inside

    def _part(self, data: bytes) -> bytes:
        if len(data) > 1 and self._chance.random() < PIECES_SHARE:
            return data[: self._chance.randint(1, len(data))]
        return data

    def _put(self, what: tuple[bytes, Sequence[int]] | None) -> None:
        self._transit.append(what)
        earliest = self._outside.time() + self._chance.choice(LATE_S)
        self._arrives_at = max(earliest, self._arrives_at)
        self._outside.call_at(self._arrives_at, self._land)

    def _land(self) -> None:
        what, peer = self._transit.popleft(), self._peer
        if peer._closed:
            self._drop(() if what is None else what[1])
        elif what is None:
            peer._ended = True
        else:
            peer._inbox.append(what)
        peer.wake()

    def _drop(self, descriptors: Sequence[int]) -> None:
        for descriptor in descriptors:
            self._carried.drop(descriptor)

    def wake(self) -> None:
        """Tell the channel that there is something, as often as there is."""
        if self._readable is None or self.process.stopped or not (self._inbox or self._ended):
            return
        self.process.inside(self._readable)
        self._outside.call_soon(self.wake)

    def has_room(self) -> None:
        if self._writable is not None:
            self.process.inside(self._writable)
