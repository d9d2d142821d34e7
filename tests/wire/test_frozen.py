"""Our frozen dataclasses behave as the standard library's do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, ClassVar

import pytest

from blindpost.wire import frozen


@dataclass(frozen=True, slots=True)
class Standard:
    """A value."""

    name: str
    size: int = 3
    parts: list[int] = field(default_factory=list, repr=False)
    kind: ClassVar[str] = "both"

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("a size below zero")


@frozen.dataclass(frozen=True, slots=True)
class Ours:
    """A value."""

    name: str
    size: int = 3
    parts: list[int] = field(default_factory=list, repr=False)
    kind: ClassVar[str] = "both"

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("a size below zero")


@frozen.dataclass(frozen=True, slots=True)
class One:
    """One field."""

    name: str


@frozen.dataclass(frozen=True, slots=True)
class Nothing:
    """No field."""


@frozen.dataclass(frozen=True, slots=True)
class Child(Ours):
    """A subclass of ours."""

    more: int = 0


def result(call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as error:
        return type(error), str(error).replace("Standard", "Ours")


@pytest.mark.parametrize(
    "act",
    [
        lambda kind: repr(kind("a")).replace("Standard", "Ours"),
        lambda kind: kind("a", 2, [1]).parts,
        lambda kind: kind(name="a", size=4).size,
        lambda kind: kind("a").parts is kind("a").parts,
        lambda kind: (kind("a") == kind("a"), kind("a") == kind("b"), kind("a") == "a"),
        lambda kind: hash(kind("a")),
        lambda kind: kind(),
        lambda kind: kind("a", 1, [], 4),
        lambda kind: kind("a", other=1),
        lambda kind: kind("a", -1),
        lambda kind: setattr(kind("a"), "name", "b"),
        lambda kind: delattr(kind("a"), "name"),
        lambda kind: dataclasses.asdict(kind("a")),
        lambda kind: dataclasses.replace(kind("a"), size=7).size,
        lambda kind: [one.name for one in dataclasses.fields(kind)],
        lambda kind: pickle.loads(pickle.dumps(kind("a", 5))) == kind("a", 5),  # noqa: S301
        lambda kind: copy.deepcopy(kind("a", 5)) == kind("a", 5),
        lambda kind: (kind.__slots__, kind.__match_args__, kind.__doc__, kind.kind),
        lambda kind: str(inspect.signature(kind)),
        lambda kind: hasattr(kind("a"), "__dict__"),
    ],
)
def test_both_behave_the_same(act: Callable[[Any], object]) -> None:
    assert result(lambda: act(Ours)) == result(lambda: act(Standard))


def test_few_fields() -> None:
    assert One("a") == One("a") != One("b")
    assert Nothing() == Nothing()
    assert len({One("a"), One("a"), Nothing(), Nothing()}) == 2


def test_a_subclass_behaves_as_usual() -> None:
    child = Child("a", more=1)
    assert (child.name, child.more, child == Child("a", more=1)) == ("a", 1, True)
    with pytest.raises(FrozenInstanceError):
        child.more = 2  # type: ignore[misc]  # that is what is tried
