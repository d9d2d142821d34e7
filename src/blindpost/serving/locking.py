"""One process at a time in a server's folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from blindpost.serving.failures import OperatorError
from blindpost.serving.files import telling
from blindpost.store.file_locks import take
from blindpost.store.owners import open_file


class RunningError(OperatorError):
    """A server runs in this folder."""


@contextlib.contextmanager
def locked(lock: Path, running: str) -> Iterator[None]:
    """Lock a folder; `running` is the message if somebody else holds it."""
    with telling(lock):
        descriptor = open_file(lock)
    try:
        if not take(descriptor):
            raise RunningError(f"{lock.parent}: {running}")
        yield
    finally:
        os.close(descriptor)
