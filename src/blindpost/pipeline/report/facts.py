"""What the report is made of: published rows, broken rules, files set aside, and how old it all is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

from blindpost.journal.schema import Tier
from blindpost.pipeline.bronze import set_aside
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.lake import Lake

Row = Mapping[str, Any]
DAYS = 7
"""How many days, up to the newest, where none are named."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a page says; the sections are pure functions of it."""

    days: Sequence[str]
    made_s: int
    rows: Mapping[str, Sequence[Row]]
    """Of each published table, those of the days."""
    broken: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """How many rows break a rule, by table, day and rule."""
    quarantine: Sequence[tuple[str, str, str]] = field(default=())
    """Files set aside: path, reason, detail."""
    heard: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Of each server its role and its newest minute."""
    files: int = 0
    recorded: int = 0
    """Rows in the files that were taken."""

    def of(self, table: str) -> list[Row]:
        return list(self.rows.get(table, ()))

    def newest_s(self) -> int | None:
        return max((at for _, at in self.heard.values()), default=None)


def gather(lake: Lake, first: date | None, last: date | None, made_s: int) -> Facts:
    """Read what is published. What names queues stays where it is: only sums are read."""
    known = {name: one for name, one in datasets().items() if one.tier is not Tier.STATE}
    manifests = {name: lake.gold_store(one).current().partitions for name, one in known.items()}
    there = sorted({day for partitions in manifests.values() for day in partitions})
    if not there:
        raise PipelineError(f"{lake.out}: nothing is published here yet. Run `blindpost pipeline run` first.")
    days = chosen_days(there, first, last)
    entries = list(lake.ledger.read().values())
    good = [entry for entry in entries if entry.good]
    return Facts(
        days=days,
        made_s=made_s,
        rows={name: lake.rows(one, days) for name, one in known.items()},
        broken={
            (name, day, rule): count
            for name, partitions in manifests.items()
            for day in days
            if day in partitions
            for rule, count in partitions[day].broken.items()
            if count
        },
        quarantine=[(entry.path, entry.reason, entry.detail) for entry in set_aside(entries)],
        heard=_heard(lake, days),
        files=len(entries),
        recorded=sum(entry.rows for entry in good),
    )


def chosen_days(there: Sequence[str], first: date | None, last: date | None) -> list[str]:
    """The published days of the range; without one, the newest week of them."""
    end = last.isoformat() if last else there[-1]
    begin = first.isoformat() if first else (date.fromisoformat(end) - timedelta(days=DAYS - 1)).isoformat()
    found = [day for day in there if begin <= day <= end]
    if not found:
        raise PipelineError(
            f"Nothing is published from {begin} to {end}. There is {there[0]} to {there[-1]}."
        )
    return found


def _heard(lake: Lake, days: Sequence[str]) -> dict[str, tuple[str, int]]:
    """The newest minute of each server in these days."""
    rows = lake.silver("p_gauges", days).groupBy("router").agg({"role": "max", "minute_s": "max"}).collect()
    return {row["router"]: (row["max(role)"], row["max(minute_s)"]) for row in rows}


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def span(seconds: float) -> str:
    """How long, for a person."""
    for size, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} seconds"


def named(items: Iterable[object], most: int = 4) -> str:
    """A few of them by name, and how many more there are."""
    all_of = [str(item) for item in items]
    left = len(all_of) - most
    return ", ".join(all_of[:most]) + (f" and {left} more" if left > 0 else "")


def count(number: int, one: str, many: str = "") -> str:
    """`1 file`, `3 files`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}".replace(",", " ")
