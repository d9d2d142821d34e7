"""Reading Cap'n Proto: structs, data, text and lists in one message of one or more segments.

Every pointer is checked against its segment, and what is read counts against a budget, so that a small
message with many pointers to one place cannot expand into a large one. Fields that a shorter, older struct
does not have read as zero, as the format demands.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from blindpost.wire.errors import WireError

_Form = struct.Struct
_U16, _U32, _U64 = _Form("<H"), _Form("<I"), _Form("<Q")
_STRUCT, _LIST, _FAR, _CAPABILITY = range(4)
_BYTES, _POINTERS, _COMPOSITE = 2, 6, 7


class Message:
    """The segments of one message."""

    __slots__ = ("_budget", "_segments")

    def __init__(self, segments: Sequence[memoryview]) -> None:
        self._segments = segments
        self._budget = sum(map(len, segments)) // 8 + 64

    def root(self) -> Struct:
        """The message's root struct; an empty one if its pointer is null."""
        return self.struct_at(0, 0) or Struct(self, 0, 0, 0, 0)

    def word(self, segment: int, at: int) -> int:
        view = self._segments[segment]
        if at < 0 or at + 8 > len(view):
            raise WireError("a pointer leads out of its segment")
        value: int = _U64.unpack_from(view, at)[0]
        return value

    def number(self, form: _Form, segment: int, at: int) -> int:
        """A number inside a struct, which was bounds-checked as a whole before."""
        value: int = form.unpack_from(self._segments[segment], at)[0]
        return value

    def view(self, segment: int, at: int, size: int) -> memoryview:
        """`size` bytes, which count against the budget."""
        view = self._segments[segment]
        if at < 0 or size < 0 or at + size > len(view):
            raise WireError("a pointer leads out of its segment")
        self._budget -= (size + 7) // 8
        if self._budget < 0:
            raise WireError("a message points to the same place too often")
        return view[at : at + size]

    def struct_at(self, segment: int, at: int) -> Struct | None:
        found = self._follow(segment, at)
        if found is None:
            return None
        segment, content, tag = found
        if tag & 3 != _STRUCT:
            raise WireError("a struct expected")
        data, pointers = (tag >> 32) & 0xFFFF, tag >> 48
        self.view(segment, content, (data + pointers) * 8)
        return Struct(self, segment, content, data, pointers)

    def data_at(self, segment: int, at: int) -> memoryview:
        """The bytes behind a pointer; none if it is null."""
        found = self._follow(segment, at)
        if found is None:
            return memoryview(b"")
        segment, content, tag = found
        if tag & 3 != _LIST or (tag >> 32) & 7 != _BYTES:
            raise WireError("data expected")
        return self.view(segment, content, tag >> 35)

    def datas_at(self, segment: int, at: int) -> Iterator[memoryview]:
        """The elements of a list of data."""
        found = self._follow(segment, at)
        if found is None:
            return
        segment, content, tag = found
        if tag & 3 != _LIST or (tag >> 32) & 7 != _POINTERS:
            raise WireError("a list of data expected")
        count = tag >> 35
        self.view(segment, content, count * 8)
        for place in range(content, content + count * 8, 8):
            yield self.data_at(segment, place)

    def structs_at(self, segment: int, at: int) -> Iterator[Struct]:
        """The elements of a list of structs."""
        found = self._follow(segment, at)
        if found is None:
            return
        segment, content, tag = found
        if tag & 3 != _LIST or (tag >> 32) & 7 != _COMPOSITE:
            raise WireError("a list of structs expected")
        words = tag >> 35
        self.view(segment, content, (words + 1) * 8)
        inline = self.word(segment, content)
        count, data, pointers = (inline >> 2) & 0x3FFFFFFF, (inline >> 32) & 0xFFFF, inline >> 48
        if inline & 3 != _STRUCT or count * (data + pointers) > words or (count and not data + pointers):
            raise WireError("a list of structs does not fit")
        for number in range(count):
            place = content + 8 + number * (data + pointers) * 8
            yield Struct(self, segment, place, data, pointers)

    def capability_at(self, segment: int, at: int) -> int | None:
        """The index of a capability in the message's table."""
        word = self.word(segment, at)
        if not word:
            return None
        if word & 0xFFFFFFFF != _CAPABILITY:
            raise WireError("a capability expected")
        return word >> 32

    def _follow(self, segment: int, at: int) -> tuple[int, int, int] | None:
        """Segment and place of what a pointer leads to, and the word that says what it is."""
        word = self.word(segment, at)
        if not word:
            return None
        if word & 3 != _FAR:
            return segment, at + 8 + _offset(word), word
        pad_segment, pad = self._pad(word)
        if not word & 4:
            landed = self.word(pad_segment, pad)
            if landed & 3 == _FAR:
                raise WireError("a far pointer leads to a far pointer")
            return pad_segment, pad + 8 + _offset(landed), landed
        far, tag = self.word(pad_segment, pad), self.word(pad_segment, pad + 8)
        if far & 7 != _FAR or tag & 3 == _FAR:
            raise WireError("a double far pointer does not lead to a pair")
        segment, content = self._pad(far)
        return segment, content, tag

    def _pad(self, word: int) -> tuple[int, int]:
        segment = word >> 32
        if segment >= len(self._segments):
            raise WireError("a pointer names an unknown segment")
        return segment, ((word >> 3) & 0x1FFFFFFF) * 8


class Struct:
    """A struct in a message; places of numbers are in units of their own size, as in a schema."""

    __slots__ = ("_at", "_data", "_message", "_pointers", "_segment")

    def __init__(self, message: Message, segment: int, at: int, data: int, pointers: int) -> None:
        self._message = message
        self._segment = segment
        self._at = at
        self._data = data
        self._pointers = pointers

    def u16(self, place: int) -> int:
        return self._number(_U16, place * 2)

    def u32(self, place: int) -> int:
        return self._number(_U32, place * 4)

    def u64(self, place: int) -> int:
        return self._number(_U64, place * 8)

    def data(self, place: int) -> memoryview:
        at = self._pointer(place)
        return memoryview(b"") if at is None else self._message.data_at(self._segment, at)

    def text(self, place: int) -> str:
        """Text, without the zero byte that ends it."""
        return bytes(self.data(place)[:-1]).decode("utf-8", "replace")

    def struct(self, place: int) -> Struct:
        """The struct behind a pointer; an empty one if it is null."""
        at = self._pointer(place)
        found = None if at is None else self._message.struct_at(self._segment, at)
        return found or Struct(self._message, self._segment, 0, 0, 0)

    def datas(self, place: int) -> Iterator[memoryview]:
        at = self._pointer(place)
        return iter(()) if at is None else self._message.datas_at(self._segment, at)

    def structs(self, place: int) -> Iterator[Struct]:
        at = self._pointer(place)
        return iter(()) if at is None else self._message.structs_at(self._segment, at)

    def capability(self, place: int) -> int | None:
        at = self._pointer(place)
        return None if at is None else self._message.capability_at(self._segment, at)

    def _number(self, form: _Form, at: int) -> int:
        if at + form.size > self._data * 8:
            return 0
        return self._message.number(form, self._segment, self._at + at)

    def _pointer(self, place: int) -> int | None:
        return None if place >= self._pointers else self._at + (self._data + place) * 8


def _offset(word: int) -> int:
    """The signed distance in a pointer, in bytes."""
    words = (word & 0xFFFFFFFF) >> 2
    return (words - (1 << 30) if words >> 29 else words) * 8
