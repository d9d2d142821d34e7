"""The public faces: programs may import what `__all__` lists, and our own examples import nothing else."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import blindpost

PROJECT = Path(blindpost.__file__).parent.parent.parent
FACES = ("blindpost.agent", "blindpost.client", "blindpost.testing")


@pytest.mark.parametrize("face", FACES)
def test_a_face_lists_what_it_exports(face: str) -> None:
    module = importlib.import_module(face)
    assert module.__doc__
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_main_classes_can_be_imported_from_the_faces() -> None:
    from blindpost.agent import Agent, Connected
    from blindpost.client import Call, RefusedError, SmpClient
    from blindpost.testing import ApnsServer, Clock, Network

    found = (Agent, Connected, Call, RefusedError, SmpClient, ApnsServer, Clock, Network)
    assert all(isinstance(one, type) for one in found)


def private_imports(source: str) -> list[str]:
    """Modules below a face that a program imports."""
    return [
        node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module is not None
        if any(node.module.startswith(f"{face}.") for face in FACES)
    ]


def test_private_imports_are_found() -> None:
    assert private_imports("from blindpost.client.smp import SmpClient") == ["blindpost.client.smp"]
    assert private_imports("from blindpost.client import SmpClient") == []


def test_examples_and_documents_use_the_faces() -> None:
    sources = {str(path): path.read_text() for path in (PROJECT / "examples").rglob("*.py")}
    for document in (PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")):
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)):
            sources[f"{document.name}, block {number}"] = code
    assert sources
    wrong = {name: found for name, source in sources.items() if (found := private_imports(source))}
    assert wrong == {}
