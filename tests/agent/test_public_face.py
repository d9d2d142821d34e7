"""Programs import the agent from one module; what it does not export may move. Inside, no import cycles."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import blindpost
from blindpost import agent
from blindpost.agent.errors import CommandCode, ConnectionCode, ProtocolCode

SOURCE = Path(blindpost.__file__).parent
ROOT = SOURCE.parent.parent
FILLS_A_STORE = "demo/scenes/service.py"
"""Writes ten thousand queues straight into a store, which no program should do."""


def _private(text: str) -> list[str]:
    return [
        node.module
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("blindpost.agent.")
    ]


def test_every_exported_name_exists() -> None:
    assert sorted(set(agent.__all__)) == list(agent.__all__)
    for name in agent.__all__:
        assert hasattr(agent, name), name


def test_all_events_and_errors_are_exported() -> None:
    for base in (agent.Event, agent.AgentError):
        below, found = [base], set()
        while below:
            found.add(below.pop())
            below = [kind for one in found for kind in one.__subclasses__() if kind not in found]
        assert {kind.__name__ for kind in found if kind.__name__[0] != "_"} <= set(agent.__all__)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        *((agent.CommandError, code) for code in CommandCode),
        *((agent.ConnError, code) for code in ConnectionCode),
        *((agent.ProtocolError, code) for code in ProtocolCode),
    ],
)
def test_an_error_without_a_message_has_a_sentence(kind: Any, code: Any) -> None:
    said = str(kind(code))
    assert re.fullmatch(rf"[A-Z]+ {code.value}: [a-z].{{15,}}", said)
    assert str(kind(code, "more is known")).endswith(": more is known")


def test_other_rooms_and_examples_use_the_public_face() -> None:
    files = [path for path in SOURCE.rglob("*.py") if not path.is_relative_to(SOURCE / "agent")]
    files += (ROOT / "examples").glob("*.py")
    wrong = {str(path): _private(path.read_text()) for path in files if not str(path).endswith(FILLS_A_STORE)}
    assert {path: modules for path, modules in wrong.items() if modules} == {}


def test_documents_use_the_public_face() -> None:
    for path in (*(ROOT / "docs").glob("*.md"), ROOT / "README.md"):
        assert re.findall(r"(?m)^\s*from blindpost\.agent\.\S+ import", path.read_text()) == [], path.name


def _imported(path: Path, modules: set[str]) -> set[str]:
    """Which of these a module imports, type-only imports included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & modules) or ({node.module} & modules)
    return found


def test_no_import_cycle() -> None:
    paths = {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path
        for path in (SOURCE / "agent").rglob("*.py")
        if path.name != "__init__.py"
    }
    left = {name: _imported(path, set(paths)) - {name} for name, path in paths.items()}
    while leaves := {name for name, imported in left.items() if not imported & left.keys()}:
        left = {name: imported for name, imported in left.items() if name not in leaves}
    assert left == {}
