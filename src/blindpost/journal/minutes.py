"""Tier P: what a server records about itself once a minute, from meters that it keeps anyway.

Only names, numbers and sketches come in here: nothing about a queue, a user, an address or a session can
leave through it. Counters are passed as totals; what is written is their increments.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import blindpost
from blindpost.journal.author import Author
from blindpost.journal.frames import RecordWriter
from blindpost.journal.schema import (
    P_BOOTS,
    P_COUNTERS,
    P_FUNNEL,
    P_GAUGES,
    P_HISTOGRAMS,
    P_SERVICES,
    P_SKETCHES,
    P_TOKEN_TRANSITIONS,
)

MINUTE_S = 60

Rows = dict[str, list[tuple[Any, ...]]]
"""By table."""


class Distribution(Protocol):
    """Observations since the start of the process, such as the engine's histogram."""

    @property
    def bounds(self) -> Sequence[float]: ...

    @property
    def counts(self) -> Sequence[int]: ...

    @property
    def total(self) -> float: ...

    @property
    def maximum(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a service subscribed in this minute; `ordinal` says which one, within this boot only."""

    ordinal: int
    service_role: str
    agreed: bool
    times: int


@dataclass(frozen=True, slots=True)
class Sketch:
    """A sketch of what was in use on a day so far."""

    name: str
    day_s: int
    content: bytes


@dataclass(slots=True)
class Reading:
    """A server's meters at one moment. Everything counted is since the start of the process."""

    counters: Mapping[str, int]
    gauges: Mapping[str, float]
    histograms: Mapping[str, Distribution] = field(default_factory=dict)
    services: Sequence[Agreement] = ()
    """Of this minute."""
    sketches: Sequence[Sketch] = ()
    token_transitions: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """By state before, state after and reason."""
    funnel: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """By state, reason and provider."""


@dataclass(frozen=True, slots=True)
class _Counted:
    """What was counted when the last record was written."""

    counters: Mapping[str, int]
    token_transitions: Mapping[tuple[str, str, str], int]
    funnel: Mapping[tuple[str, str, str], int]
    histograms: Mapping[str, tuple[Sequence[int], float]]

    @classmethod
    def by(cls, reading: Reading) -> _Counted:
        return cls(
            dict(reading.counters),
            dict(reading.token_transitions),
            dict(reading.funnel),
            {name: (tuple(found.counts), found.total) for name, found in reading.histograms.items()},
        )


class MinuteJournal:
    """Writes one record a minute.

    The first one is the baseline, with levels and no increments: counters may continue from an
    earlier process.
    """

    def __init__(self, root: Path, author: Author, first: Reading, now: float | None = None) -> None:
        self._records = RecordWriter(root, author)
        self._counted = _Counted.by(first)
        started = time.time() if now is None else now
        program = f"blindpost {blindpost.__version__}"
        levels = {P_BOOTS.name: [(int(started), program)], P_GAUGES.name: _levels(first)}
        self._begin: tuple[int, Rows] | None = minute_of(started), levels

    def begin(self) -> None:
        """Write the first record, if that has not been possible yet."""
        if self._begin is not None:
            self._add(*self._begin)
            self._begin = None

    def record(self, reading: Reading, minute_s: int) -> None:
        """What changed since the last record that could be written, as of the minute that has ended."""
        self.begin()
        self._add(minute_s, _rows(reading, self._counted))
        self._counted = _Counted.by(reading)

    def close(self) -> None:
        """What was recorded can be sealed; more may follow."""
        self._records.close()

    def _add(self, minute_s: int, rows: Rows) -> None:
        self._records.add(
            {"minute_s": minute_s, "rows": {name: found for name, found in rows.items() if found}}
        )


def _rows(reading: Reading, before: _Counted) -> Rows:
    """The rows of a record, without the columns that all of them share."""
    return {
        P_COUNTERS.name: _grown(reading.counters, before.counters),
        P_GAUGES.name: _levels(reading),
        P_HISTOGRAMS.name: _distributions(reading, before),
        P_SKETCHES.name: [(found.name, found.day_s, found.content.hex()) for found in reading.sketches],
        P_SERVICES.name: [
            (found.ordinal, found.service_role, found.agreed, found.times) for found in reading.services
        ],
        P_TOKEN_TRANSITIONS.name: [
            (*states, grown) for states, grown in _grown(reading.token_transitions, before.token_transitions)
        ],
        P_FUNNEL.name: [
            (state, reason, grown, provider)
            for (state, reason, provider), grown in _grown(reading.funnel, before.funnel)
        ],
    }


def _grown(counts: Mapping[Any, int], before: Mapping[Any, int]) -> list[tuple[Any, ...]]:
    return [(name, grown) for name, count in counts.items() if (grown := count - before.get(name, 0))]


def _distributions(reading: Reading, before: _Counted) -> list[tuple[Any, ...]]:
    rows = []
    for name, found in reading.histograms.items():
        counts, total = before.histograms.get(name, ((0,) * len(found.counts), 0.0))
        grown = [count - earlier for count, earlier in zip(found.counts, counts, strict=True)]
        if any(grown):
            rows.append((name, list(found.bounds), grown, found.total - total, found.maximum))
    return rows


def minute_of(now: float) -> int:
    return int(now) // MINUTE_S * MINUTE_S


def _levels(reading: Reading) -> list[tuple[Any, ...]]:
    return [(name, float(level)) for name, level in reading.gauges.items()]
