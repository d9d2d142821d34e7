"""Each router by itself: when its disk will be full, and a page of its own numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from blindpost.pipeline.report.facts import Facts, Row, count, named, span
from blindpost.pipeline.report.page import Page, Plot, Section, State, Table
from blindpost.pipeline.report.svg import Bar, Series, bars, lines, number
from blindpost.pipeline.report.unusual import forecast

PAGES_MOST = 50
"""Routers with a page; of a larger fleet those with the most messages."""
SOON_DAYS, LATER_DAYS = 14, 60
"""A disk that is full so soon must be seen to; one that is full later is told."""
LEAST_SHARE = 0.05
"""Less room than this share of a disk is too little, wherever it is heading."""


@dataclass(frozen=True, slots=True)
class Disk:
    """How long a router's disk will do."""

    router: str
    free: float
    size: float
    full_in_days: float | None
    """None if it is not filling, or not for a year."""
    error: float | None
    """How wrong the forecast was on days that it did not see, as a share of the room they had."""

    @property
    def state(self) -> State:
        if self.free < LEAST_SHARE * self.size or (self.full_in_days or SOON_DAYS) < SOON_DAYS:
            return State.BAD
        return State.WARN if self.full_in_days is not None and self.full_in_days < LATER_DAYS else State.OK

    @property
    def said(self) -> str:
        if self.error is None:
            return f"{number(self.free)}B free"
        if self.full_in_days is None:
            return f"{number(self.free)}B free, not filling"
        return f"full in {count(round(self.full_in_days), 'day')} if it goes on like this"


def disks_of(rows: Sequence[Row]) -> list[Disk]:
    """Of rows of daily statistics: the disk of each router that told of one, the one that is full first."""
    days: dict[str, dict[str, float]] = defaultdict(dict)
    sizes: dict[str, float] = {}
    for row in sorted(rows, key=lambda row: str(row["day"])):
        if row.get("disk_free_bytes") is not None and row.get("disk_size_bytes"):
            days[row["router"]][str(row["day"])] = float(row["disk_free_bytes"])
            sizes[row["router"]] = float(row["disk_size_bytes"])
    found = []
    for router, free in days.items():
        now = free[max(free)]
        told = forecast(free)
        fills = None if told is None or told.a_day >= 0 else max(now, 0.0) / -told.a_day
        if fills is not None and fills > 365:
            fills = None
        found.append(Disk(router, now, sizes[router], fills, None if told is None else told.error))
    return sorted(found, key=lambda one: (one.full_in_days is None, one.full_in_days or 0, one.free))


def disks(facts: Facts) -> Section | None:
    """When disks will be full; nothing if no router told of its disk."""
    found = disks_of(_statistics(facts))
    if not found:
        return None
    state = next(state for state in State if state in {one.state for one in found})
    filling = [one for one in found if one.state is not State.OK]
    said = (
        "; ".join(f"{one.router}: {one.said}" for one in filling[:4])
        + (f"; and {len(filling) - 4} more" if len(filling) > 4 else "")
        + "."
        if filling
        else f"No disk is full within {LATER_DAYS} days. The least room is {number(found[0].free)}B, "
        f"on {found[0].router}."
    )
    if not any(one.error is not None for one in found):
        said += " There are too few days for a forecast."
    plot = Plot(
        "How full each disk is, in percent",
        "which router to give more room, or to relieve of queues, before it refuses messages.",
        bars(
            [
                Bar(
                    one.router,
                    100 * (1 - one.free / one.size),
                    f"{100 * (1 - one.free / one.size):.0f} %",
                    bad=one.state is State.BAD,
                )
                for one in found[:12]
            ],
            "How full each disk is",
        ),
    )
    table = Table(
        "Disks, the one that is full first on top",
        ("router", "free", "of", "full in days", "error on days it did not see"),
        [
            (
                one.router,
                f"{number(one.free)}B",
                f"{number(one.size)}B",
                None if one.full_in_days is None else round(one.full_in_days),
                None if one.error is None else f"{100 * one.error:.1f} %",
            )
            for one in found
        ],
    )
    return Section("disks", "When will disks be full?", state, said, (plot,), (table,))


