"""How long to wait before the next attempt: the delay stays for a while, then grows by half up to a limit.

Times are whole microseconds, so that a schedule stored with a message continues exactly where it was.
"""

from __future__ import annotations

import random
from dataclasses import replace

from blindpost.wire.frozen import dataclass

SECOND_US = 1_000_000
TOLD_AGAIN_S = 3600.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Where delays start, for how long they stay so, and how far they grow."""

    initial_us: int
    increase_after_us: int
    max_us: int


RECONNECT = Schedule(2 * SECOND_US, 10 * SECOND_US, 180 * SECOND_US)
MESSAGE_FAST = Schedule(2 * SECOND_US, 10 * SECOND_US, 120 * SECOND_US)
"""For deliveries and commands."""
MESSAGE_SLOW = Schedule(300 * SECOND_US, 60 * SECOND_US, 6 * 3600 * SECOND_US)
"""While the peer's queue is full."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Which delay is next, and how much time has been waited in all."""

    schedule: Schedule
    delay_us: int
    elapsed_us: int = 0

    @classmethod
    def first(cls, schedule: Schedule) -> Retry:
        return cls(schedule, schedule.initial_us)

    @classmethod
    def resumed(cls, schedule: Schedule, delay_us: int) -> Retry:
        """After a restart: from the stored delay, growing at once."""
        return cls(replace(schedule, initial_us=delay_us, increase_after_us=0), delay_us)

    @property
    def delay_s(self) -> float:
        return self.delay_us / SECOND_US

    def jittered_s(self, chance: random.Random) -> float:
        """Between half of the delay and all of it, so that many clients do not come back at once."""
        return self.delay_s * chance.uniform(0.5, 1.0)

    def next(self) -> Retry:
        """After the delay was waited."""
        elapsed = self.elapsed_us + self.delay_us
        delay, top = self.delay_us, self.schedule.max_us
        if elapsed >= self.schedule.increase_after_us and delay != top:
            delay = min(delay * 3 // 2, top)
        return replace(self, delay_us=delay, elapsed_us=elapsed)


class Told:
    """What was reported about something that waits: the same is reported again after an hour."""

    def __init__(self) -> None:
        self._word, self._at = "", 0.0

    def is_news(self, word: str, now: float) -> bool:
        if word == self._word and now - self._at < TOLD_AGAIN_S:
            return False
        self._word, self._at = word, now
        return True
