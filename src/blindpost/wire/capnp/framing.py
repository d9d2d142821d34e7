"""Messages on a stream: a table of segment sizes, then the segments. Nothing above a limit is accepted."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from blindpost.wire.capnp.structs import Message
from blindpost.wire.errors import WireError

SEGMENTS_MAX = 512


class Framer:
    """Bytes in, messages out, however the bytes were split."""

    __slots__ = ("_buffer", "_limit")

    def __init__(self, message_bytes_max: int) -> None:
        self._limit = message_bytes_max
        self._buffer = bytearray()

    @property
    def waiting(self) -> int:
        """Bytes of messages that were not taken yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def messages(self) -> Iterator[tuple[Message, int]]:
        """The messages that are complete, each with its size; `WireError` ends the stream."""
        while (sizes := self._sizes()) is not None:
            table = _table_size(len(sizes))
            size = table + sum(sizes)
            if len(self._buffer) < size:
                return
            if len(self._buffer) == size:
                content = memoryview(self._buffer).toreadonly()[table:]
                self._buffer = bytearray()
            else:
                content = memoryview(bytes(memoryview(self._buffer)[table:size]))
                del self._buffer[:size]
            segments, at = [], 0
            for length in sizes:
                segments.append(content[at : at + length])
                at += length
            yield Message(segments), size

    def _sizes(self) -> list[int] | None:
        """The sizes of the next message's segments, once its table is there."""
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        count = int.from_bytes(buffer[:4], "little") + 1
        if count > SEGMENTS_MAX:
            raise WireError("a message of too many segments")
        if len(buffer) < _table_size(count):
            return None
        sizes = [words * 8 for words in struct.unpack_from(f"<{count}I", buffer, 4)]
        if sum(sizes) > self._limit:
            raise WireError("a message above the limit")
        return sizes


def _table_size(count: int) -> int:
    return (4 + 4 * count + 7) // 8 * 8