def _statistics(facts: Facts) -> list[Row]:
    return [*facts.earlier.get("daily_statistics", ()), *facts.of("daily_statistics")]


def routers(facts: Facts) -> Section | None:
    """A page for each router; nothing if none wrote."""
    rows = facts.of("daily_statistics")
    if not rows:
        return None
    sent: dict[str, int] = defaultdict(int)
    for row in rows:
        sent[row["router"]] += row["msgSent"]
    busiest = sorted(sent, key=lambda router: (-sent[router], router))
    room = {one.router: one for one in disks_of(_statistics(facts))}
    pages = [_page(facts, router, room.get(router)) for router in sorted(busiest[:PAGES_MOST])]
    left = len(busiest) - len(pages)
    said = f"{count(len(busiest), 'router')}: {named(sorted(busiest))}. Open one to see its numbers." + (
        f" The {left} with the fewest messages have no page." if left else ""
    )
    return Section("routers", "How is each router?", State.OK, said, pages=pages)


def _page(facts: Facts, router: str, disk: Disk | None) -> Page:
    days = sorted(
        (row for row in facts.of("daily_statistics") if row["router"] == router),
        key=lambda row: str(row["day"]),
    )
    hours = sorted(
        (row for row in facts.of("router_backlog") if row["router"] == router), key=lambda row: row["hour_s"]
    )
    heard = [at for name, (_, at) in facts.heard.items() if name in (router, f"{router} (smp)")]
    parts = [
        f"{count(days[-1]['msgSent'], 'message')} on {days[-1]['day']}",
        f"{count(days[-1]['qCount'], 'queue')}",
        f"last heard {span(max(facts.clock_s - max(heard), 0))} ago" if heard else "",
        disk.said if disk is not None else "",
    ]
    plots = [
        Plot(
            "Messages in an hour",
            "whether what comes in also goes out.",
            lines(
                [_series(hours, name, words) for name, words in _FLOW], f"Messages of {router}", "per hour"
            ),
        ),
        Plot(
            "Messages waiting",
            "whether its recipients are there.",
            lines([_series(hours, "backlog_max", "waiting")], f"Messages waiting in {router}", "messages"),
        ),
    ]
    if late := _late(facts, router):
        plots.append(
            Plot(
                "How long our messages take, slowest of a hundred",
                "whether this router or its way is slow: one line to it, one from it.",
                lines(late, f"Delivery by {router}", "s"),
            )
        )
    names = ("msgSent", "msgRecv", "msgExpired", "qCreated", "qCount", "activeQueues_day", "minutes", "boots")
    words = (
        "day",
        "sent",
        "received",
        "aged out",
        "queues made",
        "queues",
        "in use",
        "minutes told",
        "starts",
    )
    table = Table("Its days", words, [(str(row["day"]), *(row.get(name) for name in names)) for row in days])
    return Page(router, "; ".join(part for part in parts if part), plots, (table,))


_FLOW = (("accepted", "came in"), ("acked", "fetched"), ("expired", "aged out"))


def _series(hours: Sequence[Row], name: str, words: str) -> Series:
    return Series(words, [(row["hour_s"], float(row[name] or 0)) for row in hours])


def _late(facts: Facts, router: str) -> list[Series]:
    """The worst pair of each hour, to this router and from it."""
    found = []
    for column, words in (("to_router", "to it"), ("from_router", "from it")):
        worst: dict[int, float] = {}
        for row in facts.of("delivery_slo"):
            if row[column] == router and row["role"] == "canary" and row["deliver_p99_us"] is not None:
                worst[row["hour_s"]] = max(worst.get(row["hour_s"], 0.0), row["deliver_p99_us"] / 1e6)
        if worst:
            found.append(Series(words, sorted(worst.items())))
    return found
