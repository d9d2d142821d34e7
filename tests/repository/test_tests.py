"""Rules for the tests themselves."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent.parent


def imported_tests(source: str) -> list[str]:
    """Test modules that a file imports."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        found += [name for name in names if name.startswith("tests.") and name.split(".")[2:3]]
    return [name for name in found if name.split(".")[2].startswith("test_")]


def test_imports_of_tests_are_found() -> None:
    assert imported_tests("from tests.cli.test_audit import connected")
    assert imported_tests("from tests.cli import test_audit")
    assert not imported_tests("from tests.support.router.lines import Line")


def test_no_test_module_is_imported_by_another() -> None:
    wrong = {
        str(path.relative_to(TESTS)): found
        for path in TESTS.rglob("*.py")
        if path.parent.name != "repository" and (found := imported_tests(path.read_text()))
    }
    assert wrong == {}
