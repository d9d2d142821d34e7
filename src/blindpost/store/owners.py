"""Who owns what root makes in a server's folder: the server, which must be able to use it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_PRIVATE = 0o600


def give(descriptor: int, like: os.stat_result) -> None:
    """Let a file that root has just made belong to the owner of another; what others make stays theirs."""
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):  # a root without that right, as in a container
            os.fchown(descriptor, like.st_uid, like.st_gid)


def open_file(path: Path) -> int:
    """Open a file to read and write; a missing one is made, and belongs to the owner of its folder.

    One that is there stays whose it is: it may be a link to a file of somebody else.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _PRIVATE)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_CREAT, _PRIVATE)
    give(descriptor, path.parent.stat())
    return descriptor
