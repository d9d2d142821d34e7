"""A test that takes longer than its limit fails, wherever it is when the limit strikes."""

from __future__ import annotations

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

{marker}
def test_a(): asyncio.run(main())

def test_b(): pass
"""


@pytest.mark.parametrize(
    ("marker", "settings"), [("@pytest.mark.timeout(0.2)", ""), ("", "timeout = 0.2")], ids=["own", "common"]
)
def test_a_task_that_stands_still(tmp_path: Path, marker: str, settings: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "claims.md").write_text("")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{settings}\n")
    (tmp_path / "test_it.py").write_text(TEST.format(marker=marker))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "test_a: took 0 s, and its limit is 0 s" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
