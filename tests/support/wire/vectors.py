"""The golden vectors in `tests/vectors`: each file says where its numbers come from or what they show."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[2] / "vectors"


@functools.cache
def vector_file(name: str) -> dict[str, Any]:
    """One file of vectors or one transcript, whole, by its path below `tests/vectors`."""
    loaded: dict[str, Any] = json.loads((VECTORS / name).read_text())
    assert loaded.get("source") or loaded.get("description"), f"{name} does not say where it comes from"
    return loaded


def vectors(name: str, kind: str | None = None) -> list[dict[str, Any]]:
    """The entries of one file, all or those of one kind."""
    entries: list[dict[str, Any]] = vector_file(name)["vectors"]
    return entries if kind is None else [entry for entry in entries if entry.get("kind") == kind]


def named(entry: dict[str, Any]) -> str:
    """A vector's name, for `ids=` of a parametrized test."""
    return str(entry["name"])
