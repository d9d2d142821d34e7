"""The one shape in which every benchmark gives its figures, and how several runs become one."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Better(StrEnum):
    """In which direction a figure should go."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"
    """What it is measured by, not what we made."""


class FiguresError(Exception):
    """Figures that cannot be read, in one sentence for a person."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A median with its quartiles, or with the least and the most of several runs."""

    name: str
    unit: str
    median: float
    lower: float
    upper: float
    better: Better = Better.LOWER


def single(name: str, unit: str, value: float, better: Better = Better.LOWER) -> Figure:
    """Measured once in a run."""
    return Figure(name, unit, value, value, value, better)


def as_json(figures: Sequence[Figure]) -> str:
    return json.dumps({"rows": [asdict(one) for one in figures]}, indent=2)


def parsed(text: str) -> list[Figure]:
    """What `as_json` wrote."""
    try:
        rows: list[Any] = json.loads(text)["rows"]
        figures = [_figure(row) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FiguresError(f"no rows of figures in what it printed: {error}") from None
    names = [one.name for one in figures]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise FiguresError(f"two figures have the name {min(repeated)!r}")
    return figures


def _figure(row: dict[str, Any]) -> Figure:
    values = float(row["median"]), float(row["lower"]), float(row["upper"])
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{row['name']} is not a number")
    return Figure(str(row["name"]), str(row["unit"]), *values, Better(row["better"]))


def merged(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """The median of the runs' medians, from the lowest of their lower ends to the highest of the upper."""
    every: dict[str, list[Figure]] = {}
    for run in runs:
        for one in run:
            every.setdefault(one.name, []).append(one)
    return [
        Figure(
            name,
            same[0].unit,
            statistics.median(one.median for one in same),
            min(one.lower for one in same),
            max(one.upper for one in same),
            same[0].better,
        )
        for name, same in every.items()
    ]
