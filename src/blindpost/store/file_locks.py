"""Locks on files: one process at a time has a store or a server's folder, and others may look."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from blindpost.store.owners import open_file

_PAUSES_S = (0.01, 0.05, 0.2)


def take(descriptor: int) -> bool:
    """Lock an open file; False if somebody else has it. Somebody who just looks has it for a moment only."""
    for pause_s in (*_PAUSES_S, None):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if pause_s is not None:
                time.sleep(pause_s)
        else:
            return True
    return False


@contextlib.contextmanager
def in_turn(lock: Path) -> Iterator[None]:
    """Wait until nobody else is here, for as long as that takes."""
    descriptor = open_file(lock)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until nobody else is in a folder. On a disk that cannot lock folders (NFS) nobody waits."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_held(lock: Path) -> bool:
    """Whether a process has locked a file, which is not written to for that."""
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
