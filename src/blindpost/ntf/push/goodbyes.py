"""GOAWAY of HTTP/2, taken out of what a peer sends.

A peer that says goodbye still answers the requests it has begun with, but h2 takes nothing more once it has
seen a GOAWAY.
"""

from __future__ import annotations

_HEAD, _LEAST, _MOST = 9, 8, 1 << 14
_GOAWAY = 7


class Goodbyes:
    """Of one connection."""

    __slots__ = ("_head", "_left", "_said")

    def __init__(self) -> None:
        self._head = b""
        """The received part of an incomplete frame header."""
        self._left = 0
        """How much of the current frame is still to come."""
        self._said: bytes | None = None
        """The beginning of the GOAWAY that is coming in; None in any other frame."""

    def take_out(self, data: bytes) -> tuple[bytes, list[int]]:
        """What else there is, and of each GOAWAY the last stream that the peer answers.

        One that is malformed is left where it is: h2 refuses it.
        """
        data, self._head = self._head + data, b""
        rest, last, place = bytearray(), list[int](), 0
        while place < len(data):
            if not self._left:
                head = data[place : place + _HEAD]
                if len(head) < _HEAD:
                    self._head = head
                    break
                place += _HEAD
                self._left = int.from_bytes(head[:3], "big")
                is_goodbye = head[3] == _GOAWAY and not _stream_id(head[5:]) and _LEAST <= self._left <= _MOST
                self._said = b"" if is_goodbye else None
                if not is_goodbye:
                    rest += head
            part = data[place : place + self._left]
            place += len(part)
            self._left -= len(part)
            if self._said is None:
                rest += part
            else:
                self._said = (self._said + part)[:_LEAST]
                if not self._left:
                    last.append(_stream_id(self._said[:4]))
        return bytes(rest), last


def _stream_id(data: bytes) -> int:
    """The first bit means nothing."""
    return int.from_bytes(data, "big") & ~(1 << 31)
