"""Typed values of handlers: arguments from words, and state from JSON, by the types that the author wrote."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import inspect
import json
import math
import types
import typing
from collections.abc import Callable

from blindpost.chat.codec.fields import Json
from blindpost.wire.frozen import dataclass

YES = frozenset({"yes", "true", "on", "1"})
NO = frozenset({"no", "false", "off", "0"})
SHOWN_MAX = 64
"""So many characters of what somebody typed are repeated when it does not fit."""


class ArgumentError(ValueError):
    """What was typed does not fit the command; the message can be shown to the person who typed it."""


class StateError(TypeError):
    """A type that cannot be stored, or a stored value that does not fit its type."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a command. The last one, if it is a text, takes the rest of the line."""

    name: str
    kind: object
    required: bool
    rest: bool

    @property
    def shown(self) -> str:
        return f"<{self.name}>" if self.required else f"[{self.name}]"


def arguments_of(handler: Callable[..., object], skipped: int) -> tuple[Argument, ...]:
    """A handler's parameters after the first ones; `TypeError` where the author must annotate more."""
    hints = typing.get_type_hints(handler)
    parameters = list(inspect.signature(handler).parameters.values())
    if len(parameters) < skipped:
        raise TypeError(f"{handler.__name__}: the first parameter of a handler is the chat")
    parameters = parameters[skipped:]
    found = []
    for place, parameter in enumerate(parameters):
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise TypeError(f"{handler.__name__}: arguments of commands are plain parameters")
        kind = hints.get(parameter.name)
        if kind is None or not _readable(kind):
            raise TypeError(
                f"{handler.__name__}: give {parameter.name} the type str, int, float, bool, an Enum or a"
                " Literal of texts, or one of them with `| None`"
            )
        last = place == len(parameters) - 1
        required = parameter.default is parameter.empty
        found.append(Argument(parameter.name, kind, required, last and _plain(kind) is str))
    return tuple(found)


def read_arguments(arguments: tuple[Argument, ...], line: str) -> list[object]:
    """The values for a line of words; omitted ones take their defaults."""
    values: list[object] = []
    left = line.strip()
    for argument in arguments:
        if not left:
            if argument.required:
                raise ArgumentError(f"{argument.shown} is missing")
            break
        if argument.rest:
            word, left = left, ""
        else:
            parts = left.split(None, 1)
            word, left = parts[0], parts[1] if len(parts) == 2 else ""
        values.append(_read(argument, word))
    if left:
        raise ArgumentError(f"nothing was expected after it: {shortened(left)}")
    return values


def _plain(kind: object) -> object:
    """The type without `| None`."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        inner = [one for one in typing.get_args(kind) if one is not type(None)]
        return inner[0] if len(inner) == 1 else kind
    return kind


def _readable(kind: object) -> bool:
    plain = _plain(kind)
    if plain in (str, int, float, bool):
        return True
    if typing.get_origin(plain) is typing.Literal:
        return all(isinstance(one, str) for one in typing.get_args(plain))
    return isinstance(plain, type) and issubclass(plain, enum.Enum)


def shortened(text: str) -> str:
    """What somebody typed, as it is repeated to them: it may be longer than any message can be."""
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _read(argument: Argument, word: str) -> object:
    plain = _plain(argument.kind)
    if plain is str:
        return word
    said = shortened(word)
    if plain is bool:
        if word.lower() in YES | NO:
            return word.lower() in YES
        raise ArgumentError(f"{argument.name} is yes or no, not {said}")
    if plain is int or plain is float:
        with contextlib.suppress(ValueError):
            number = int(word) if plain is int else float(word)
            if plain is int or math.isfinite(number):
                return number
        wanted = "a whole number" if plain is int else "a number"
        raise ArgumentError(f"{argument.name} is {wanted}, not {said}")
    if isinstance(plain, type) and issubclass(plain, enum.Enum):
        choices = {one.name.lower(): one for one in plain}
        if word.lower() in choices:
            return choices[word.lower()]
        raise ArgumentError(f"{argument.name} is one of {', '.join(choices)}, not {said}")
    texts = typing.get_args(plain)
    if word in texts:
        return word
    raise ArgumentError(f"{argument.name} is one of {', '.join(texts)}, not {said}")


# State


def dump_state(value: object) -> bytes:
    """A dataclass as JSON."""
    return json.dumps(_dumped(value), ensure_ascii=False, separators=(",", ":")).encode()


def load_state(kind: type[T], data: bytes) -> T:
    """A dataclass from JSON. New fields take their defaults; removed ones are dropped."""
    found = _loaded(kind, json.loads(data))
    assert isinstance(found, kind)
    return found


T = typing.TypeVar("T")


def _dumped(value: object) -> Json:
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, enum.Enum):
        return _dumped(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: _dumped(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [_dumped(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted((_dumped(one) for one in value), key=json.dumps)
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: _dumped(one) for name, one in value.items()}
    raise StateError(f"{type(value).__name__} cannot be stored: use dataclasses, texts, numbers, lists")


def _loaded(kind: object, value: Json) -> object:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _loaded_dataclass(kind, value)
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, types.UnionType) or origin is typing.Union:
        return _loaded_union(inside, value)
    if kind is typing.Any or (origin is typing.Literal and value in inside):
        return value
    if kind in (set, frozenset, tuple) and isinstance(value, list):
        return kind(value)
    if origin in (list, set, frozenset, tuple) and isinstance(value, list):
        if origin is tuple and not (len(inside) == 2 and inside[1] is Ellipsis):
            return tuple(_loaded(one, item) for one, item in zip(inside, value, strict=True))
        made: object = origin(_loaded(inside[0], item) for item in value)
        return made
    if origin is dict and isinstance(value, dict):
        return {name: _loaded(inside[1], item) for name, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        with contextlib.suppress(ValueError):
            return kind(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    raise StateError(f"a stored {type(value).__name__} does not fit {kind}")


def _loaded_union(kinds: tuple[object, ...], value: Json) -> object:
    """As the kind that a value has, or else the first that it fits."""
    if type(value) in kinds:
        return value
    for kind in kinds:
        with contextlib.suppress(StateError):
            return _loaded(kind, value)
    raise StateError(f"a stored {type(value).__name__} does not fit any of {kinds}")


def _loaded_dataclass(kind: type, value: Json) -> object:
    if not isinstance(value, dict):
        raise StateError(f"a stored {type(value).__name__} does not fit {kind.__name__}")
    hints = typing.get_type_hints(kind)
    known = {one.name for one in dataclasses.fields(kind)}
    return kind(**{name: _loaded(hints[name], item) for name, item in value.items() if name in known})
