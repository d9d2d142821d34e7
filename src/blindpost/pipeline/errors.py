"""Failures of the pipeline that a person can fix."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_SAID = tuple(os.strerror(number) for number in _NO_ROOM)
"""The system's own words, which Java passes on."""


class PipelineError(Exception):
    """One message: what happened, and what to do."""


@contextlib.contextmanager
def full_disks_explained(place: str) -> Iterator[None]:
    """A full disk, under our own files or inside a Spark job, becomes one message."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        if not lacks_room(error):
            raise
        temporary = os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
        raise PipelineError(
            f"The disk is full. Make room for {place}, or for Spark's temporary files in {temporary}, and "
            "run this again. What was published before is still there, whole; the next run goes on from it."
        ) from error


@contextlib.contextmanager
def damage_explained(place: str) -> Iterator[None]:
    """A file of the lake that is not what we wrote, or that a later release wrote."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, OSError) as error:
        raise PipelineError(
            f"{place} cannot be read: it is damaged, or a later release wrote it ({error}). Put it back from "
            "a backup, or make the lake anew in another folder: what the journal still has comes back."
        ) from error


def lacks_room(error: BaseException) -> bool:
    """Whether a disk was full."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return True
    return any(words in str(error) for words in _SAID)
