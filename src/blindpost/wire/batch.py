"""Blocks and batches: many transmissions in one padded block, and back, without copying them.

Nothing here depends on a protocol. SMP and NTF differ only in the size of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from blindpost.wire.errors import WireError
from blindpost.wire.padding import pad_parts
from blindpost.wire.primitives import LARGE_MAX, Reader, Writer
from blindpost.wire.value import Buffer

SMP_BLOCK_SIZE = 16384
NTF_BLOCK_SIZE = 512

TAG_SIZE = 16
"""What the encryption of a block adds; room for it is reserved whether or not a connection encrypts."""

PADDING_SIZE = 2
BATCH_COUNT_MAX = 255


def batch_limit(block_size: int) -> int:
    """How many bytes the transmissions of one block may take, each with its two-byte length."""
    return block_size - PADDING_SIZE - 1 - TAG_SIZE


SMP_BATCH_LIMIT = batch_limit(SMP_BLOCK_SIZE)
NTF_BATCH_LIMIT = batch_limit(NTF_BLOCK_SIZE)


class Packed(NamedTuple):
    """Payloads to send in this order, and the indexes of the transmissions that fit into no block."""

    payloads: tuple[Writer, ...]
    oversize: tuple[int, ...]


def pack(transmissions: Sequence[Writer], limit: int) -> Packed:
    """Put transmissions into the fewest payloads, in order.

    Filling begins with the last one, so that a short payload comes first, as peers do it; a transmission
    that is too large by itself is reported by its index and does not hold up the others.
    """
    if len(transmissions) == 1 and 2 + transmissions[0].size <= limit:
        return Packed((batch_of_one(transmissions[0]),), ())
    oversize: list[int] = []
    batches: list[list[Writer]] = []
    batch: list[Writer] = []
    used = 0
    for place in range(len(transmissions) - 1, -1, -1):
        transmission = transmissions[place]
        size = 2 + transmission.size
        if size > limit:
            oversize.append(place)
            continue
        if used + size > limit or len(batch) == BATCH_COUNT_MAX:
            batches.append(batch)
            batch = []
            used = 0
        batch.append(transmission)
        used += size
    if batch:
        batches.append(batch)
    for batch in batches:
        batch.reverse()
    return Packed(tuple(payload_of(batch) for batch in reversed(batches)), tuple(reversed(oversize)))


def payload_of(transmissions: Sequence[Writer]) -> Writer:
    """The payload that holds these transmissions, which fit; their parts are shared, not copied."""
    parts: list[Buffer] = [len(transmissions).to_bytes(1, "big")]
    size = 1
    for transmission in transmissions:
        parts.append(transmission.size.to_bytes(2, "big"))
        parts += transmission.parts
        size += 2 + transmission.size
    return Writer(parts, size)


def batch_of_one(transmission: Writer) -> Writer:
    """The payload that holds just this transmission, whatever its size."""
    size = transmission.size
    if size > LARGE_MAX:
        raise WireError(f"at most {LARGE_MAX} bytes fit into a batch item, not {size}")
    return Writer([b"\x01", size.to_bytes(2, "big"), *transmission.parts], 3 + size)


def padded(payload: Writer, size: int) -> bytes:
    """The payload padded to `size` bytes: a whole plain block, or what an encrypted one seals."""
    return pad_parts(payload.parts, payload.size, size)


def unpack(payload: Reader) -> list[Reader]:
    """One reader for each transmission of a batch, over the same bytes."""
    data, pos, limit = payload.data, payload.position + 1, payload.limit
    count = payload.u8()
    if count == 0:
        raise WireError("a batch of at least one transmission expected")
    readers = []
    for _ in range(count):
        start = pos + 2
        if start > limit:
            raise WireError(f"2 bytes expected, {limit - pos} left")
        pos = start + (data[pos] << 8 | data[pos + 1])
        if pos > limit:
            raise WireError(f"{pos - start} bytes expected, {limit - start} left")
        readers.append(Reader(data, start, pos))
    payload.position = pos
    payload.end()
    return readers
