"""Segments: files of checked frames that are only appended to, one writer each.

A segment begins with a header that says whose it is and what is in it. A frame carries a CRC-32 that starts
from the frame's number, so that neither a torn nor a displaced frame passes for a good one. Events are frames
of fixed width, about a microsecond each; records (what a server says once a minute) have any length.

The writer holds a lock on its file as long as it lives: a segment that is still called `.open` and is not
locked was left by a process that was killed.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blindpost.journal.author import Author
from blindpost.journal.folder import PRIVATE, SEGMENTS, make_folder, sync_folder
from blindpost.journal.schema import TABLES, Column, Table, Type

OPEN, CLOSED = ".open", ".seg"
MAGIC = b"BPJRNL\x00\x01"
RECORDS = "records"
"""In the header of a segment of records, in place of the name of a table."""

SEGMENT_BYTES = 32 << 20
BUFFER_EVENTS = 1024
_HEAD = struct.Struct("<II")
_CRC = struct.Struct("<I")
_FROM_HEADER = ("router", "role", "boot", "seq")
_HEADER_MAX = 1 << 20
_NUMBERS = {Type.INT64: "q", Type.INT32: "i", Type.FLOAT64: "d", Type.BOOL: "?"}


class SegmentError(Exception):
    """A file is not a segment, or its header is damaged: nothing in it can be trusted."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column in a frame; texts are indexes into a list of words."""

    column: Column
    code: str

    @property
    def is_text(self) -> bool:
        return self.column.type is Type.STRING


class Layout:
    """How the events of a table are laid out in frames."""

    def __init__(self, table: Table, version: int | None = None) -> None:
        self.table = table
        columns = table.at(table.version if version is None else version)
        self.fields = tuple(_field(column) for column in columns if column.name not in _FROM_HEADER)
        self.body = struct.Struct("<" + "".join(field.code for field in self.fields))
        self.width = _CRC.size + self.body.size


def _field(column: Column) -> Field:
    if column.type is Type.STRING:
        return Field(column, "B" if column.values else "H")
    if column.type not in _NUMBERS:
        raise ValueError(f"a column of type {column.type.value} has no fixed width")
    return Field(column, _NUMBERS[column.type])


@dataclass(frozen=True, slots=True)
class Header:
    """What a segment says about itself."""

    content: str
    """The name of a table, or `RECORDS`."""
    version: int
    author: Author
    first: int
    """The number of its first frame in the boot."""
    words: Mapping[str, Sequence[str]]
    """For each column of free texts, those that frames may name."""

    def encode(self) -> bytes:
        fields = {
            "content": self.content,
            "version": self.version,
            "router": self.author.router,
            "role": self.author.role,
            "boot": self.author.boot,
            "first": self.first,
            "words": {name: list(words) for name, words in self.words.items()},
        }
        body = json.dumps(fields).encode()
        return MAGIC + _HEAD.pack(len(body), zlib.crc32(body)) + body


class _Segment:
    """An open segment: locked, appended to, renamed when complete."""

    def __init__(self, root: Path, header: Header) -> None:
        folder = root / SEGMENTS
        make_folder(folder)
        stem = f"{header.content}-{header.author.stem}-{header.first:012d}"
        self._path = folder / (stem + OPEN)
        self._closed = folder / (stem + CLOSED)
        # It gets its name once it is locked and has its header: otherwise it would count as left behind.
        hidden = folder / f".{stem}{OPEN}"
        self._descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, PRIVATE)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        self.size = 0
        try:
            self.append(header.encode())
            hidden.rename(self._path)
        except OSError:  # the next attempt needs the name
            os.close(self._descriptor)
            hidden.unlink(missing_ok=True)
            raise

    def append(self, content: bytes) -> None:
        """Append all of it, or nothing if the disk is full."""
        view = memoryview(content)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(content)

    def close(self) -> None:
        """Make it complete and durable."""
        os.fsync(self._descriptor)
        self._path.rename(self._closed)
        sync_folder(self._path.parent)
        os.close(self._descriptor)


