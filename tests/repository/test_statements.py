"""SQL is written as every Python from 3.11 on takes it: 3.12.0 to 3.12.3 warn of each `?1` with a tuple."""

from __future__ import annotations

import ast
import re

from tests.support.docs.documents import ROOT

SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|FROM|WHERE|AND|VALUES|LIMIT)\b")
NUMBERED = re.compile(r"\?[0-9]")


def numbered(source: str) -> list[str]:
    """The texts of SQL in a module whose values have numbers."""
    texts = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [text for text in texts if SQL.search(text) and NUMBERED.search(text)]


def test_values_of_statements_have_no_numbers() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "simulation").rglob("*.py")]
    assert sources
    assert [text for path in sources for text in numbered(path.read_text())] == []


def test_they_would_be_found() -> None:
    assert numbered('query = "SELECT a FROM b WHERE c = ?1"\nhelp = "Really, 1 or ?2"\n') == [
        "SELECT a FROM b WHERE c = ?1"
    ]
