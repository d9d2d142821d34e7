"""What waits for a front that is behind: those for whom it waits take turns.

A lane is what shares one turn, such as an address; within a lane its connections take turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable

from blindpost.wire.value import Buffer

TURN_BYTES = 256 << 10
"""A lane's turn is over when it has brought so much: a long frame, or many short ones."""

Relieved = Callable[[], object]


class _Lane:
    __slots__ = ("by_number", "size", "stalled")

    def __init__(self) -> None:
        self.by_number: dict[int, deque[tuple[list[Buffer], int]]] = {}
        """The frames of each connection, with their sizes; the connection whose turn is next comes first."""
        self.size = 0
        self.stalled: dict[Relieved, None] = {}


class Lanes:
    """Frames by lane and connection; those of one connection leave in their order.

    A lane may hold its share of `high` bytes, which all of them share equally.
    """

    def __init__(self, high: int, low: int) -> None:
        self._high = high
        self._low = low
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[Hashable, _Lane] = {}
        """The one whose turn is next comes first."""
        self.size = 0

    def put(self, key: Hashable, number: int, frame: list[Buffer], size: int) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        lane.by_number.setdefault(number, deque()).append((frame, size))
        lane.size += size
        self.size += size

    def take_turn(self, out: deque[Buffer]) -> None:
        """Move what the turn of the next lane brings."""
        key = next(iter(self._lanes))
        lane = self._lanes.pop(key)
        moved = 0
        while lane.by_number and moved < TURN_BYTES:
            number = next(iter(lane.by_number))
            frames = lane.by_number.pop(number)
            frame, size = frames.popleft()
            out += frame
            moved += size
            if frames:
                lane.by_number[number] = frames
        if lane.by_number:
            self._lanes[key] = lane
        self._shrunk(lane, moved)

    def drop(self, key: Hashable, number: int) -> int:
        """Forget what waits for a connection that has ended; how many bytes."""
        lane = self._lanes.get(key)
        if lane is None or number not in lane.by_number:
            return 0
        dropped = sum(size for _, size in lane.by_number.pop(number))
        if not lane.by_number:
            del self._lanes[key]
        self._shrunk(lane, dropped)
        return dropped

    def stalls(self, key: Hashable, relieved: Relieved) -> bool:
        """Whether a lane holds more than its share; if so `relieved` is called when it does not any more."""
        lane = self._lanes.get(key)
        if lane is None or lane.size * len(self._lanes) <= self._high:
            return False
        lane.stalled[relieved] = None
        return True

    def _shrunk(self, lane: _Lane, by: int) -> None:
        lane.size -= by
        self.size -= by
        if lane.stalled and lane.size * len(self._lanes) <= self._low:
            stalled, lane.stalled = lane.stalled, {}
            for relieved in stalled:
                # Not at once: who is relieved puts more, and this may be in the middle of sending.
                self._loop.call_soon(relieved)
