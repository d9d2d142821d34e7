"""One reader and one writer for the binary encoding that all protocols here share.

`Reader` walks over a block in place: a nested part is read through a narrower reader over the same
bytes, and a body is handed out as a view. `Writer` collects parts and joins them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from blindpost.wire.errors import WireError
from blindpost.wire.value import Buffer

T = TypeVar("T")

SHORT_MAX = 255
LARGE_MAX = 65535
LIST_MAX = 255
TAG_MAX = 16


class Reader:
    """Reads fields one after another from `data[position:limit]`; raises `WireError` when they are not there.

    The fields of transmissions, of which a block may hold a hundred, are read by functions that walk over
    `data` themselves and put `position` where they stopped.
    """

    __slots__ = ("data", "limit", "position")

    def __init__(self, data: Buffer, pos: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = pos
        """Where the next field starts, also for `since`."""
        self.limit = len(data) if end is None else end

    @property
    def remaining(self) -> int:
        return self.limit - self.position

    def since(self, start: int) -> memoryview:
        """What was read since `start`, a former `position`."""
        return memoryview(self.data)[start : self.position]

    def onward(self, start: int) -> Buffer:
        """All from `start`, a former `position`, to the end, read or not; a view unless it is short."""
        data, limit = self.data, self.limit
        if limit - start <= SHORT_MAX:
            return data[start:limit]
        return memoryview(data)[start:limit]

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        start = self.position
        stop = start + count
        if stop > self.limit:
            raise WireError(f"{count} bytes expected, {self.limit - start} left")
        self.position = stop
        piece = self.data[start:stop]
        return piece if type(piece) is bytes else bytes(piece)

    def rest(self) -> memoryview:
        """Everything that is left, without a copy."""
        start = self.position
        self.position = self.limit
        return memoryview(self.data)[start : self.limit]

    def sub(self, count: int) -> Reader:
        """A reader over the next `count` bytes, which this one passes over."""
        start = self.position
        stop = start + count
        if stop > self.limit:
            raise WireError(f"{count} bytes expected, {self.limit - start} left")
        self.position = stop
        return Reader(self.data, start, stop)

    def peek(self) -> int | None:
        """The next byte, not consumed, or None at the end."""
        return self.data[self.position] if self.position < self.limit else None

    def u8(self) -> int:
        pos = self.position
        if pos >= self.limit:
            raise WireError("a byte expected, nothing left")
        self.position = pos + 1
        return self.data[pos]

    def u16(self) -> int:
        pos = self.position
        if pos + 2 > self.limit:
            raise WireError(f"2 bytes expected, {self.limit - pos} left")
        self.position = pos + 2
        return self.data[pos] << 8 | self.data[pos + 1]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def i64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def flag(self) -> bool:
        byte = self.u8()
        if byte == 0x54:
            return True
        if byte == 0x46:
            return False
        raise WireError("T or F expected")

    def short(self) -> bytes:
        """A byte string behind a one-byte length. Written out: most fields of a command are of this kind."""
        data, start, end = self.data, self.position + 1, self.limit
        if start > end:
            raise WireError("a byte expected, nothing left")
        stop = start + data[start - 1]
        if stop > end:
            raise WireError(f"{stop - start} bytes expected, {end - start} left")
        self.position = stop
        piece = data[start:stop]
        return piece if type(piece) is bytes else bytes(piece)

    def large(self) -> memoryview:
        """A byte string behind a two-byte length, as a view."""
        count = self.u16()
        start = self.position
        stop = start + count
        if stop > self.limit:
            raise WireError(f"{count} bytes expected, {self.limit - start} left")
        self.position = stop
        return memoryview(self.data)[start:stop]

    def text(self) -> str:
        """UTF-8 behind a one-byte length."""
        try:
            return self.short().decode("utf-8")
        except UnicodeDecodeError as error:
            raise WireError("UTF-8 text expected") from error

    def latin1(self) -> str:
        """Latin-1 behind a one-byte length: host ports and error texts."""
        return self.short().decode("latin-1")

    def opt(self, item: Callable[[Reader], T]) -> T | None:
        """`0`, or `1` followed by the item. The marks are characters."""
        mark = self.u8()
        if mark == 0x30:
            return None
        if mark == 0x31:
            return item(self)
        raise WireError("0 or 1 expected before an optional field")

    def list1(self, item: Callable[[Reader], T]) -> tuple[T, ...]:
        """A count from 1 to 255, then the items."""
        count = self.u8()
        if count == 0:
            raise WireError("a list of at least one item expected")
        return tuple(item(self) for _ in range(count))

    def list0(self, item: Callable[[Reader], T]) -> tuple[T, ...]:
        """A count from 0 to 255, then the items."""
        return tuple(item(self) for _ in range(self.u8()))

    def expect(self, literal: bytes) -> None:
        """Exactly these bytes."""
        if self.take(len(literal)) != literal:
            raise WireError(f"{literal!r} expected")

    def skip(self, literal: bytes) -> bool:
        """Skip these bytes if they come next; returns whether they did."""
        stop = self.position + len(literal)
        if stop > self.limit or self.data[self.position : stop] != literal:
            return False
        self.position = stop
        return True

    def tag(self) -> bytes:
        """The bytes up to the next space or the end; the space stays."""
        start = self.position
        head = bytes(self.data[start : min(self.limit, start + TAG_MAX)])
        space = head.find(b" ")
        if space >= 0:
            head = head[:space]
        elif self.limit - start > TAG_MAX:
            raise WireError(f"a tag of at most {TAG_MAX} bytes expected")
        self.position = start + len(head)
        return head

    def pass_space(self) -> None:
        """Skip past the next space, wherever it is."""
        start = self.position
        space = bytes(self.data[start : self.limit]).find(b" ")
        if space < 0:
            raise WireError("a space expected")
        self.position = start + space + 1

    def end(self) -> None:
        """Nothing may be left."""
        if self.position != self.limit:
            raise WireError(f"{self.limit - self.position} bytes left over")


class Writer:
    """Collects encoded fields; `done` joins them. Values that do not fit their field raise `WireError`."""

    __slots__ = ("parts", "size")

    def __init__(self, parts: list[Buffer] | None = None, size: int = 0) -> None:
        self.parts: list[Buffer] = [] if parts is None else parts
        """What was written, in order, for a caller that joins it into its own block."""
        self.size = size

    def done(self) -> bytes:
        return b"".join(self.parts)

    def raw(self, data: Buffer) -> Writer:
        self.parts.append(data)
        self.size += len(data)
        return self

    def extend(self, other: Writer) -> Writer:
        """Everything that `other` collected, without a copy."""
        self.parts.extend(other.parts)
        self.size += other.size
        return self

    def u8(self, number: int) -> Writer:
        return self.raw(_unsigned(number, 1))

    def u16(self, number: int) -> Writer:
        return self.raw(_unsigned(number, 2))

    def u32(self, number: int) -> Writer:
        return self.raw(_unsigned(number, 4))

    def i64(self, number: int) -> Writer:
        try:
            return self.raw(number.to_bytes(8, "big", signed=True))
        except OverflowError as error:
            raise WireError("a signed 64-bit number expected") from error

    def flag(self, flag: bool) -> Writer:
        return self.raw(b"T" if flag else b"F")

    def short(self, data: Buffer) -> Writer:
        count = len(data)
        if count > SHORT_MAX:
            raise WireError(f"at most {SHORT_MAX} bytes fit here, not {count}")
        self.parts.append(count.to_bytes(1, "big"))
        self.parts.append(data)
        self.size += 1 + count
        return self

    def large(self, data: Buffer) -> Writer:
        count = len(data)
        if count > LARGE_MAX:
            raise WireError(f"at most {LARGE_MAX} bytes fit here, not {count}")
        self.parts.append(count.to_bytes(2, "big"))
        self.parts.append(data)
        self.size += 2 + count
        return self

    def text(self, text: str) -> Writer:
        try:
            return self.short(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise WireError("text that UTF-8 can carry expected") from error

    def latin1(self, text: str) -> Writer:
        try:
            return self.short(text.encode("latin-1"))
        except UnicodeEncodeError as error:
            raise WireError("text that Latin-1 can carry expected") from error

    def opt(self, item: T | None, write: Callable[[Writer, T], object]) -> Writer:
        if item is None:
            return self.raw(b"0")
        self.raw(b"1")
        write(self, item)
        return self

    def list1(self, items: Iterable[T], write: Callable[[Writer, T], object]) -> Writer:
        listed = tuple(items)
        if not listed:
            raise WireError("a list of at least one item expected")
        return self.list0(listed, write)

    def list0(self, items: Iterable[T], write: Callable[[Writer, T], object]) -> Writer:
        listed = tuple(items)
        if len(listed) > LIST_MAX:
            raise WireError(f"a list of at most {LIST_MAX} items expected")
        self.u8(len(listed))
        for item in listed:
            write(self, item)
        return self


def _unsigned(number: int, count: int) -> bytes:
    try:
        return number.to_bytes(count, "big")
    except OverflowError as error:
        raise WireError(f"an unsigned {8 * count}-bit number expected") from error


def decode_whole(data: Buffer, item: Callable[[Reader], T]) -> T:
    """Read one item that must take up all of `data`."""
    reader = Reader(data)
    value = item(reader)
    reader.end()
    return value


def encode(item: T, write: Callable[[Writer, T], object]) -> bytes:
    """The bytes that `write` produces for `item`."""
    writer = Writer()
    write(writer, item)
    return writer.done()
