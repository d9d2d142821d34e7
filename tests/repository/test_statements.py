"""Early releases of Python 3.12 warn when a numbered value of a statement (`?1`) comes from a tuple."""

from __future__ import annotations

import ast
import re

from tests.support.docs.documents import ROOT

SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|FROM|WHERE|AND|VALUES|LIMIT)\b")
NUMBERED = re.compile(r"\?[0-9]")


def numbered(source: str) -> list[str]:
    """The SQL statements of a module that number their values."""
    texts = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [text for text in texts if SQL.search(text) and NUMBERED.search(text)]


def test_statements_do_not_number_their_values() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "simulation").rglob("*.py")]
    assert sources
    assert [text for path in sources for text in numbered(path.read_text())] == []


def test_a_numbered_value_is_found() -> None:
    assert numbered('query = "SELECT a FROM b WHERE c = ?1"\nhelp = "Really, 1 or ?2"\n') == [
        "SELECT a FROM b WHERE c = ?1"
    ]
