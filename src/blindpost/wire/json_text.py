"""JSON inside binary messages: an object with known fields, or `WireError`."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from blindpost.wire.errors import WireError
from blindpost.wire.value import Buffer

INT64_MAX = 2**63 - 1


class JsonObject:
    """Typed access to the fields of one JSON object; unknown fields are tolerated."""

    __slots__ = ("_fields",)

    def __init__(self, fields: object) -> None:
        if not isinstance(fields, dict):
            raise WireError("a JSON object expected")
        self._fields: dict[str, Any] = fields

    @classmethod
    def from_bytes(cls, data: Buffer) -> JsonObject:
        try:
            return cls(json.loads(str(data, "utf-8"), parse_constant=_no_constant))
        except (ValueError, RecursionError) as error:
            raise WireError("a JSON object expected") from error

    def text(self, name: str) -> str:
        return _text(self._fields.get(name), name)

    def optional_text(self, name: str) -> str | None:
        found = self._fields.get(name)
        return None if found is None else _text(found, name)

    def texts(self, name: str) -> tuple[str, ...]:
        found = self._fields.get(name)
        if not isinstance(found, list):
            raise WireError(f"a list in the JSON field {name} expected")
        return tuple(_text(item, name) for item in found)

    def flag(self, name: str) -> bool:
        found = self._fields.get(name)
        if not isinstance(found, bool):
            raise WireError(f"true or false in the JSON field {name} expected")
        return found

    def integer(self, name: str) -> int:
        found = self._fields.get(name)
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if not isinstance(found, int) or isinstance(found, bool) or not -INT64_MAX - 1 <= found <= INT64_MAX:
            raise WireError(f"a 64-bit number in the JSON field {name} expected")
        return found

    def optional_integer(self, name: str) -> int | None:
        return None if self._fields.get(name) is None else self.integer(name)

    def optional_object(self, name: str) -> JsonObject | None:
        found = self._fields.get(name)
        return None if found is None else JsonObject(found)


def json_bytes(fields: dict[str, Any]) -> bytes:
    """Compact JSON in UTF-8, fields in their order."""
    return _utf8(json.dumps(fields, ensure_ascii=False, separators=(",", ":")))


def _text(found: object, name: str) -> str:
    if not isinstance(found, str):
        raise WireError(f"text in the JSON field {name} expected")
    _utf8(found)
    return found


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise WireError("text that UTF-8 can carry expected") from error


def _no_constant(name: str) -> NoReturn:
    raise WireError(f"{name} is not JSON")
