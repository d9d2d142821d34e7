"""Reads a line of text from left to right: the fields of store logs, statistics files and push lists."""

from __future__ import annotations

import re

from blindpost.wire.errors import WireError
from blindpost.wire.text import unb64
from blindpost.wire.value import Buffer

_BASE64URL = re.compile(r"[A-Za-z0-9_-]+=*", re.ASCII)
_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_INT64_MAX = 2**63 - 1


def from_utf8(data: Buffer) -> str:
    """The text in `data`, which must be UTF-8."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise WireError("UTF-8 text expected") from error


class Scanner:
    """A position in a text; every method reads at it and moves on, or raises `WireError`."""

    __slots__ = ("_pos", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0

    def skip(self, literal: str) -> bool:
        """Skip `literal` if it comes next; returns whether it did."""
        if self._text.startswith(literal, self._pos):
            self._pos += len(literal)
            return True
        return False

    def next_is(self, literal: str) -> bool:
        """Whether `literal` comes next; it stays."""
        return self._text.startswith(literal, self._pos)

    def expect(self, literal: str) -> None:
        if not self.skip(literal):
            raise WireError(f"{literal!r} expected")

    def match(self, pattern: re.Pattern[str], expected: str) -> str:
        """What `pattern` matches here; `expected` names it if it does not."""
        found = pattern.match(self._text, self._pos)
        if found is None:
            raise WireError(f"{expected} expected")
        self._pos = found.end()
        return found.group()

    def until(self, stop: str) -> str:
        """Everything before the next `stop`, or to the end; it may be nothing."""
        start = self._pos
        found = self._text.find(stop, start)
        self._pos = len(self._text) if found < 0 else found
        return self._text[start : self._pos]

    def base64(self) -> bytes:
        """At least one byte in base64url, with complete padding or none."""
        return unb64(self.match(_BASE64URL, "base64url text"))

    def integer(self) -> int:
        """A signed 64-bit number."""
        number = int(self.match(_INTEGER, "a number"))
        if not -_INT64_MAX - 1 <= number <= _INT64_MAX:
            raise WireError("a signed 64-bit number expected")
        return number

    def natural(self) -> int:
        """A number that is not negative."""
        number = self.integer()
        if number < 0:
            raise WireError("a number that is not negative expected")
        return number

    def flag(self) -> bool:
        if self.skip("T"):
            return True
        self.expect("F")
        return False

    def rest(self) -> str:
        start = self._pos
        self._pos = len(self._text)
        return self._text[start:]

    @property
    def at_end(self) -> bool:
        return self._pos == len(self._text)

    def end(self) -> None:
        """Nothing may be left."""
        if not self.at_end:
            raise WireError(f"{len(self._text) - self._pos} characters left over")
