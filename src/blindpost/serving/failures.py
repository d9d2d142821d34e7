"""Messages for operators when something fails: what happened, and what to do about it."""

from __future__ import annotations

import errno
import shlex
from pathlib import Path

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class OperatorError(Exception):
    """One message for a person; the program ends with exit code 1."""


def quoted(path: Path) -> str:
    """A path as a shell takes it, for commands that a person copies."""
    return shlex.quote(str(path))


def about_file(error: OSError, path: Path) -> OperatorError:
    """The message for a file or folder that could not be used."""
    if isinstance(error, PermissionError):
        return OperatorError(
            f"{path}: permission denied. Run this as the user who owns the server's folder, "
            "or change the owner of the file."
        )
    if isinstance(error, FileNotFoundError):
        return OperatorError(f"{path}: there is no such file or folder.")
    if error.errno in _NO_ROOM:
        return OperatorError(
            f"{path}: the disk is full ({error.strerror}). Make room, or use a folder on another disk, "
            "and try again."
        )
    return OperatorError(f"{path}: {error.strerror or error}.")
