"""What every decoder must bear: any bytes give a value or the one error, at a bounded cost."""

from __future__ import annotations

import random
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType

from blindpost.wire.errors import WireError

Decode = Callable[[bytes], object]


def survives(decode: Decode, data: bytes) -> bool:
    """Whether `data` decodes; anything but a value or a `WireError` fails the test."""
    try:
        decode(data)
    except WireError:
        return False
    return True


def truncated_everywhere(decode: Decode, good: bytes) -> int:
    """Decode every proper prefix; how many of them were values."""
    return sum(survives(decode, good[:count]) for count in range(len(good)))


def changed_everywhere(decode: Decode, good: bytes, seed: str) -> int:
    """Decode `good` with one seeded change at each offset in turn; how many of them were values."""
    chance = random.Random(seed)
    values = 0
    work = bytearray(good)
    for offset, byte in enumerate(good):
        work[offset] = byte ^ chance.randrange(1, 256)
        values += survives(decode, bytes(work))
        work[offset] = byte
    return values


def calls_made(decode: Decode, data: bytes) -> int:
    """How many calls decoding `data` makes: a measure of time that does not depend on the machine."""
    count = 0

    def tally(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(tally)
    try:
        survives(decode, data)
    finally:
        sys.setprofile(before)
    return count


def memory_peak(decode: Decode, data: bytes) -> int:
    """The most memory, in bytes, that decoding `data` held at once."""
    tracemalloc.start()
    try:
        survives(decode, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
