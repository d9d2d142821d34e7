"""Copies of a file by a separate process, so that neither the event loop nor our locks are affected."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

from blindpost.engine.loop import StoreFailedError


async def copy_beside(source: Path, target: Path) -> None:
    """Copy to a new file that only its owner may read, synced before this returns."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __spec__.name, str(source), str(target)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, told = await child.communicate()
    except asyncio.CancelledError:
        child.kill()
        await child.wait()
        raise
    if child.returncode:
        raise StoreFailedError(told.decode(errors="replace").strip().rpartition("\n")[2])


def copy(source: Path, target: Path) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with source.open("rb") as read, os.fdopen(descriptor, "wb") as write:
            shutil.copyfileobj(read, write, 1 << 20)
            write.flush()
            os.fsync(write.fileno())
    except BaseException:
        target.unlink()
        raise


if __name__ == "__main__":
    try:
        copy(*map(Path, sys.argv[1:]))
    except OSError as error:
        sys.exit(error.strerror or str(error))
