"""From counters that only grow to rates: how much in the last minute, and in each of the last sixty."""

from __future__ import annotations

from collections import deque

MINUTES = 60


class Counted:
    """One counter of one server. A counter that went back means a new process: start over."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        self._minutes: deque[float] = deque(maxlen=MINUTES)
        self._minute: int | None = None
        self._grown = 0.0

    def sample(self, at_s: float, value: float) -> None:
        last = self._samples[-1][1] if self._samples else value
        if value < last:
            self._samples.clear()
            last = value
        self._advance(int(at_s // 60))
        self._grown += value - last
        self._samples.append((at_s, value))
        while self._samples[0][0] < at_s - 60:
            self._samples.popleft()

    def _advance(self, minute: int) -> None:
        if self._minute is None:
            self._minute = minute
        for _ in range(min(minute - self._minute, MINUTES)):
            self._minutes.append(self._grown)
            self._grown = 0.0
        self._minute = max(minute, self._minute)

    @property
    def per_minute(self) -> float:
        """How much it grew over what was seen of the last minute."""
        return self._samples[-1][1] - self._samples[0][1] if self._samples else 0.0

    @property
    def minutes(self) -> tuple[float, ...]:
        """Growth in each whole minute that has passed."""
        return tuple(self._minutes)
