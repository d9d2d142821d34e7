"""Disks of a chosen size, for what happens when they are full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Callable[[int], None]]:
    """A file system of its own in this folder, and how to change its size."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(
            "NOT RUN: a full disk needs the right to mount one; only the limit of file size was tried"
        )

    def resize(size: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)

    try:
        yield resize
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Leave no room at all."""
    left = os.statvfs(disk)
    (disk / "rest").write_bytes(bytes(left.f_bavail * left.f_frsize))
