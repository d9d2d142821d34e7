"""What goes wrong, and how often it did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

PLANNED = "planned"
"""What failures that the schedule causes are named."""


class Point(Enum):
    """Where a process dies."""

    NOW = "between two steps"
    LATER = "after some more steps"
    BEFORE_COMMIT = "before it commits"
    AFTER_COMMIT = "after it has committed"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens at a time, to somebody; what it takes beyond that is drawn with it."""

    at_s: float
    kind: str
    who: str
    detail: tuple[Any, ...] = ()

    def __str__(self) -> str:
        more = ", ".join(getattr(item, "value", None) or str(item) for item in self.detail)
        return f"{clock(self.at_s)} {self.who}: {self.kind}{f' ({more})' if more else ''}"


def clock(seconds: float) -> str:
    """A time of the run, as one reads it."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}.{int(seconds * 1000) % 1000:03}"
