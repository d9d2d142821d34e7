"""Source modules may import each other in pairs, never in longer cycles."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import blindpost

SOURCE = Path(blindpost.__file__).parent
CIRCLE_MAX = 2


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    return {name_of(path): path for path in SOURCE.rglob("*.py")}


def imported(path: Path, known: Mapping[str, object]) -> Iterator[str]:
    """Our modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module in known:
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                yield inside if inside in known else node.module


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Sets of modules in which each can be reached from every other."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            for other in graph[waiting.pop()] - found:
                found.add(other)
                waiting.append(other)
        reached[start] = found
    sets = {frozenset(one for one in found if start in reached[one]) for start, found in reached.items()}
    return [set(one) for one in sets if one]


def test_import_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert sorted(map(sorted, circles(graph))) == [["a", "b", "c"], ["d", "e"]]


def test_no_import_cycle_has_more_than_two_modules() -> None:
    known = modules()
    graph = {name: set(imported(path, known)) - {name} for name, path in known.items()}
    assert [sorted(circle) for circle in circles(graph) if len(circle) > CIRCLE_MAX] == []
