"""Writing Cap'n Proto: one message in one segment, each struct and list after what points to it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from blindpost.wire.value import Buffer

_BYTES, _POINTERS, _COMPOSITE = 2, 6, 7


class Builder:
    """A message under construction; `framed` is what is sent on a stream."""

    __slots__ = ("_content",)

    def __init__(self) -> None:
        self._content = bytearray(8)

    def root(self, data: int, pointers: int) -> StructBuilder:
        return self.struct(0, data, pointers)

    def framed(self) -> bytes:
        """The message after the table of its one segment."""
        return struct.pack("<II", 0, len(self._content) // 8) + self._content

    def put(self, form: str, at: int, value: int) -> None:
        struct.pack_into(form, self._content, at, value)

    def struct(self, at: int, data: int, pointers: int) -> StructBuilder:
        place = self._allocate((data + pointers) * 8)
        # A struct without words must not look like a null pointer: its distance is minus one.
        words = (place - at - 8) // 8 if data + pointers else -1
        self.put("<Q", at, (words & 0x3FFFFFFF) << 2 | data << 32 | pointers << 48)
        return StructBuilder(self, place, data)

    def data(self, at: int, content: Buffer) -> None:
        place = len(self._content)
        self._point_to_list(at, place, _BYTES, len(content))
        self._content += content
        self._content += bytes(-len(content) % 8)

    def datas(self, at: int, contents: Sequence[Buffer]) -> None:
        place = self._allocate(len(contents) * 8)
        self._point_to_list(at, place, _POINTERS, len(contents))
        for number, content in enumerate(contents):
            self.data(place + number * 8, content)

    def structs(self, at: int, count: int, data: int, pointers: int) -> list[StructBuilder]:
        size = data + pointers
        place = self._allocate((count * size + 1) * 8)
        self._point_to_list(at, place, _COMPOSITE, count * size)
        self.put("<Q", place, count << 2 | data << 32 | pointers << 48)
        return [StructBuilder(self, place + 8 + number * size * 8, data) for number in range(count)]

    def _allocate(self, size: int) -> int:
        place = len(self._content)
        self._content += bytes(size)
        return place

    def _point_to_list(self, at: int, place: int, kind: int, count: int) -> None:
        self.put("<Q", at, 1 | ((place - at - 8) // 8) << 2 | kind << 32 | count << 35)


class StructBuilder:
    """A struct of a message; places of numbers are in units of their own size."""

    __slots__ = ("_at", "_builder", "_data")

    def __init__(self, builder: Builder, at: int, data: int) -> None:
        self._builder = builder
        self._at = at
        self._data = data

    def u16(self, place: int, value: int) -> None:
        self._builder.put("<H", self._at + place * 2, value)

    def u32(self, place: int, value: int) -> None:
        self._builder.put("<I", self._at + place * 4, value)

    def u64(self, place: int, value: int) -> None:
        self._builder.put("<Q", self._at + place * 8, value)

    def data(self, place: int, content: Buffer) -> None:
        """Empty data is a null pointer, as the public libraries write a field that was never set."""
        if len(content):
            self._builder.data(self._pointer(place), content)

    def text(self, place: int, content: str) -> None:
        self._builder.data(self._pointer(place), content.encode() + b"\0")

    def struct(self, place: int, data: int, pointers: int) -> StructBuilder:
        return self._builder.struct(self._pointer(place), data, pointers)

    def datas(self, place: int, contents: Sequence[Buffer]) -> None:
        self._builder.datas(self._pointer(place), contents)

    def structs(self, place: int, count: int, data: int, pointers: int) -> list[StructBuilder]:
        return self._builder.structs(self._pointer(place), count, data, pointers)

    def capability(self, place: int, index: int) -> None:
        self._builder.put("<Q", self._pointer(place), 3 | index << 32)

    def _pointer(self, place: int) -> int:
        return self._at + (self._data + place) * 8
