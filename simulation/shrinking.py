"""A failing run, made shorter: steps are left out as long as the same promise is broken."""

from __future__ import annotations

import re
from dataclasses import replace

from simulation.genesis import Genesis
from simulation.run import FailedRunError
from simulation.schedules import Schedule
from simulation.simulate import simulate

TRIES_MAX = 400


def shrunk(
    genesis: Genesis, seed: int | str, schedule: Schedule, failure: FailedRunError
) -> tuple[Schedule, FailedRunError]:
    """The shortest schedule that was found, and how it fails: halves are left out first, then steps."""
    best, last = schedule, failure
    size, tries = max(1, len(schedule.steps) // 2), 0
    while tries < TRIES_MAX:
        start, shorter = 0, False
        while start < len(best.steps) and tries < TRIES_MAX:
            tries += 1
            left = replace(best, steps=[*best.steps[:start], *best.steps[start + size :]])
            again = _failure(genesis, seed, left)
            if again is not None and kind_of(again) == kind_of(failure):
                best, last, shorter = left, again, True
            else:
                start += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return best, last


def kind_of(failure: FailedRunError) -> str:
    """What was broken, whatever the names and numbers are."""
    return re.sub(r"\d+|alice|bob|carol|dave|dora|dirk|ada|paul", "#", failure.what)


def _failure(genesis: Genesis, seed: int | str, schedule: Schedule) -> FailedRunError | None:
    try:
        simulate(genesis, seed, schedule)
    except FailedRunError as failure:
        return failure
    return None
