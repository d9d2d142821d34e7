"""The page of invariants names code and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import blindpost

PROJECT = Path(blindpost.__file__).parent.parent.parent
PAGE = PROJECT / "SECURITY.md"


def test_every_invariant_names_code_and_a_test_that_exist() -> None:
    text = PAGE.read_text()
    table = text.split("## Invariants")[1].split("\n## ")[0]
    rows = [line.split("|")[1:5] for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    for invariant, code, shown, broken in rows:
        named = re.findall(r"`((?:src|tests)/[^`]+|requirements\.lock)`", code + shown)
        assert all((PROJECT / path).exists() for path in named), (invariant, named)
        assert any(path.startswith("tests/") for path in named), invariant
        assert broken.strip(), invariant


def test_every_path_on_the_page_exists() -> None:
    paths = re.findall(r"`((?:src|tests|fuzz|docs)/[^`]*)`", PAGE.read_text())
    assert [path for path in paths if not (PROJECT / path).exists()] == []
