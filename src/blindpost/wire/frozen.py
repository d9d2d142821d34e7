"""The standard library's frozen dataclasses with slots, made in a third of the time.

The package has more than four hundred of them. The standard library compiles six functions for each, one by
one, which was half of the time that importing an agent took. Here one function is compiled, and the others
are shared. Type checkers see the standard decorator; whatever is unusual about a class is left to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, **options: bool) -> type | Callable[[type], type]:
        """`dataclasses.dataclass`."""

        def decorate(found: type) -> type:
            if _is_usual(found, options):
                return _made(found, repr=options.get("repr", True))
            return dataclasses.dataclass(found, **options)

        return decorate if cls is None else decorate(cls)


_USUAL = {"frozen": True, "slots": True}


def _is_usual(cls: type, options: dict[str, bool]) -> bool:
    """Whether a class is frozen, has slots, defines none of the methods that would be made, and has
    only plain fields."""
    if {**options, "repr": True} != {**_USUAL, "repr": True} or _MADE & cls.__dict__.keys():
        return False
    dataclasses_below = [base for base in cls.__bases__ if hasattr(base, "__dataclass_fields__")]
    if any(vars(base).get("__setattr__") is not _refuse_setting for base in dataclasses_below):
        return False
    found = [value for value in cls.__dict__.values() if isinstance(value, Field)]
    return all(one.init and one.compare and one.hash is None and one.kw_only is MISSING for one in found)


_MADE = {"__init__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__getstate__", "__setstate__"}


def _made(cls: type, *, repr: bool) -> type:  # noqa: A002  # the decorator's own name
    made: Any = dataclasses.dataclass(cls, init=False, repr=repr, eq=False, slots=True)
    fields = dataclasses.fields(made)
    names = tuple(field.name for field in fields)
    made.__init__ = _init_of(made, fields)
    # `attrgetter` of one name gives the value alone, of several a tuple.
    values: Callable[[Any], object] = attrgetter(*names) if names else lambda _: ()

    def __eq__(self: Any, other: object) -> bool:  # noqa: N807
        if other.__class__ is self.__class__:
            return values(self) == values(other)
        return NotImplemented

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    made.__eq__, made.__hash__ = __eq__, __hash__
    made.__setattr__, made.__delattr__ = _refuse_setting, _refuse_deletion
    made.__getstate__, made.__setstate__ = _state, _restore
    return cast(type, made)


class _Factory:
    """The default of a parameter whose value is made for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _init_of(made: Any, fields: tuple[Field[Any], ...]) -> Callable[..., None]:
    """The only function that must be compiled: its parameters are the fields."""
    scope: dict[str, Any] = {"_FACTORY": _FACTORY}
    parameters, body = ["self"], []
    for field in fields:
        name = field.name
        scope[f"_set_{name}"] = getattr(made, name).__set__
        value = name
        if field.default_factory is not MISSING:
            scope[f"_new_{name}"] = field.default_factory
            parameters.append(f"{name}=_FACTORY")
            value = f"_new_{name}() if {name} is _FACTORY else {name}"
        elif field.default is not MISSING:
            scope[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
        else:
            parameters.append(name)
        body.append(f"_set_{name}(self, {value})")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body or ["pass"]), scope)  # noqa: S102
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__module__ = made.__module__
    init.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    return init


def _refuse_setting(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
