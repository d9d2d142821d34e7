"""Finding exactly which queues differ when each side's state stays where it is.

Each side puts its queues into the cells of an invertible Bloom lookup table: every queue is added to four
cells, and a cell holds a count and the XOR of what was added. Subtracting the other side's cells leaves the
differences only; a cell with one of them gives it away, and taking that one out of its other cells gives away
the next. A table of 480 cells (15 KB) finds some 300 differences among any number of queues; cells that stay
show that it was too small, and both sides try again with twice as many.

Queues are known by the lanes of their MD5. The side that gets a difference looks it up in its own state:
lanes mean nothing to anybody who does not have the queue.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from blindpost.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CELLS = 480
HASHES = 4
_CHECK = HASHES
_CELL = struct.Struct("<qQQQ")
_HEAD = b"blindpost cells 1\n"
_64 = 2**64 - 1

Lanes = tuple[int, int]
"""h_hi and h_lo of a queue, signed."""


@dataclass(slots=True)
class Cell:
    """The sum of what was added."""

    count: int = 0
    high: int = 0
    low: int = 0
    check: int = 0

    @property
    def empty(self) -> bool:
        return not (self.count or self.high or self.low or self.check)


def cells_of(queues: DataFrame, size: int = CELLS) -> list[Cell]:
    """The table of the queues in a frame with columns `h_hi` and `h_lo`, each there once."""
    places = F.explode(F.array(*(_place(number, size) for number in range(HASHES)))).alias("cell")
    summed = (
        queues.select("h_hi", "h_lo", F.xxhash64("h_hi", "h_lo", F.lit(_CHECK)).alias("check"))
        .select("*", places)
        .groupBy("cell")
        .agg(F.count("*"), F.bit_xor("h_hi"), F.bit_xor("h_lo"), F.bit_xor("check"))
    )
    table = [Cell() for _ in range(size)]
    for cell, count, high, low, check in summed.collect():
        table[cell] = Cell(count, high & _64, low & _64, check & _64)
    return table


def _place(number: int, size: int) -> Column:
    each = size // HASHES
    return number * each + F.pmod(F.xxhash64("h_hi", "h_lo", F.lit(number)), F.lit(each))


def encode_cells(table: list[Cell]) -> bytes:
    return _HEAD + b"".join(_CELL.pack(cell.count, cell.high, cell.low, cell.check) for cell in table)


def decode_cells(content: bytes) -> list[Cell]:
    body = content[len(_HEAD) :]
    if not content.startswith(_HEAD) or len(body) % (_CELL.size * HASHES) or not body:
        raise PipelineError("This is no file of cells. Let the other side write it again.")
    return [Cell(*values) for values in _CELL.iter_unpack(body)]


@dataclass(frozen=True, slots=True)
class Difference:
    """What only one side has."""

    ours: frozenset[Lanes]
    theirs: frozenset[Lanes]


def difference(ours: list[Cell], theirs: list[Cell]) -> Difference | None:
    """What differs, or None if the tables are too small for how much does."""
    if len(ours) != len(theirs):
        raise PipelineError(f"Both sides must use as many cells: {len(ours)} here, {len(theirs)} there.")
    table = [
        Cell(one.count - other.count, one.high ^ other.high, one.low ^ other.low, one.check ^ other.check)
        for one, other in zip(ours, theirs, strict=True)
    ]
    found: tuple[set[Lanes], set[Lanes]] = set(), set()
    ready = deque(cell for cell in table if abs(cell.count) == 1)
    while ready:
        cell = ready.popleft()
        if abs(cell.count) != 1 or _hash(cell.high, cell.low, _CHECK) != cell.check:
            continue
        sign, high, low, check = cell.count, cell.high, cell.low, cell.check
        found[sign < 0].add((_signed(high), _signed(low)))
        for number in range(HASHES):
            other = table[_place_of(high, low, number, len(table))]
            other.count -= sign
            other.high ^= high
            other.low ^= low
            other.check ^= check
            ready.append(other)
    if not all(cell.empty for cell in table):
        return None
    return Difference(frozenset(found[0]), frozenset(found[1]))


def _place_of(high: int, low: int, number: int, size: int) -> int:
    each = size // HASHES
    return number * each + _signed(_hash(high, low, number)) % each


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def _hash(high: int, low: int, number: int) -> int:
    """XXH64 as Spark's `xxhash64(h_hi, h_lo, number)` computes it, unsigned; `number` is an INT there."""
    return _of_int(number, _of_long(low, _of_long(high, 42)))


def _of_long(value: int, seed: int) -> int:
    mixed = (seed + _P5 + 8) & _64
    mixed ^= _turned(value * _P2 & _64, 31) * _P1 & _64
    return _finished((_turned(mixed, 27) * _P1 + _P4) & _64)


def _of_int(value: int, seed: int) -> int:
    mixed = (seed + _P5 + 4) & _64
    mixed ^= value * _P1 & _64
    return _finished((_turned(mixed, 23) * _P2 + _P3) & _64)


def _turned(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _64


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * _P2 & _64
    value = (value ^ value >> 29) * _P3 & _64
    return value ^ value >> 32
