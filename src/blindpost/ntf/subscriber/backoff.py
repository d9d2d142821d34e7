"""Pauses between attempts: they grow, and are jittered so that clients do not retry together."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Each pause is longer than the one before, up to the longest; all are jittered."""

    first_s: float = 1.0
    factor: float = 1.5
    max_s: float = 60.0
    jitter: float = 0.5
    """The jitter, as a fraction of the pause."""

    def pause_s(self, failures: int, chance: Random) -> float:
        """The pause after that many failures in a row, at least one."""
        # The exponent is bounded so that a long outage does not overflow.
        length = min(self.max_s, self.first_s * self.factor ** min(failures - 1, 64))
        return length * chance.uniform(1 - self.jitter, 1 + self.jitter)
