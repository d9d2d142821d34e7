"""All SMP values are frozen, small, and print no bytes; new ones are checked automatically."""

from __future__ import annotations

import dataclasses
import inspect
from types import ModuleType

import pytest

from blindpost.wire import batch, signed_key, transmission
from blindpost.wire.smp import (
    commands,
    credentials,
    errors,
    handshake,
    messages,
    names,
    queue_info,
    responses,
    tagged,
    transmissions,
    values,
)
from blindpost.wire.value import Value

MODULES: list[ModuleType] = [
    *(batch, signed_key, transmission),
    *(commands, credentials, errors, handshake, messages, names, queue_info, responses, tagged),
    *(transmissions, values),
]
CLASSES = [
    found
    for module in MODULES
    for _, found in inspect.getmembers(module, dataclasses.is_dataclass)
    if isinstance(found, type) and found.__module__ == module.__name__
]


def test_classes_are_found() -> None:
    assert len(CLASSES) > 60


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_value(kind: type) -> None:
    if "__dataclass_params__" in vars(kind):
        for name in [field.name for field in dataclasses.fields(kind)]:
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(object.__new__(kind), name, 1)
            with pytest.raises(dataclasses.FrozenInstanceError):
                delattr(object.__new__(kind), name)
        assert "__slots__" in vars(kind)
    assert "__dict__" not in dir(kind)
    if issubclass(kind, Value):
        assert kind.__repr__ is Value.__repr__
