"""Counters by name: what every server counts, and how."""

from __future__ import annotations

from enum import Enum
from typing import Generic, TypeVar

M = TypeVar("M", bound=Enum)


class Meters(Generic[M]):
    """One counter for each member of an enum, since the start of the process."""

    __slots__ = ("_counts",)

    def __init__(self, meters: type[M]) -> None:
        self._counts: dict[M, int] = dict.fromkeys(meters, 0)

    def add(self, meter: M, by: int = 1) -> None:
        self._counts[meter] += by

    def __getitem__(self, meter: M) -> int:
        return self._counts[meter]

    @property
    def counts(self) -> dict[M, int]:
        return dict(self._counts)

    def values(self) -> dict[str, int]:
        return {str(meter.value): count for meter, count in self._counts.items()}