class EventWriter:
    """Appends the events of one table; frames leave the process in blocks.

    `add` takes the fields in the table's order behind `seq`; texts are the numbers of `code` and `word`.
    """

    def __init__(
        self, root: Path, table: Table, author: Author, *, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._root, self._table, self._author = root, table, author
        self._layout = Layout(table)
        self._pack = self._layout.body.pack
        self._segment_bytes = segment_bytes
        self._bodies: list[bytes] = []
        self._index = 0
        """The number of the next frame in its segment."""
        self._words: dict[str, dict[str, int]] = {
            field.column.name: {}
            for field in self._layout.fields
            if field.is_text and not field.column.values
        }
        self._segment: _Segment | None = None
        self.events = 0
        """How many frames were handed to the system."""

    def code(self, column: str, value: str) -> int:
        """The number of a legal value."""
        return self._table.by_name[column].values.index(value)

    def word(self, column: str, text: str) -> int:
        """The number of a free text. A new text starts a new segment, so keep the number."""
        words = self._words[column]
        if text not in words:
            self.close()
            words[text] = len(words)
        return words[text]

    def add(self, *fields: float) -> None:
        bodies = self._bodies
        bodies.append(self._pack(*fields))
        if len(bodies) == BUFFER_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the system: it survives `kill -9` from now on."""
        bodies, self._bodies = self._bodies, []
        if not bodies:
            return
        if self._segment is None:
            words = {name: tuple(known) for name, known in self._words.items()}
            header = Header(self._table.name, self._table.version, self._author, self.events, words)
            self._segment = _Segment(self._root, header)
        # Checksums of a whole block at once, without a Python loop.
        crcs = map(_CRC.pack, map(zlib.crc32, bodies, itertools.count(self._index)))
        self._segment.append(b"".join(itertools.chain.from_iterable(zip(crcs, bodies, strict=True))))
        self._index += len(bodies)
        self.events += len(bodies)
        if self._segment.size >= self._segment_bytes:
            self.close()

    def close(self) -> None:
        """Hand over everything; it can then be sealed."""
        finish = self.cut()
        if finish is not None:
            finish()

    def cut(self) -> Callable[[], None] | None:
        """Start a new segment; calling what this returns, in any thread, lets the old one be sealed."""
        self.flush()
        segment, self._segment, self._index = self._segment, None, 0
        return None if segment is None else segment.close


class RecordWriter:
    """Appends records of any length, each handed to the system at once."""

    def __init__(self, root: Path, author: Author) -> None:
        self._root, self._author = root, author
        self._segment: _Segment | None = None
        self._index = 0
        self.records = 0

    def add(self, record: Mapping[str, Any]) -> None:
        if self._segment is None:
            self._segment = _Segment(self._root, Header(RECORDS, 1, self._author, self.records, {}))
        body = json.dumps(record, separators=(",", ":")).encode()
        self._segment.append(_HEAD.pack(len(body), zlib.crc32(body, self._index)) + body)
        self._index += 1
        self.records += 1

    def close(self) -> None:
        """What was added can be sealed; the next record starts a new segment."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self._index = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """What was read: the header, good frames with their numbers in the boot, and how much was damaged."""

    header: Header
    numbers: Sequence[int]
    bodies: Sequence[bytes]
    damaged: int
    """Frames of fixed width before the last good one that did not pass their check."""
    torn_bytes: int
    """Bytes after the last good frame."""


def read_segment(content: bytes) -> Segment:
    """Everything good in a segment. A torn tail ends it; a damaged event costs itself only."""
    header, start = _header(content)
    frames = content[start:]
    if header.content == RECORDS:
        return _records(header, frames)
    table = TABLES.get(header.content)
    if table is None or header.version > table.version:
        raise SegmentError("a segment of a table or version that this program does not know")
    return _events(header, Layout(table, header.version).width, frames)


def _header(content: bytes) -> tuple[Header, int]:
    start = len(MAGIC) + _HEAD.size
    if not content.startswith(MAGIC) or len(content) < start:
        raise SegmentError("not a segment of a journal")
    length, crc = _HEAD.unpack_from(content, len(MAGIC))
    body = content[start : start + length]
    if length > _HEADER_MAX or len(body) != length or zlib.crc32(body) != crc:
        raise SegmentError("the header of the segment is damaged")
    try:
        found = json.loads(body)
        author = Author(found["router"], found["role"], found["boot"])
        header = Header(found["content"], found["version"], author, found["first"], found["words"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SegmentError("the header of the segment makes no sense") from error
    if not _is_sound(header):
        raise SegmentError("the header of the segment makes no sense")
    return header, start + length


def _is_sound(header: Header) -> bool:
    """Whether the decoded values have the expected types."""
    if not isinstance(header.content, str) or not isinstance(header.words, dict):
        return False
    if any(type(number) is not int or not 0 <= number < 1 << 63 for number in (header.version, header.first)):
        return False
    lists = header.words.values()
    return all(isinstance(one, list) and all(isinstance(text, str) for text in one) for one in lists)


def _events(header: Header, width: int, frames: bytes) -> Segment:
    whole = len(frames) // width * width
    bodies = [frames[start + _CRC.size : start + width] for start in range(0, whole, width)]
    stored = struct.Struct(f"<I{width - _CRC.size}x").iter_unpack(memoryview(frames)[:whole])
    found = map(zlib.crc32, bodies, itertools.count())
    good = [index for index, (crc, (kept,)) in enumerate(zip(found, stored, strict=True)) if crc == kept]
    ends = good[-1] + 1 if good else 0
    return Segment(
        header,
        [header.first + index for index in good],
        bodies if len(good) == len(bodies) else [bodies[index] for index in good],
        ends - len(good),
        len(frames) - ends * width,
    )


def _records(header: Header, frames: bytes) -> Segment:
    bodies: list[bytes] = []
    used = 0
    while used + _HEAD.size <= len(frames):
        length, crc = _HEAD.unpack_from(frames, used)
        body = frames[used + _HEAD.size : used + _HEAD.size + length]
        if len(body) != length or zlib.crc32(body, len(bodies)) != crc:
            break
        bodies.append(body)
        used += _HEAD.size + length
    return Segment(header, range(header.first, header.first + len(bodies)), bodies, 0, len(frames) - used)
