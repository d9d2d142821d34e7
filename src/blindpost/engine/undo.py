"""Memory that can be rolled back.

Decisions change memory at once, so that the commands of one batch see each other. Each change leaves
its inverse in an `Undo`; a command that fails is rolled back to its mark, and a batch whose commit
fails is rolled back completely.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Undo:
    """The inverses of the changes made since the last `forget`, in order.

    Each is a tuple of a function and its arguments, handed to `add`: a closure takes three times as long to
    make, and so does a method that collects arguments.
    """

    __slots__ = ("_steps", "add")

    def __init__(self) -> None:
        self._steps: list[tuple[Any, ...]] = []
        self.add: Callable[[tuple[Any, ...]], None] = self._steps.append

    def __len__(self) -> int:
        return len(self._steps)

    def mark(self) -> int:
        return len(self._steps)

    def rollback(self, mark: int = 0) -> None:
        """Take back everything since `mark`, newest first."""
        steps = self._steps
        while len(steps) > mark:
            inverse, *arguments = steps.pop()
            inverse(*arguments)

    def forget(self, mark: int = 0) -> None:
        """The changes since `mark` are durable: they can no longer be rolled back."""
        del self._steps[mark:]


class Table(Generic[K, V]):
    """A dict whose changes can be rolled back."""

    __slots__ = ("_add_undo", "_rows", "fill", "get")

    def __init__(self, undo: Undo) -> None:
        self._rows: dict[K, V] = {}
        self._add_undo = undo.add
        self.get: Callable[[K], V | None] = self._rows.get
        self.fill: Callable[[K, V], None] = self._rows.__setitem__
        """Set a row that was merely loaded: there is nothing to roll back."""

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: K) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[K]:
        return iter(self._rows)

    def first(self, count: int) -> tuple[K, ...]:
        """The keys of up to `count` rows, those put first."""
        return tuple(itertools.islice(self._rows, count))

    def items(self) -> Iterator[tuple[K, V]]:
        return iter(self._rows.items())

    def empty(self) -> None:
        """Forget all rows; this cannot be rolled back."""
        self._rows.clear()

    def put(self, key: K, value: V) -> V | None:
        """Set a row; returns the one it replaces."""
        rows = self._rows
        before = rows.get(key)
        rows[key] = value
        self._add_undo((rows.pop, key, None) if before is None else (self.fill, key, before))
        return before

    def pop(self, key: K) -> V | None:
        """Remove a row, if it is there, and return it."""
        before = self._rows.pop(key, None)
        if before is not None:
            self._add_undo((self.fill, key, before))
        return before
