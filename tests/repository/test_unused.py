"""Nothing in the source exists only for tests: every definition is used by a program, or is listed here."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import blindpost

SOURCE = Path(blindpost.__file__).parent
PROJECT = SOURCE.parent.parent
PLAIN = {"property", "classmethod", "staticmethod", "abstractmethod", "override", "cached_property", "cache"}
PLAIN |= {"contextmanager", "asynccontextmanager", "dataclass", "runtime_checkable", "final", "lru_cache"}
"""Decorators that call nothing by themselves; others register what they decorate."""

FACES = ("agent", "bot", "chat", "client", "ds", "testing")
"""Rooms with a public face: what is in its `__all__`, and public methods of it, is for others."""

CALLED_BY_LIBRARIES = {
    "ds/quic.py: quic_event_received": "qh3",
    "ds/quic.py: _connection_terminated": "qh3",
    "ds/retry_tokens.py: create_token": "qh3",
    "ds/retry_tokens.py: validate_token": "qh3",
    "ds/streams.py: _fatal_error": "asyncio, when TLS fails",
    "ops/listening.py: startup": "uvicorn",
    "ops/listening.py: capture_signals": "uvicorn",
    "ops/listening.py: handle_events": "uvicorn",
    "ops/listening.py: on_response_complete": "uvicorn",
    "testing/clock.py: unregister": "asyncio's loop, of its selector",
    "testing/clock.py: get_map": "asyncio's loop, of its selector",
    "web/doorman.py: is_reading": "asyncio, of a transport",
    "web/doorman.py: get_write_buffer_limits": "asyncio, of a transport",
    "web/doorman.py: can_write_eof": "asyncio, of a transport",
}
UNUSED = {
    "crypto/sodium.py: DECLARATIONS": "the source of `sodium_abi.py`, which a test makes again",
    "wire/links/short.py: read_short_link": "the other half of `write_short_link`; vectors check both",
    "agent/messages/delivery.py: is_working": "tests wait until a worker is idle",
    "agent/subscriptions/table.py: pending_count": "the other half of `active_count`",
    "agent/subscriptions/work.py: is_working": "tests wait until a worker is idle",
}
"""Definitions that no program of ours uses, and why they are there."""
EXCEPTIONS = CALLED_BY_LIBRARIES | UNUSED


def decorated(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a decorator makes use of a definition."""
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name not in PLAIN and name != "setter":
            return True
    return False


def definitions(tree: ast.Module, public: frozenset[str]) -> Iterator[tuple[str, ast.AST]]:
    """Functions, classes, methods and constants of a module, without those of the public faces."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not decorated(node):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) or decorated(inner):
                    continue
                if node.name not in public or inner.name.startswith("_"):
                    yield inner.name, inner
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield target.id, node


def uses(tree: ast.AST) -> Iterator[str]:
    """Names that a program mentions, other than to define or to import them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.MatchClass):
            yield from node.kwd_attrs
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\w+", node.value) if len(node.value) < 200 else ()


def own_uses(node: ast.AST, name: str) -> int:
    """How often a definition mentions itself."""
    return sum(used == name for used in uses(node))


def unused(sources: dict[str, str], programs: list[str], public: frozenset[str] = frozenset()) -> list[str]:
    trees = {path: ast.parse(text) for path, text in sources.items()}
    counts: dict[str, int] = {}
    for tree in (*trees.values(), *map(ast.parse, programs)):
        for name in uses(tree):
            counts[name] = counts.get(name, 0) + 1
    return [
        f"{path}: {name}"
        for path, tree in trees.items()
        for name, node in definitions(tree, public)
        if name not in public and not (name.startswith("__") and name.endswith("__"))
        if counts.get(name, 0) <= own_uses(node, name)
    ]


def test_definitions_used_only_by_tests_are_found() -> None:
    source = """
def used(): ...
def recursive(): recursive()
class Kept:
    def called(self): ...
    def forgotten(self): ...
    @app.command
    def registered(self): ...
LIMIT = 3
"""
    found = unused({"one.py": source}, ["used(); Kept().called()"])
    assert found == ["one.py: recursive", "one.py: forgotten", "one.py: LIMIT"]
    assert unused({"one.py": source}, ["used()"], frozenset({"Kept"})) == [
        "one.py: recursive",
        "one.py: LIMIT",
    ]


def test_nothing_in_the_source_is_only_for_tests() -> None:
    sources = {str(path.relative_to(SOURCE)): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    programs = [
        path.read_text() for folder in ("benchmarks", "examples") for path in (PROJECT / folder).rglob("*.py")
    ]
    faces = (importlib.import_module(f"blindpost.{room}") for room in FACES)
    named = (getattr(face, name) for face in faces for name in getattr(face, "__all__", ()))
    parents = (kind for one in named if isinstance(one, type) for kind in one.__mro__)
    public = frozenset(kind.__name__ for kind in parents if kind.__module__.startswith("blindpost."))
    found = unused(sources, programs, public)
    assert [one for one in found if one not in EXCEPTIONS] == []
    assert [one for one in EXCEPTIONS if one not in found] == [], "an exception that nothing needs any more"
