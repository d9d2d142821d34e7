"""The package as it would be uploaded."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.docs.documents import ROOT
from tests.support.docs.executed import Place, commands_at
from tests.support.docs.typing_reader import Reader


def copy_sources(folder: Path) -> None:
    """All that a package is made of, so that nothing is left in the sources."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)


def build_wheel(folder: Path) -> Path:
    """With the command that the documents name for it."""
    folder.mkdir()
    copy_sources(folder)
    (line,) = {c.text for c in commands_at(Place.ON_A_CLUSTER) if c.text.startswith("pip wheel ")}
    with Reader(folder) as reader:
        reader.type(line)
    (built,) = folder.glob("*.whl")
    return built
