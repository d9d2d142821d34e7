"""One process at a time in a server's folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from blindpost.serving.failures import OperatorError
from blindpost.serving.files import telling

_PAUSES_S = (0.01, 0.05, 0.2)


class RunningError(OperatorError):
    """A server runs in this folder."""


@contextlib.contextmanager
def locked(lock: Path, running: str) -> Iterator[None]:
    """Lock a folder; `running` is the message if somebody else holds it."""
    with telling(lock):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _taken(descriptor):
            raise RunningError(f"{lock.parent}: {running}")
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    """Try more than once: somebody may just be looking whether the folder is locked."""
    for pause_s in (*_PAUSES_S, None):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if pause_s is not None:
                time.sleep(pause_s)
        else:
            return True
    return False


def is_held(lock: Path) -> bool:
    """Whether a process has locked a folder, which is not written to for that."""
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
