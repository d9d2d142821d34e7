"""What programs are given is typed to the end: no public signature says `Any`, nor leaves a type out."""

from __future__ import annotations

import ast
import importlib
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import pytest

import blindpost.agent
import blindpost.bot
import blindpost.chat
import blindpost.client
import blindpost.testing

FACES = (blindpost.agent, blindpost.bot, blindpost.chat, blindpost.client, blindpost.testing)
UNTYPED = frozenset({"self", "cls"})


def _says_any(hint: object, seen: frozenset[int] = frozenset()) -> bool:
    """Whether a type is `Any`, or has it inside."""
    if hint is Any:
        return True
    if id(hint) in seen or isinstance(hint, str):
        return False
    parts = [*get_args(hint)]
    if isinstance(hint, TypeVar):
        parts += [hint.__bound__, *hint.__constraints__]
    flat = [one for part in parts for one in (part if isinstance(part, list) else [part])]
    return any(_says_any(part, seen | {id(hint)}) for part in flat)


def _callables(owner: str, value: object) -> Iterator[tuple[str, object]]:
    """A function, or what of a class can be called and read by its public names, inherited from our own
    classes included."""
    if inspect.isfunction(value):
        yield owner, value
    if not inspect.isclass(value) or not value.__module__.startswith("blindpost"):
        return
    yield owner, value  # its fields
    for base in value.__mro__:
        if not base.__module__.startswith("blindpost"):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") and name not in ("__init__", "__call__", "__aenter__", "__enter__"):
                continue
            if isinstance(member, property):
                member = member.fget
            elif isinstance(member, classmethod | staticmethod):
                member = member.__func__
            written = vars(importlib.import_module(base.__module__))
            if isinstance(member, types.FunctionType) and member.__globals__ is written:  # not made of fields
                yield f"{owner}.{name}", member


def _hints(value: Any) -> dict[str, object]:
    owners = value.__mro__ if inspect.isclass(value) else [value]
    modules = {one.__module__ for one in owners if one.__module__.startswith("blindpost")}
    known: dict[str, object] = {}
    for name in modules:
        known |= _only_for_types(importlib.import_module(name))
    found: dict[str, object] = dict(get_type_hints(value, localns=known))
    return {name: hint for name, hint in found.items() if name[0] != "_" or name == "return"}


def _only_for_types(module: types.ModuleType) -> dict[str, object]:
    """What a module imports for type checkers alone."""
    names: dict[str, object] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), module.__name__, "exec"), names)  # noqa: S102  # our own
    return names


def untyped(face: types.ModuleType) -> list[str]:
    wrong = []
    for name in face.__all__:
        if _says_any(getattr(face, name)):
            wrong.append(name)
        for where, value in _callables(name, getattr(face, name)):
            hints = _hints(value)
            wrong += [f"{where}: {part}" for part, hint in hints.items() if _says_any(hint)]
            if isinstance(value, types.FunctionType):
                wanted = set(inspect.signature(value).parameters) - UNTYPED | {"return"}
                wrong += [f"{where}: {part} has no type" for part in wanted - hints.keys() if part[0] != "_"]
    return sorted(set(wrong))


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_no_public_signature_says_any(face: types.ModuleType) -> None:
    assert untyped(face) == []


EXAMPLE = """
from typing import Any

class Example:
    field: dict[str, Any]

    def method(self, value: list[tuple[int, Any]]) -> None: ...
    def bare(self, value) -> None: ...
    def good(self, value: int) -> None: ...
    def _private(self, value: Any) -> Any: ...

def function(*values: int) -> Any: ...
"""


def test_any_is_found_wherever_it_hides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blindpost_example.py").write_text(EXAMPLE + "__all__ = ['Example', 'function']\n")
    monkeypatch.syspath_prepend(tmp_path)
    face = importlib.import_module("blindpost_example")
    assert untyped(face) == [
        "Example.bare: value has no type",
        "Example.method: value",
        "Example: field",
        "function: return",
    ]
