"""What the report is made of: published rows, broken rules, files set aside, and how old it all is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

from blindpost.journal.schema import TABLES, Tier
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.quality import told
from blindpost.pipeline.runner import CONFLICTS
from blindpost.pipeline.settings import SILENT_MINUTES

Row = Mapping[str, Any]
DAYS = 7
"""How many days, up to the newest, where none are named."""
DAY_S = 86_400
COMPARED = {"daily_statistics": 28, "delivery_slo": 7, "router_backlog": 7}
"""Tables of which earlier days are read too, and how many."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a page says; the sections are pure functions of it."""

    days: Sequence[str]
    made_s: int
    rows: Mapping[str, Sequence[Row]]
    """By published table, for these days."""
    broken: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """How many rows break a rule, by table, day and rule."""
    quarantine: Sequence[tuple[str, str, str]] = field(default=())
    """Files set aside: path, reason, detail."""
    heard: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """By server: its role and its newest minute."""
    expected: Sequence[str] = ()
    """Who must write; empty if not configured."""
    silent_s: int = 60 * SILENT_MINUTES
    earlier: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """For some tables, the rows of earlier days."""
    of_the_past: bool = False
    """Whether the last day was given: then the report is about that time."""
    files: int = 0
    recorded: int = 0
    """Rows in the files that were taken."""

    def of(self, table: str) -> list[Row]:
        return list(self.rows.get(table, ()))

    @property
    def clock_s(self) -> float:
        """When silence is judged: now, or at the end of a past period."""
        end = datetime.fromisoformat(self.days[-1]).replace(tzinfo=UTC).timestamp() + DAY_S
        return min(self.made_s, end) if self.of_the_past else self.made_s

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
    before = [day for day in there if days_before(days[0], DAYS) <= day < days[0]]
    folders = lake.ledger.folders().values()
    return Facts(
        days=days,
        made_s=made_s,
        rows={name: lake.rows(one, days) for name, one in known.items()},
        broken={
            **{
                (name, day, rule): count
                for name, partitions in manifests.items()
                for day in days
                if day in partitions
                for rule, count in told(partitions[day].broken, known[name].rules, day, made_s).items()
            },
            **_conflicts(lake, days),
        },
        quarantine=[(entry.path, entry.reason, entry.detail) for entry in lake.ledger.set_aside()],
        heard=_heard(lake, [*before, *days]),
        expected=lake.settings.fleet.expected,
        silent_s=60 * lake.settings.fleet.silent_minutes,
        earlier={
            name: lake.rows(
                known[name], [day for day in there if days_before(days[0], many) <= day < days[0]]
            )
            for name, many in COMPARED.items()
        },
        of_the_past=last is not None,
        files=sum(folder.files for folder in folders),
        recorded=sum(folder.rows for folder in folders),
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


def days_before(day: str, count: int) -> str:
    return (date.fromisoformat(day) - timedelta(days=count)).isoformat()


def _heard(lake: Lake, days: Sequence[str]) -> dict[str, tuple[str, int]]:
    """The newest minute of each server in these days; servers of two kinds that share a name are two."""
    few = lake.few("p_gauges", days, ["router", "role", "minute_s"])
    if few is None:
        newest = lake.silver("p_gauges", days).groupBy("router", "role").agg({"minute_s": "max"}).collect()
        rows = [tuple(row) for row in newest]
    else:
        ends = few.group_by(["router", "role"]).aggregate([("minute_s", "max")])
        rows = [(row["router"], row["role"], row["minute_s_max"]) for row in ends.to_pylist()]
    shared = {name for name, many in Counter(router for router, _, _ in rows).items() if many > 1}
    return {f"{router} ({role})" if router in shared else router: (role, at) for router, role, at in rows}


def _conflicts(lake: Lake, days: Sequence[str]) -> dict[tuple[str, str, str], int]:
    """Records that came with two contents, by silver table and day."""
    found = {}
    for table in TABLES.values():
        if table.tier is Tier.STATE and lake.zone_is_closed:
            continue
        for day, partition in lake.silver_store(table).current().partitions.items():
            if day in days and partition.broken.get(CONFLICTS):
                found[table.name, day, CONFLICTS] = partition.broken[CONFLICTS]
    return found


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
