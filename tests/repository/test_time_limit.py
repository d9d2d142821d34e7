"""A test that takes longer than its limit fails, wherever it is when the limit strikes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent.parent / "conftest.py"
TEST = """
import asyncio, time, pytest

async def spin():
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        pass

async def main():
    asyncio.create_task(spin())
    await asyncio.sleep(0)

@pytest.fixture
def slow(): time.sleep(0.5)

{marker}
def test_a(slow): asyncio.run(main())

def test_b(): pass
"""


def tried(folder: Path, test: str, settings: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "claims.md").write_text("")
    (folder / "pytest.ini").write_text(f"[pytest]\n{settings}\n")
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_TIMEOUT"}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, env=environment)


@pytest.mark.parametrize(
    ("marker", "settings", "options"),
    [
        ("@pytest.mark.timeout(2)", "", ()),
        ("", "timeout = 2", ()),
        ("", "timeout = 60", ("--timeout=2",)),
    ],
    ids=["own", "common", "of the command"],
)
def test_a_task_that_stands_still(
    tmp_path: Path, marker: str, settings: str, options: tuple[str, ...]
) -> None:
    done = tried(tmp_path, TEST.format(marker=marker), settings, *options)
    assert done.returncode == 1
    assert re.search(r"test_a: took \d+ s, and its limit is 2 s", done.stdout), done.stdout
    assert "1 failed, 1 passed in " in done.stdout


@pytest.mark.parametrize("options", [("-o", "timeout=0"), ("--timeout=0",)], ids=["settings", "command"])
def test_no_limit(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = tried(tmp_path, "def test_a(): pass", "timeout = 0.000001", *options)
    assert "1 passed" in done.stdout, done.stdout
