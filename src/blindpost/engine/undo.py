"""Memory that can be taken back.

Decisions change memory at once, so that the commands of one batch see each other. Each change leaves
its inverse in an `Undo`; a command that fails is rolled back to its mark, and a batch whose commit
fails is rolled back whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Undo:
    """The inverses of the changes made since the last `forget`, in order."""

    __slots__ = ("_inverses",)

    def __init__(self) -> None:
        self._inverses: list[Callable[[], object]] = []

    def __len__(self) -> int:
        return len(self._inverses)

    def add(self, inverse: Callable[[], object]) -> None:
        self._inverses.append(inverse)

    def mark(self) -> int:
        return len(self._inverses)

    def rollback(self, mark: int = 0) -> None:
        """Take back everything since `mark`, newest first."""
        inverses = self._inverses
        while len(inverses) > mark:
            inverses.pop()()

    def forget(self) -> None:
        """The changes are durable: nothing before this can be taken back any more."""
        self._inverses.clear()


class Table(Generic[K, V]):
    """A dict whose changes can be taken back."""

    __slots__ = ("_rows", "_undo")

    def __init__(self, undo: Undo) -> None:
        self._rows: dict[K, V] = {}
        self._undo = undo

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: K) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[K]:
        return iter(self._rows)

    def get(self, key: K) -> V | None:
        return self._rows.get(key)

    def first(self, count: int) -> tuple[K, ...]:
        """The keys of up to `count` rows, those put first."""
        return tuple(itertools.islice(self._rows, count))

    def items(self) -> Iterator[tuple[K, V]]:
        return iter(self._rows.items())

    def fill(self, key: K, value: V) -> None:
        """Set a row that was merely loaded: there is nothing to take back."""
        self._rows[key] = value

    def put(self, key: K, value: V) -> V | None:
        """Set a row; returns the one it replaces."""
        rows = self._rows
        before = rows.get(key)
        rows[key] = value
        if before is None:
            self._undo.add(lambda: rows.pop(key, None))
        else:
            self._undo.add(lambda: rows.__setitem__(key, before))
        return before

    def pop(self, key: K) -> V | None:
        """Remove a row, if it is there, and return it."""
        rows = self._rows
        before = rows.pop(key, None)
        if before is not None:
            self._undo.add(lambda: rows.__setitem__(key, before))
        return before
