"""Files of lines, read in chunks that can be found again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LINE_MAX = 1 << 20
"""No line written by a router comes near this; a longer one is damaged and not kept in memory."""
CHUNK_LINES = 4_000
CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Position:
    """Where to resume: the byte offset in the file and the number of lines before it."""

    offset: int = 0
    lines: int = 0


START = Position()


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines without their ends, None for one that is too long, and where the next ones start."""

    first: int
    """The number of the first line, as editors count."""
    content: tuple[bytes | None, ...]
    following: Position


def read_lines(
    path: Path, position: Position = START, lines_max: int = CHUNK_LINES, bytes_max: int = CHUNK_BYTES
) -> Iterator[Lines]:
    """The file from `position` on; a last line without an end counts as one."""
    with path.open("rb") as file:
        file.seek(position.offset)
        offset, number = position.offset, position.lines
        content: list[bytes | None] = []
        size = 0
        while line := file.readline(LINE_MAX + 1):
            taken = len(line)
            kept: bytes | None = line.removesuffix(b"\n")
            while not line.endswith(b"\n") and taken > LINE_MAX:
                kept = None
                line = file.readline(LINE_MAX)
                taken += len(line)
                if len(line) < LINE_MAX:
                    break
            offset += taken
            size += taken
            content.append(kept)
            if len(content) == lines_max or size >= bytes_max:
                following = Position(offset, number + len(content))
                yield Lines(number + 1, tuple(content), following)
                number, content, size = following.lines, [], 0
        if content:
            yield Lines(number + 1, tuple(content), Position(offset, number + len(content)))
