"""Between the engine and one front: frames in both directions, and descriptors beside them.

What is put is sent together with whatever else was put in the same turn of the loop. A frame is read where
it was received; whoever needs its bytes for longer copies them. If the other side is behind, what is put into
different lanes takes turns, so that nobody waits for all that was said to others.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import struct
from collections import deque
from collections.abc import Callable, Hashable

from blindpost.router.fronts.lanes import Lanes, Relieved
from blindpost.router.fronts.line import DESCRIPTORS_MAX, Line
from blindpost.wire.value import Buffer

log = logging.getLogger(__name__)

HEADER = struct.Struct("<IBQ")
"""The length of what follows, the kind of the frame, the number of its connection."""
FRAME_MAX = 512 << 10
"""No frame is longer: one that claims to be is garbage."""
HIGH, LOW = 4 << 20, 1 << 20
"""Above the first the other side lags, until what waits for it is below the second. What is above the second
waits in lanes.
"""
_ROOM = 2 * FRAME_MAX
_AT_ONCE = 512
"""Buffers handed to the system in one call."""
CROWDED_S = 0.05
"""When descriptors are tried again of which the system lets no more be under way."""

Hear = Callable[[int, int, memoryview], None]
"""Takes the kind, the connection's number and the body of a frame, which is valid during the call."""


class GarbageError(Exception):
    """The other side sent something that is no frame."""


