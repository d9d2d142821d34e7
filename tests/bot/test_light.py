"""The agent is light: it imports nothing heavy, and runs with only the base package installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDING = Path(__file__).parents[1] / "support" / "agent" / "hidden"
HEAVY = {
    *("asyncpg", "datasketches", "h11", "h2", "lmdb", "numpy", "qh3", "starlette", "uvicorn"),
    *("cffi.cparser", "multiprocessing", "prompt_toolkit", "pycparser", "pydantic", "rich", "segno", "typer"),
    *(f"blindpost.{room}" for room in ("cli", "ds", "ntf", "router", "testing", "web")),
}
MODULES_MAX = 600
"""Of which about 260 are ours; an import takes less than half a second."""


def python(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, timeout=100
    )


@pytest.mark.parametrize("face", ["blindpost.agent", "blindpost.bot", "blindpost.chat"])
def test_an_import_loads_nothing_heavy(face: str) -> None:
    done = python("-c", f"import sys, {face}; print(*sys.modules)")
    modules = set(done.stdout.split())
    assert face in modules
    assert not HEAVY & modules
    assert len(modules) <= MODULES_MAX


def test_a_command_without_its_extra_says_what_to_install(tmp_path: Path) -> None:
    def told(*words: str) -> subprocess.CompletedProcess[str]:
        return python("-m", "blindpost.cli", *words, PYTHONPATH=str(HIDING))

    listed = told("--help")
    assert listed.returncode == 0
    assert "Not installed" in listed.stdout
    assert told("chat", "--help").returncode == 0
    for command, words, extra in (
        ("router", ("init", str(tmp_path / "router")), "router"),
        ("ds", ("--help",), "ds"),
        ("ntf", ("init", str(tmp_path / "ntf")), "ntf"),
    ):
        done = told(command, *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"`blindpost {command}` needs the package" in done.stderr
        assert f'pip install "blindpost[{extra}]"' in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
