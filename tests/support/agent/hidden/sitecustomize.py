"""Hides what only the package's extras bring, as if it was not installed; for programs started by tests."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

PROJECT = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]


def names(requirements: Sequence[str]) -> set[str]:
    """The modules of requirements; ours have the names of their packages."""
    found = {
        "".join(letter if letter.isalnum() else " " for letter in one).split()[0] for one in requirements
    }
    return found - {"blindpost"}


EXTRAS = [requirements for extra, requirements in PROJECT["optional-dependencies"].items() if extra != "dev"]
HIDDEN = set[str]().union(*map(names, EXTRAS)) - names(PROJECT["dependencies"])


class Hiding:
    """Finds nothing, and lets nobody else find it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


sys.meta_path.insert(0, Hiding())
