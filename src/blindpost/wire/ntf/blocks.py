"""Transmissions into blocks of 512 bytes and back: one to a block at version 1, batches since."""

from __future__ import annotations

from collections.abc import Sequence

from blindpost.wire.batch import (
    NTF_BATCH_LIMIT,
    NTF_BLOCK_SIZE,
    PADDING_SIZE,
    Packed,
    batch_of_one,
    pack,
    unpack,
)
from blindpost.wire.ntf.versions import AUTH_BATCH_VERSION
from blindpost.wire.primitives import Reader, Writer

PAYLOAD_MAX = NTF_BLOCK_SIZE - PADDING_SIZE
_ALONE_MAX = PAYLOAD_MAX - 3
"""The largest transmission that fits into a batch by itself: more than may share a block."""


def pack_transmissions(transmissions: Sequence[Writer], version: int) -> Packed:
    """Payloads for `transmissions` in their order; those too large for any block are reported instead."""
    if version < AUTH_BATCH_VERSION:
        return _one_to_a_block(transmissions)
    payloads: list[Writer] = []
    oversize: list[int] = []
    sharing: list[Writer] = []
    for place, transmission in enumerate(transmissions):
        if transmission.size + 2 <= NTF_BATCH_LIMIT:
            sharing.append(transmission)
        elif transmission.size <= _ALONE_MAX:
            payloads += (*pack(sharing, NTF_BATCH_LIMIT).payloads, batch_of_one(transmission))
            sharing = []
        else:
            oversize.append(place)
    payloads += pack(sharing, NTF_BATCH_LIMIT).payloads
    return Packed(tuple(payloads), tuple(oversize))


def _one_to_a_block(transmissions: Sequence[Writer]) -> Packed:
    fitting = tuple(transmission for transmission in transmissions if transmission.size <= PAYLOAD_MAX)
    oversize = (place for place, item in enumerate(transmissions) if item.size > PAYLOAD_MAX)
    return Packed(fitting, tuple(oversize))


def unpack_payload(payload: Reader, version: int) -> list[Reader]:
    """One reader for each transmission of a received block."""
    return [payload] if version < AUTH_BATCH_VERSION else unpack(payload)
