"""How much a stranger may send on one HTTP/2 connection: every frame costs us time.

A frame of nine bytes costs as much as one of sixteen thousand, so both frames and bytes are counted, before
anything is done with them. Frames are counted, not events: what is said about ended streams causes none, and
costs as much. Each answer of a push service earns some; whoever sends more is cut off.
"""

from __future__ import annotations

ALLOWED_MAX = 1000
"""What a new connection may cost: enough for its settings and a long answer or two."""
EARNED = 50
"""What an answer adds."""
UNIT = 1024
"""Bytes that cost as much as a frame."""
_HEAD = 9


class Allowance:
    """Of one HTTP/2 connection."""

    __slots__ = ("_bytes", "_head", "_left", "_skip")

    def __init__(self, preface: int = 0) -> None:
        """A client begins with a `preface` of this size."""
        self._left = ALLOWED_MAX
        self._bytes = 0
        self._head = b""
        """The received part of an incomplete frame header."""
        self._skip = preface
        """How much of the current frame is still to come."""

    def earn(self) -> None:
        self._left = min(self._left + EARNED, ALLOWED_MAX)

    def spend(self, data: bytes) -> bool:
        """Whether this may be processed."""
        self._bytes += len(data)
        self._left -= self._bytes // UNIT
        self._bytes %= UNIT
        place, end = self._skip, len(data)
        if self._head:
            data, end, self._head = self._head + data, end + len(self._head), b""
        while place + _HEAD <= end:
            self._left -= 1
            if self._left < 0:
                return False
            place += _HEAD + int.from_bytes(data[place : place + 3], "big")
        if place < end:
            self._head, self._skip = data[place:], 0
        else:
            self._skip = place - end
        return self._left >= 0
