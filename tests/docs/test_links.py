"""Links between pages resolve, and files that a page names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.docs.documents import ROOT, documents

PAGES = [*documents(), ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md"]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE = re.compile(r"`((?:src|tests|docs|deploy|examples|benchmarks)/[\w./*-]*)`")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """As GitHub derives them from headings."""
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(text)}


def broken(page: Path, text: str) -> list[str]:
    """Links that lead nowhere."""
    found = []
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place) if place else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found + [name for name in _FILE.findall(text) if not list(ROOT.glob(name))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_link_is_broken(page: Path) -> None:
    assert broken(page, page.read_text()) == []


def test_broken_links_are_found() -> None:
    page = ROOT / "docs" / "page.md"
    text = "[a](nowhere.md) [b](router.md#no-such-heading) [c](router.md) `src/nothing.py` `src/blindpost`"
    assert broken(page, text) == ["nowhere.md", "router.md#no-such-heading", "src/nothing.py"]
