"""One process at a time in a server's folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from blindpost.serving.failures import OperatorError
from blindpost.serving.files import telling


class RunningError(OperatorError):
    """A server runs in this folder."""


@contextlib.contextmanager
def locked(lock: Path, running: str) -> Iterator[None]:
    """Lock a folder; `running` is the message if somebody else holds it."""
    with telling(lock):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunningError(f"{lock.parent}: {running}") from error
        yield
    finally:
        os.close(descriptor)


def is_held(lock: Path) -> bool:
    """Whether a process has locked a folder; it is neither locked nor written to for that."""
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
