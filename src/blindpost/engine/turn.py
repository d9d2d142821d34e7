"""What every turn has: it collects the effects of its decisions, and all of them can be rolled back."""

from __future__ import annotations

from enum import Enum
from typing import Generic, TypeVar

from blindpost.engine.histogram import Histogram
from blindpost.engine.meters import Meters
from blindpost.engine.undo import Undo

M = TypeVar("M", bound=Enum)
T = TypeVar("T")


class Turn(Generic[M]):
    """One batch, as its decisions see it; each server adds what its own decisions share."""

    def __init__(self, undo: Undo, meters: Meters[M]) -> None:
        self._add_undo = undo.add
        self._add_count = meters.add

    def append(self, items: list[T], item: T) -> None:
        """Collect something to send or do once the batch is committed."""
        items.append(item)
        self._add_undo((items.pop,))

    def count(self, meter: M, by: int = 1) -> None:
        """Count an event; discarded if the batch is undone."""
        add = self._add_count
        add(meter, by)
        self._add_undo((add, meter, -by))

    def observe(self, histogram: Histogram, value: float) -> None:
        """Record a duration; discarded if the batch is undone."""
        histogram.observe(value)
        self._add_undo((histogram.forget, value))
