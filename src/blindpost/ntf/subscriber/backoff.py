"""Pauses between attempts: they grow, and no two clients make the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """From the first pause on each is longer than the one before it, up to the longest; all are jittered."""

    first_s: float = 1.0
    factor: float = 1.5
    max_s: float = 60.0
    jitter: float = 0.5
    """How far a pause may be from its length, as a share of it."""

    def pause_s(self, failures: int, chance: Random) -> float:
        """The pause after that many failures in a row, at least one."""
        # The exponent is bounded so that a long outage does not overflow.
        length = min(self.max_s, self.first_s * self.factor ** min(failures - 1, 64))
        return length * chance.uniform(1 - self.jitter, 1 + self.jitter)
