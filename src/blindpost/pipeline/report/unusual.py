"""What is unlike the days before, ranked, and where numbers are heading if trends continue.

An hour is compared with the same hour of other days, by their median and how far they are usually from it: a
single bad day among them changes neither. A forecast says how wrong it was on days that it did not see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median

from blindpost.pipeline.report.facts import Facts, Row, count, moment, named
from blindpost.pipeline.report.page import WORDS, Plot, Section, State, Table
from blindpost.pipeline.report.svg import Bar, bars, number

METERS = ("accepted", "acked", "expired", "refused_full", "queues_deleted", "backlog_max")
DAYS_LEAST = 4
"""How many other days it takes to call an hour unusual."""
UNUSUAL = 8.0
"""This many usual distances from the median; chosen so that a week of a calm fleet has hardly any."""
SHARE, LEAST = 0.1, 20.0
"""A distance is at least this share of the median and this many: small numbers vary a lot."""
AHEAD_DAYS = 30
HELD_OUT = 0.25


@dataclass(frozen=True, slots=True)
class Unusual:
    """One hour of one meter of one router."""

    router: str
    meter: str
    hour_s: int
    value: float
    usual: float
    score: float

    @property
    def words(self) -> str:
        return WORDS.get(self.meter, self.meter.replace("_", " "))


def unusual(rows: Sequence[Row], wanted_from_s: int) -> list[Unusual]:
    """The hours from then on that are unlike the same hour of other days, the strangest first."""
    by_hour: dict[tuple[str, str, int], list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        for meter in METERS:
            if row.get(meter) is not None:
                key = row["router"], meter, row["hour_s"] // 3_600 % 24
                by_hour[key].append((row["hour_s"], float(row[meter])))
    found = []
    for (router, meter, _), points in by_hour.items():
        for at, value in points:
            others = [other for when, other in points if when != at]
            if at < wanted_from_s or len(others) < DAYS_LEAST:
                continue
            usual = median(others)
            apart = median(abs(other - usual) for other in others)
            score = abs(value - usual) / (1.4826 * apart + SHARE * usual + LEAST)
            if score >= UNUSUAL:
                found.append(Unusual(router, meter, at, value, usual, score))
    return sorted(found, key=lambda one: (-one.score, one.router, one.meter, one.hour_s))


@dataclass(frozen=True, slots=True)
class Forecast:
    """Where a daily number goes."""

    now: float
    later: float
    a_day: float
    """How much it changes in a day."""
    error: float
    """How wrong it was on held-out days, as a share of what they were."""


def forecast(days: Mapping[str, float]) -> Forecast | None:
    """A straight line through the days (the median of the slopes between any two); None for too few days."""
    points = [(float(date.fromisoformat(day).toordinal()), value) for day, value in sorted(days.items())]
    held = max(int(len(points) * HELD_OUT), 1)
    known, unseen = points[:-held], points[-held:]
    if len(known) < DAYS_LEAST:
        return None
    told = _Line(known)
    error = sum(abs(told(x) - y) for x, y in unseen) / max(sum(y for _, y in unseen), 1.0)
    line = _Line(points)
    last = points[-1][0]
    return Forecast(line(last), max(line(last + AHEAD_DAYS), 0.0), line.slope, error)


class _Line:
    """A straight line that a few strange points do not bend."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        slopes = [
            (y2 - y1) / (x2 - x1) for place, (x1, y1) in enumerate(points) for x2, y2 in points[place + 1 :]
        ]
        self.slope = median(slopes)
        self._start = median(y - self.slope * x for x, y in points)

    def __call__(self, x: float) -> float:
        return self._start + self.slope * x


FORECAST = {"msgSent": "messages sent in a day", "qCount": "queues stored", "msgCount": "messages stored"}


def section(facts: Facts) -> Section | None:
    """Hours unlike others, and where the fleet goes; nothing if there are too few days to compare."""
    rows = [*facts.earlier.get("router_backlog", ()), *facts.of("router_backlog")]
    key, title = "unusual", "Is anything unlike the days before?"
    if len({row["hour_s"] // 86_400 for row in rows}) <= DAYS_LEAST:
        return None
    start = min((row["hour_s"] for row in facts.of("router_backlog")), default=0)
    found = unusual(rows, start)
    routers = sorted({one.router for one in found})
    said = (
        f"{count(len(found), 'hour')} unlike the same hour of other days, on {named(routers)}."
        if found
        else "Every hour of every router was like the same hour of other days."
    )
    plot = Plot(
        "Strangest hours",
        "where to look first when nothing else tells: bars are in usual distances from the median.",
        bars(
            [
                Bar(
                    f"{one.router} {one.words} {moment(one.hour_s)[5:13]}h",
                    one.score,
                    number(one.score),
                )
                for one in found[:10]
            ],
            title,
        ),
    )
    strange = Table(
        "Hours unlike others",
        ("router", "meter", "hour", "value", "usual", "distance"),
        [(one.router, one.words, moment(one.hour_s), one.value, one.usual, one.score) for one in found],
    )
    return Section(
        key,
        title,
        State.WARN if found else State.OK,
        said,
        (plot,) if found else (),
        (strange, _ahead(facts)),
    )


def _ahead(facts: Facts) -> Table:
    rows = [*facts.earlier.get("daily_statistics", ()), *facts.of("daily_statistics")]
    told = []
    for column, words in FORECAST.items():
        days: dict[str, float] = defaultdict(float)
        for row in rows:
            if row.get(column) is not None and row["minutes"] >= 1_440:
                days[str(row["day"])] += row[column]
        if (found := forecast(days)) is not None:
            told.append((words, found.now, found.later, f"{100 * found.error:.1f} %"))
    return Table(
        f"In {AHEAD_DAYS} days, if it goes on like this",
        ("what", "now", "then", "error on days it did not see"),
        told,
    )
