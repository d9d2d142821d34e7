"""The base of every transmitted value: it prints as lengths, so that a log cannot leak it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, cast

Buffer = bytes | memoryview
"""A body as it is in its block. Large ones are views, so that decoding copies nothing."""


class Value:
    """Give a dataclass a `repr` that shows its shape and never its bytes.

    Use with `@dataclass(frozen=True, slots=True, repr=False)`.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        listed = fields(cast(Any, self))
        return shape(type(self), ((field.name, getattr(self, field.name)) for field in listed))


def shape(kind: type, named: Iterable[tuple[str, object]]) -> str:
    """How a value of this kind with these fields prints."""
    shown = ", ".join(f"{name}={_shown(item)}" for name, item in named)
    return f"{kind.__name__}({shown})"


def shown(named: Any) -> str:
    """The `__repr__` of a named tuple whose contents must not be shown.

    Named tuples are for values of which every command makes some: a frozen dataclass takes three times as
    long to make.
    """
    return shape(type(named), zip(named._fields, named, strict=True))


def _shown(item: Any) -> str:
    if isinstance(item, bytes | bytearray | memoryview):
        return f"<{len(item)} bytes>"
    if isinstance(item, str):
        return f"<{len(item)} characters>"
    if isinstance(item, tuple | list):
        return f"[{', '.join(_shown(part) for part in item)}]"
    return repr(item)
