"""Whether a figure moved by more than its spread, and in which direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.figures.results import Result
from benchmarks.figures.rows import Better, Figure

LEAST_SHARE = 0.05
"""Of the median: a spread of fewer runs than tell it is taken for at least so much."""


class Verdict(StrEnum):
    """What became of a figure since it was stored."""

    BETTER = "better"
    WORSE = "worse"
    WITHIN = "within the spread"
    MOVED = "moved"
    """Neither direction is better."""
    NEW = "new"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Change:
    """One figure then and now; a new one has no then, one that is gone no now."""

    name: str
    before: Figure | None
    now: Figure | None
    verdict: Verdict

    @property
    def told(self) -> str:
        if self.before is None or self.now is None:
            return f"{self.name}: {self.verdict}"
        then, now = self.before, self.now
        return (
            f"{self.name}: {self.verdict}, {then.median:.4g} ({then.lower:.4g} to {then.upper:.4g}) -> "
            f"{now.median:.4g} ({now.lower:.4g} to {now.upper:.4g}) {now.unit}"
        )


def hindrance(before: Result | None, now: Result) -> str | None:
    """Why two results cannot be compared."""
    if before is None:
        return "nothing was stored before"
    if before.machine != now.machine:
        return "another machine measured what is stored"
    if before.command != now.command:
        return f"other options measured what is stored: {before.command}"
    return None


def compared(before: Sequence[Figure], now: Sequence[Figure]) -> list[Change]:
    """Every figure of both, in the order of the new ones."""
    then = {one.name: one for one in before}
    found = [Change(one.name, then.get(one.name), one, _verdict(then.get(one.name), one)) for one in now]
    names = {one.name for one in now}
    return found + [Change(one.name, one, None, Verdict.GONE) for one in before if one.name not in names]


def _verdict(before: Figure | None, now: Figure) -> Verdict:
    if before is None or before.unit != now.unit:
        return Verdict.NEW
    (low, high), (low_now, high_now) = _spread(before), _spread(now)
    if low_now <= high and low <= high_now:
        return Verdict.WITHIN
    if now.better is Better.NEITHER:
        return Verdict.MOVED
    return Verdict.BETTER if (low_now > high) == (now.better is Better.HIGHER) else Verdict.WORSE


def _spread(one: Figure) -> tuple[float, float]:
    least = abs(one.median) * LEAST_SHARE
    return min(one.lower, one.median - least), max(one.upper, one.median + least)