class Channel:
    """One end. `lost` is called once, when the other end is gone or sent garbage.

    In one turn of the loop it hears at most so many times what there is room for.
    """

    def __init__(self, line: Line, hear: Hear, lost: Callable[[], None], times: int = 1) -> None:
        self.line = line
        self._times = times
        self._hear = hear
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._out: deque[Buffer] = deque()
        self._lanes = Lanes(HIGH, LOW)
        self._outgoing: deque[int] = deque()
        """Descriptors that leave with the next bytes."""
        self.backlog = 0
        """Bytes that wait to be taken by the system."""
        self._blocked = False
        self._scheduled = False
        self._buffer = bytearray(_ROOM)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self.descriptors: deque[int] = deque()
        """Those that came, in the order of the frames that speak of them."""
        self.on_relief: Callable[[], None] | None = None
        """Called when the backlog has fallen below `LOW`, having been above `HIGH`."""
        self.on_room: Callable[[], None] | None = None
        """Called when descriptors may be put again, after as many waited as leave in one call."""
        self.lags = False
        """Whether the other side does not take what is put."""
        self.heard_at = self._loop.time()
        """When something came last."""
        self.is_open = True
        line.begin(HIGH, self._readable)

    @property
    def takes_descriptors(self) -> bool:
        """Whether one more may be put: none may come after its frame, so all that wait leave in one call."""
        return self.is_open and not self._is_full

    @property
    def _is_full(self) -> bool:
        return len(self._outgoing) >= DESCRIPTORS_MAX

    def put(
        self,
        kind: int,
        number: int,
        parts: list[Buffer],
        size: int,
        lane: Hashable = None,
        descriptor: int = -1,
    ) -> None:
        """Send a frame, of which the parts make up the body, by the end of this turn of the loop.

        One without a lane waits for none in lanes. Those of a connection that have its lane keep their order.
        """
        if not self.is_open:
            if descriptor >= 0:
                self.line.drop(descriptor)
            return
        if descriptor >= 0:
            self._outgoing.append(descriptor)
        header = HEADER.pack(size, kind, number)
        # While anything is in a lane, more than `LOW` is on its way: nothing of a connection is overtaken.
        if self.backlog > LOW and lane is not None:
            self._lanes.put(lane, number, [header, *parts], HEADER.size + size)
        else:
            self._out.append(header)
            self._out += parts
        self.backlog += HEADER.size + size
        if self.backlog > HIGH:
            self.lags = True
        if not self._scheduled and not self._blocked:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def tell(self, kind: int, number: int, body: Buffer = b"", lane: Hashable = None) -> None:
        """Send a frame with this body."""
        self.put(kind, number, [body], len(body), lane)

    def drop(self, lane: Hashable, number: int) -> None:
        """Forget what waits in its lane for a connection that has ended."""
        self.backlog -= self._lanes.drop(lane, number)

    def stalls(self, lane: Hashable, relieved: Relieved) -> bool:
        """Whether the other side lags and this lane has more than its share; if so `relieved` ends that."""
        return self.lags and self._lanes.stalls(lane, relieved)

    def hold(self) -> None:
        """What is put from now on leaves with the next `flush`, which whoever holds it owes."""
        self._scheduled = True

    def flush(self) -> None:
        """Hand to the system what it takes."""
        self._scheduled = False
        if self._blocked or not self.is_open:
            return
        try:
            while self._out:
                self._sent(self._send())
                while self._lanes.size and self.backlog - self._lanes.size <= LOW:
                    self._lanes.take_turn(self._out)
        except BlockingIOError:
            self._blocked = True
            self.line.wait_for_room(self._writable)
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                self._blocked = True
                self._loop.call_later(CROWDED_S, self._writable)
            else:
                self._fail()
        if self.lags and self.backlog < LOW:
            # Not at once: who is relieved puts more, and whoever flushes is in the middle of something.
            self._loop.call_soon(self._relieve)

    def _relieve(self) -> None:
        if self.lags and self.backlog < LOW and self.is_open:
            self.lags = False
            if self.on_relief is not None:
                self.on_relief()

    def _send(self) -> int:
        out = self._out
        pieces = list(out) if len(out) <= _AT_ONCE else [out[place] for place in range(_AT_ONCE)]
        sent = self.line.send(pieces, self._outgoing)
        if self._is_full and self.on_room is not None:
            # Not at once, as with `_relieve`.
            self._loop.call_soon(self.on_room)
        self._outgoing.clear()
        return sent

    def _sent(self, count: int) -> None:
        out = self._out
        self.backlog -= count
        if not self.backlog:
            out.clear()
            return
        while count:
            first = out[0]
            if len(first) > count:
                out[0] = memoryview(first)[count:]
                break
            count -= len(first)
            out.popleft()
        while out and not len(out[0]):
            out.popleft()

    def _writable(self) -> None:
        if not self.is_open:
            return
        self.line.wait_no_more()
        self._blocked = False
        self.flush()

    def _readable(self) -> None:
        for _ in range(self._times):
            room = self._view[self._filled :]
            count = self._receive(room)
            if count < len(room) or not self.is_open:
                return

    def _receive(self, room: memoryview) -> int:
        """Hear what came; how many bytes."""
        try:
            count, descriptors = self.line.receive(room)
        except BlockingIOError:
            return 0
        except OSError:
            self._fail()
            return 0
        self.descriptors.extend(descriptors)
        if not count:
            self._fail()
            return 0
        self.heard_at = self._loop.time()
        try:
            self._take(self._filled + count)
        except GarbageError:
            self._fail()
        except Exception:
            # What was heard of it cannot be told apart from what was not.
            log.exception("a frame could not be handled")
            self._fail()
        return count

    def _take(self, filled: int) -> None:
        """Hear every whole frame; what is left of the last one is moved to the start."""
        view, at = self._view, 0
        while filled - at >= HEADER.size:
            size, kind, number = HEADER.unpack_from(view, at)
            if size > FRAME_MAX:
                raise GarbageError
            start = at + HEADER.size
            if start + size > filled:
                break
            at = start + size
            self._hear(kind, number, view[start:at])
            if not self.is_open:
                return
        if at:
            view[: filled - at] = bytes(view[at:filled])
        self._filled = filled - at

    def _fail(self) -> None:
        if self.is_open:
            self.close()
            self._lost()

    def close(self) -> None:
        """Send nothing more, and let go of every descriptor."""
        if not self.is_open:
            return
        self.is_open = False
        self.line.close()
        for descriptor in (*self._outgoing, *self.descriptors):
            self.line.drop(descriptor)
        self._outgoing.clear()
        self.descriptors.clear()
        self._out.clear()
        self._lanes = Lanes(HIGH, LOW)
        self.backlog = 0
