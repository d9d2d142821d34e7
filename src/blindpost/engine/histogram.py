"""Counts of how long something took, in buckets with fixed upper bounds."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

LATENCY_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """`counts` has one element more than `bounds`, for values above all of them."""

    __slots__ = ("bounds", "counts", "maximum", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self.maximum = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value
        self.maximum = max(self.maximum, value)

    def forget(self, value: float) -> None:
        """Take one observation back; the maximum stays."""
        self.counts[bisect.bisect_left(self.bounds, value)] -= 1
        self.total -= value

    def cumulative(self) -> list[tuple[float, int]]:
        """For each bound, how many observations are not above it."""
        found, below = [], 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            below += count
            found.append((bound, below))
        return found
