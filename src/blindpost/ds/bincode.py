"""The map of queues as the described service stores it in a file: bincode 1, little-endian 64-bit lengths.

V2 maps (channel id, recipient key) to payloads, V1 maps a recipient key alone. The file has no tag: a
reader tries V2, then V1, and takes only what consumes the file to its last byte. V1 queues belong to the
empty channel.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from blindpost.ds.model import CHANNEL_ID_BYTES_MAX, KEY_SIZE, PAYLOAD_BYTES_MAX
from blindpost.wire.errors import WireError
from blindpost.wire.value import Value

_LENGTH = struct.Struct("<Q")


class ImportFileError(Exception):
    """A file that is neither V2 nor V1, or holds what a queue cannot."""


@dataclass(frozen=True, slots=True, repr=False)
class Queue(Value):
    """One queue of a file; its payloads are read when needed."""

    recipient_key: bytes
    channel_id: bytes
    payloads: tuple[memoryview, ...]


class _Bytes:
    """A file in memory, read from its beginning."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._at = 0

    def length(self) -> int:
        return int(_LENGTH.unpack(self._take(8))[0])

    def count(self, least: int) -> int:
        """How many elements follow, each of at least `least` bytes; refused if they cannot fit."""
        found = self.length()
        if found * least > len(self._content) - self._at:
            raise WireError("more elements than the file has room for")
        return found

    def bytes(self) -> memoryview:
        return self._take(self.length())

    def end(self) -> None:
        if self._at != len(self._content):
            raise WireError(f"{len(self._content) - self._at} bytes follow the map")

    def _take(self, size: int) -> memoryview:
        end = self._at + size
        if end > len(self._content):
            raise WireError("the file ends too early")
        found, self._at = self._content[self._at : end], end
        return found


def read_queues(content: memoryview) -> tuple[int, list[Queue]]:
    """The version of a file, 2 or 1, and its queues. `ImportFileError` if it is neither."""
    failures = []
    for version, key in ((2, _key_v2), (1, _key_v1)):
        try:
            return version, _read(content, key)
        except WireError as error:
            failures.append(f"V{version}: {error}")
    raise ImportFileError("; ".join(failures))


def _read(content: memoryview, key: Callable[[_Bytes], tuple[bytes, bytes]]) -> list[Queue]:
    file = _Bytes(content)
    found: dict[tuple[bytes, bytes], Queue] = {}
    for _ in range(file.count(16)):
        channel_id, recipient_key = key(file)
        payloads = tuple(file.bytes() for _ in range(file.count(8)))
        if len(recipient_key) != KEY_SIZE:
            raise WireError(f"a recipient key of {len(recipient_key)} bytes")
        if len(channel_id) > CHANNEL_ID_BYTES_MAX:
            raise WireError(f"a channel id of {len(channel_id)} bytes")
        if any(not 0 < len(payload) <= PAYLOAD_BYTES_MAX for payload in payloads):
            raise WireError("a payload that is empty or above the limit")
        if (channel_id, recipient_key) in found:
            raise WireError("a queue that stands there twice")
        found[channel_id, recipient_key] = Queue(recipient_key, channel_id, payloads)
    file.end()
    return list(found.values())


def _key_v2(file: _Bytes) -> tuple[bytes, bytes]:
    return bytes(file.bytes()), bytes(file.bytes())


def _key_v1(file: _Bytes) -> tuple[bytes, bytes]:
    return b"", bytes(file.bytes())


async def write_queues(
    file: BinaryIO,
    queues: Sequence[tuple[bytes, bytes, int]],
    payloads: Callable[[bytes, bytes], AsyncIterator[bytes]],
) -> int:
    """Write V2: recipient key, channel id and length of each queue, and its payloads. Returns how many."""
    written = 0
    file.write(_LENGTH.pack(len(queues)))
    for recipient_key, channel_id, count in queues:
        file.writelines(_LENGTH.pack(len(part)) + part for part in (channel_id, recipient_key))
        file.write(_LENGTH.pack(count))
        found = 0
        async for payload in payloads(recipient_key, channel_id):
            file.write(_LENGTH.pack(len(payload)))
            file.write(payload)
            found += 1
        assert found == count, "a queue changed while it was written"
        written += found
    return written
