"""How often something happened lately, by account; in memory only."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from blindpost.engine.undo import Table, Undo
from blindpost.wire.value import Value

RateKey = tuple[str, Hashable]
"""What is counted, and for whom."""


@dataclass(frozen=True, slots=True, repr=False)
class Window(Value):
    """How often something happened since `start`, until `end`."""

    start: float
    end: float
    count: int

    def is_over(self, now: float) -> bool:
        """A clock that was ahead when it began may be right again: that must not count for as long."""
        return not self.start <= now < self.end


class Rates:
    """All counts."""

    def __init__(self, undo: Undo) -> None:
        self._windows: Table[RateKey, Window] = Table(undo)

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, asked: Sequence[tuple[RateKey, int]], window_s: float, now: float) -> bool:
        """Whether it may happen once more for all of these, each with its limit; if so, it is counted."""
        windows = [(key, limit, self._window(key, window_s, now)) for key, limit in asked]
        if any(window.count >= limit for _, limit, window in windows):
            return False
        for key, _, window in windows:
            self._windows.put(key, Window(window.start, window.end, window.count + 1))
        return True

    def _window(self, key: RateKey, window_s: float, now: float) -> Window:
        window = self._windows.get(key)
        return Window(now, now + window_s, 0) if window is None or window.is_over(now) else window

    def forget(self, now: float) -> None:
        """Drop counts that no longer limit anybody."""
        for key in [key for key, window in self._windows.items() if window.is_over(now)]:
            self._windows.pop(key)
