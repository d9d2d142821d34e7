"""Where an import is: the mark that is committed with each chunk, and the report of lines not taken."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from blindpost.store.owners import open_file

Progress = Callable[[str, int, int | None], None]
"""Called with the current step, how much of it is done, and the total if known."""

NAME = b"moving in"
_EDGE = 1 << 16


def untold(part: str, done: int, total: int | None) -> None:
    """Report no progress."""


@dataclass(slots=True)
class Mark:
    """How far an import has come."""

    source: str
    """Which import this is; another one must not resume from here."""
    expire_before: int | None
    notifications_before: int
    phase: int = 0
    offset: int = 0
    lines: int = 0
    folder: str = ""
    after_marker: str = ""
    report_bytes: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    checked: bool = False
    """Everything is imported, and the certificates were equal."""

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, content: bytes) -> Mark:
        return cls(**json.loads(content))


def is_unfinished(mark: bytes | None) -> bool:
    """Whether an import was begun and has not been shown to be complete."""
    return mark is not None and not Mark.decoded(mark).checked


def identity_of(paths: Iterable[Path]) -> str:
    """Identifies a source: the sizes of files and how they begin and end, or a folder's name."""
    hashed = hashlib.sha256()
    for path in paths:
        if path.is_dir():
            hashed.update(b"folder " + path.name.encode())
            continue
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            hashed.update(f"file {size} ".encode() + file.read(_EDGE))
            file.seek(max(0, size - _EDGE))
            hashed.update(file.read(_EDGE))
    return hashed.hexdigest()


class Report:
    """Every line that was not taken, with the reason; what it said is not repeated."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        self.path = path
        self._descriptor = open_file(path)
        os.ftruncate(self._descriptor, keep_bytes)
        self._size = keep_bytes
        self._pending: list[str] = []
        self.reasons: Counter[str] = Counter()

    def add(self, file: str, line: int, reason: str) -> None:
        place = f"{file}, line {line}" if line else file
        self._pending.append(f"{place}: {reason}\n")
        self.reasons[reason] += 1

    def sync(self) -> int:
        """Make what was added durable; the size of the file."""
        if self._pending:
            content = "".join(self._pending).encode()
            os.pwrite(self._descriptor, content, self._size)
            os.fsync(self._descriptor)
            self._size += len(content)
            self._pending.clear()
        return self._size

    def close(self) -> None:
        os.close(self._descriptor)
