"""What a scene shows: rows for the table at the end, each with the verdict whether it is as it should be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[str], None]
"""Tells the viewer, in a sentence."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the summary."""

    name: str
    value: str
    good: bool = True


def quantile_ms(seconds: list[float], share: float) -> float:
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]
