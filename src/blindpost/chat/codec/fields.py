"""JSON objects with known fields: each is taken by name and type, and the rest is carried along.

Fields that later versions add are kept as text in `rest`, so that a value is written with all that it had.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

from blindpost.wire.errors import WireError
from blindpost.wire.text import b64, unb64
from blindpost.wire.value import Buffer
from blindpost.wire.versions import VersionRange

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Rest = tuple[tuple[str, str], ...]
"""Fields that are not known here: name and JSON text, in order of name."""

INT64_MAX = 2**63 - 1
DEPTH_MAX = 64
"""How deep objects and lists may be nested; nobody writes more than ten levels."""

T = TypeVar("T")


def json_value(data: Buffer) -> Json:
    """Any JSON in UTF-8 whose strings can be encoded in UTF-8, or `WireError`."""
    try:
        found: Json = json.loads(str(data, "utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WireError("JSON expected") from error
    _check(found, DEPTH_MAX)
    return found


def json_text(value: Json) -> str:
    """Compact JSON; equal values are equal texts."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def json_bytes(value: Json) -> bytes:
    """Compact JSON in UTF-8, fields in their order."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError as error:
        raise WireError("text that UTF-8 can carry expected") from error


class Fields:
    """One object that is being read; every method takes a field out of it."""

    __slots__ = ("_left",)
    _left: dict[str, Json]

    def __init__(self, value: Json) -> None:
        if not isinstance(value, dict):
            raise WireError("a JSON object expected")
        self._left = {name: item for name, item in value.items() if item is not None}

    def take(self, name: str) -> Json:
        """The field's value, of any type; None if it is absent."""
        return self._left.pop(name, None)

    def _wanted(self, name: str, kind: type[T], called: str) -> T:
        found = self.take(name)
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            raise WireError(f"{called} in the JSON field {name} expected")
        return found

    def text(self, name: str) -> str:
        return self._wanted(name, str, "text")

    def opt_text(self, name: str) -> str | None:
        return self.text(name) if name in self._left else None

    def flag(self, name: str) -> bool:
        return self._wanted(name, bool, "true or false")

    def opt_flag(self, name: str) -> bool | None:
        return self.flag(name) if name in self._left else None

    def number(self, name: str) -> int:
        found = self.take(name)
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if not isinstance(found, int) or isinstance(found, bool) or not -INT64_MAX <= found <= INT64_MAX:
            raise WireError(f"a 64-bit number in the JSON field {name} expected")
        return found

    def opt_number(self, name: str) -> int | None:
        return self.number(name) if name in self._left else None

    def id(self, name: str) -> bytes:
        """Bytes as base64url: the id of a message or member."""
        return unb64(self.text(name))

    def opt_id(self, name: str) -> bytes | None:
        return self.id(name) if name in self._left else None

    def versions(self, name: str) -> VersionRange:
        """A range of versions; if absent, only the first version."""
        found = self.opt_text(name)
        return VersionRange(1, 1) if found is None else VersionRange.from_text(found)

    def item(self, name: str, read: Callable[[Fields], T]) -> T:
        """An object."""
        return read(Fields(self.take(name)))

    def opt_item(self, name: str, read: Callable[[Fields], T]) -> T | None:
        return self.item(name, read) if name in self._left else None

    def items(self, name: str, read: Callable[[Fields], T]) -> tuple[T, ...]:
        """A list of objects."""
        found = self._wanted(name, list, "a list")
        return tuple(read(Fields(one)) for one in found)

    def opt_items(self, name: str, read: Callable[[Fields], T]) -> tuple[T, ...] | None:
        return self.items(name, read) if name in self._left else None

    def all(self) -> dict[str, Json]:
        """Everything that was not taken, as it is."""
        left, self._left = self._left, {}
        return left

    def rest(self) -> Rest:
        """What was not taken."""
        return tuple(sorted((name, json_text(item)) for name, item in self._left.items()))


def written(rest: Rest = (), **fields: Json) -> dict[str, Json]:
    """An object of these fields; those without a value are left out."""
    known = {name: item for name, item in fields.items() if item is not None}
    return {**known, **{name: json.loads(text) for name, text in rest}}


def opt(value: T | None, write: Callable[[T], Json]) -> Json:
    """What `write` makes of a value, if there is one."""
    return None if value is None else write(value)


def id_text(value: bytes) -> str:
    """An id as it is written in JSON."""
    return b64(value)


def listed(values: tuple[T, ...] | None, write: Callable[[T], Mapping[str, Json]]) -> Json:
    return None if values is None else [dict(write(value)) for value in values]


def _check(value: Json, depth: int) -> None:
    """Refuse what could not be written again."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise WireError("text that UTF-8 can carry expected") from error
    elif isinstance(value, dict | list):
        if depth == 0:
            raise WireError("JSON of usual depth expected")
        for item in value if isinstance(value, list) else [*value.keys(), *value.values()]:
            _check(item, depth - 1)
    elif isinstance(value, float) and value in (float("inf"), float("-inf")):
        raise WireError("a number that JSON can carry expected")


def _no_constant(name: str) -> NoReturn:
    raise WireError(f"{name} is not JSON")
