"""What to generate: the fleet, its days, and one source of randomness for each part.

Everything follows from the seed. Each part (a server, a day, a table) has its own generator, so that it comes
out the same whatever else is generated, and in whatever order.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np

from blindpost.journal.schema import DAYS_LAB

DAY_S, MINUTES = 86_400, 1_440
PROGRAM = "blindpost generator"


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of the fleet, how long it ran, and how busy it was; 1 is a large public router."""

    routers: int = 20
    days: int = 30
    scale: float = 1.0
    seed: int = 1
    first: date = date(2026, 1, 5)

    def rng(self, *labels: object) -> np.random.Generator:
        """The randomness of the part that these words name."""
        words = [zlib.crc32(str(label).encode()) for label in labels]
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, *words])))

    @property
    def dates(self) -> list[date]:
        return [self.first + timedelta(days=number) for number in range(self.days)]

    @property
    def lab_dates(self) -> list[date]:
        """Whole events and state are not kept longer, so they are not made for earlier days."""
        return self.dates[-DAYS_LAB:]

    @property
    def smp(self) -> list[str]:
        return [f"smp-{number:02d}" for number in range(1, self.routers + 1)]

    @property
    def ntf(self) -> list[str]:
        return [f"ntf-{number:02d}" for number in range(1, math.ceil(self.routers / 10) + 1)]

    @property
    def ds(self) -> list[str]:
        return [f"ds-{number:02d}" for number in range(1, math.ceil(self.routers / 10) + 1)]

    def hex_id(self, *labels: object) -> str:
        """16 digits, as boots and snapshots have."""
        return self.rng("id", *labels).bytes(8).hex()


def start_s(day: date) -> int:
    """The first second of a day of UTC."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


@dataclass(frozen=True, slots=True)
class Boot:
    """One run of a server: from its first minute to the minute before it ended."""

    server: str
    role: str
    id: str
    first_s: int
    end_s: int


def boots(plan: Plan, server: str, role: str, restarts_s: tuple[int, ...] = ()) -> list[Boot]:
    """Started with the first day, restarted about every ten days and where planted, down for two minutes."""
    rng = plan.rng("boots", server)
    begin, end = start_s(plan.first), start_s(plan.first) + plan.days * DAY_S
    own = [
        begin + DAY_S * number + int(rng.integers(60, MINUTES - 60)) * 60
        for number in range(plan.days)
        if rng.random() < 0.1
    ]
    planted = [at for at in restarts_s if begin < at < end]
    apart = [at for at in own if all(abs(at - other) > 4 * 3_600 for other in planted)]
    starts = [begin, *sorted({*apart, *planted})]
    ends = [at - 120 for at in starts[1:]] + [end]
    return [
        Boot(server, role, plan.hex_id(server, number), first, last)
        for number, (first, last) in enumerate(zip(starts, ends, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class Minutes:
    """The minutes of one day in which a server ran, and which record each of them is."""

    server: str
    role: str
    day_s: int
    up: np.ndarray
    """For each minute of the day whether it was written."""
    boot: np.ndarray
    """For each minute the number of its boot in `boots`."""
    seq: np.ndarray
    boots: tuple[Boot, ...]

    @property
    def minute_s(self) -> np.ndarray:
        return self.day_s + 60 * np.arange(MINUTES, dtype=np.int64)


def minutes(known: list[Boot], day: date) -> Minutes:
    """What of a day a server was there for."""
    day_s = start_s(day)
    at = day_s + 60 * np.arange(MINUTES, dtype=np.int64)
    boot = np.zeros(MINUTES, np.int64)
    up = np.zeros(MINUTES, bool)
    seq = np.zeros(MINUTES, np.int64)
    for number, one in enumerate(known):
        inside = (at >= one.first_s) & (at < one.end_s)
        boot[inside], up[inside] = number, True
        seq[inside] = (at[inside] - one.first_s) // 60
    return Minutes(known[0].server, known[0].role, day_s, up, boot, seq, tuple(known))


def curve(phase: float, day: date) -> np.ndarray:
    """How busy each minute of a day is: quiet nights, quieter weekends; the mean is about 1."""
    turn = 2 * np.pi * (np.arange(MINUTES) / MINUTES - phase)
    weekend = 0.8 if day.weekday() >= 5 else 1.0
    return weekend * (1 - 0.55 * np.cos(turn) - 0.12 * np.cos(2 * turn))
