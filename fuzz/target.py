"""What a fuzzer aims at: something to set up once, and a function that takes any bytes.

The function returns, whatever it is given. An exception is a finding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

One = Callable[[bytes], None]

INPUT_MAX = 40_000
CASES = Path(__file__).parent / "cases"


@dataclass(frozen=True, slots=True)
class Target:
    """One place where strangers' bytes arrive."""

    name: str
    promise: str
    """What holds for any input."""
    prepared: Callable[[], AbstractContextManager[One]]
    seeds: Callable[[], list[bytes]]
    """Good inputs, to start from."""

    @property
    def cases(self) -> dict[str, bytes]:
        """Inputs that failed once, by their names."""
        folder = CASES / self.name
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        return {path.name: path.read_bytes() for path in found}


class Source:
    """Reads an input as small numbers and pieces; an exhausted one gives zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def byte(self) -> int:
        taken = self.take(1)
        return taken[0] if taken else 0

    def number(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def take(self, count: int) -> bytes:
        taken = self._data[self._position : self._position + count]
        self._position += len(taken)
        return taken

    def piece(self) -> bytes:
        """Some bytes, by a length of two bytes before them."""
        return self.take(self.number())

    def rest(self) -> bytes:
        return self.take(self.left)


def piece(data: bytes) -> bytes:
    """What `Source.piece` reads."""
    return len(data).to_bytes(2, "big") + data


def changed(seeds: list[bytes], count: int, seed: int) -> Iterator[bytes]:
    """Seeded changes of good inputs: the same ones each time."""
    chance = random.Random(seed)  # noqa: S311  # not for secrets
    for _ in range(count):
        data = bytearray(chance.choice(seeds) if seeds else b"")
        for _ in range(chance.randrange(1, 5)):
            place = chance.randrange(len(data) + 1)
            match chance.randrange(8):
                case 0:
                    del data[place : place + chance.randrange(1, 9)]
                case 1:
                    data[place:place] = chance.randbytes(chance.randrange(1, 9))
                case 2 if place < len(data):
                    data[place] ^= 1 << chance.randrange(8)
                case 3 if place < len(data):
                    data[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
                case 4 if seeds:
                    other = chance.choice(seeds)
                    data[place:] = other[chance.randrange(len(other) + 1) :]
                case 5:
                    again = data[place : place + chance.randrange(1, 65)]
                    data[place:place] = again * chance.choice((1, 1, 2, 16, 255))
                case 6 if place + 1 < len(data):
                    near = int.from_bytes(data[place : place + 2], "big") + chance.choice((-1, 1, 256, -256))
                    data[place : place + 2] = (near % 65536).to_bytes(2, "big")
                case 7:
                    data[place:place] = data
                case _:
                    pass
        yield bytes(data[:INPUT_MAX])
