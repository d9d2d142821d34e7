"""Files that are replaced whole or not at all, and that only their owner may read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from blindpost.serving.failures import about_file
from blindpost.store.file_locks import alone_in
from blindpost.store.owners import give

PRIVATE = 0o600
PRIVATE_FOLDER = 0o700
PUBLIC = 0o644
_NEW, _OLD = ".new", ".old"
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading a file of ours may raise if somebody, or its disk, has changed it."""


def write_file(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Replace whatever is at `path` by `content`; after a crash the old or the new file is there.

    Of several processes that do so at once the last one wins. What root writes belongs to the owner of what
    it replaces, or else of the folder.
    """
    with telling(path), alone_in(path.parent):
        _fresh(path, content, mode).replace(path)
        sync_folder(path.parent)


def write_pair(first: Path, first_content: bytes, second: Path, second_content: bytes, mode: int) -> None:
    """Replace two private files that belong together, the second with another mode; if that fails, neither.

    Nobody else writes to their folders meanwhile. Only a power loss between the two can part them.
    """
    with contextlib.ExitStack() as stack:
        for folder in sorted({first.parent, second.parent}):
            stack.enter_context(telling(folder))
            stack.enter_context(alone_in(folder))
        for path, suffix in ((first, _OLD), (first, _NEW), (second, _NEW)):
            stack.callback(path.with_name(f".{path.name}{suffix}").unlink, missing_ok=True)
        with telling(first):
            before = _fresh(first, first.read_bytes(), PRIVATE, _OLD) if first.exists() else None
            fresh = _fresh(first, first_content, PRIVATE)
        with telling(second):
            last = _fresh(second, second_content, mode)
            fresh.replace(first)
            try:
                last.replace(second)
            except BaseException:
                first.unlink() if before is None else before.replace(first)
                raise
        for folder in {first.parent, second.parent}:
            sync_folder(folder)


def _fresh(path: Path, content: bytes, mode: int, suffix: str = _NEW) -> Path:
    """What is to be at `path`, durable under another name; the caller is alone in its folder."""
    fresh = path.with_name(f".{path.name}{suffix}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        give(descriptor, (path if os.path.lexists(path) else path.parent).lstat())
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    return fresh


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(path: Path) -> bytes:
    with telling(path):
        return path.read_bytes()


def readable_by_others(path: Path) -> bool:
    """Whether others than the owner can read an existing file, whose folder may be open."""
    try:
        return bool(path.stat().st_mode & 0o077)
    except OSError:
        return False


def make_folder(path: Path) -> None:
    """Make a private folder, with those above it."""
    with telling(path):
        path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)


def set_aside(path: Path) -> Path:
    """Move an unreadable file out of the way; returns where it is now."""
    aside = path.with_suffix(".unreadable")
    with telling(path):
        path.replace(aside)
    return aside


@contextlib.contextmanager
def telling(path: Path) -> Iterator[None]:
    """Failures of the system become messages about `path`."""
    try:
        yield
    except OSError as error:
        raise about_file(error, path) from error
