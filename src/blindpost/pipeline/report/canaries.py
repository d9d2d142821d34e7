"""What our own messages say: how long they take, and whether all of them came."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from blindpost.pipeline.gold.delivery_slo import PROMISE_US
from blindpost.pipeline.report.facts import Facts, Row, count, moment, named
from blindpost.pipeline.report.page import Plot, Section, State, Table
from blindpost.pipeline.report.svg import Bar, Series, bars, heat, lines, number

DELIVER_P99_S = PROMISE_US / 1e6
"""What we promise: of a hundred canaries, at most one takes longer."""
SHARE = 0.01
JUDGED = 100
"""One in a hundred takes a hundred to judge: hours with fewer are judged together with those after them."""
WORST = 10
HOURS = 48


@dataclass(frozen=True, slots=True)
class Spell:
    """Some hours of a pair with enough messages to be judged."""

    pair: str
    first_s: int
    hours: int
    delivered: int
    late: int
    longest_us: float

    @property
    def broken(self) -> bool:
        return self.late > SHARE * self.delivered


def spells(rows: Sequence[Row]) -> list[Spell]:
    """The hours of each pair, put together until there are enough; what is left at the end joins the last."""
    found: list[Spell] = []
    for pair in sorted({_pair(row) for row in rows}):
        hours = sorted((row for row in rows if _pair(row) == pair), key=lambda row: row["hour_s"])
        parts: list[list[Row]] = [[]]
        for row in hours:
            if sum(one["delivered"] for one in parts[-1]) >= JUDGED:
                parts.append([])
            parts[-1].append(row)
        if len(parts) > 1 and sum(one["delivered"] for one in parts[-1]) < JUDGED:
            rest = parts.pop()
            parts[-1] += rest
        for part in parts:
            delivered, late = (sum(one[name] for one in part) for name in ("delivered", "late"))
            longest = max((one["deliver_max_us"] or 0 for one in part), default=0)
            if delivered >= JUDGED:
                found.append(Spell(pair, part[0]["hour_s"], len(part), delivered, late, longest))
    return found


def delivery(facts: Facts) -> Section:
    """Latency of every pair against the promise, where there are enough messages to judge it."""
    sent = [row for row in facts.of("delivery_slo") if row["role"] == "canary"]
    rows = [row for row in sent if row["deliver_p99_us"] is not None]
    key, title = "delivery", "Do messages arrive in time?"
    if not rows:
        said = "No canary's message has arrived" if sent else "No canary has sent anything"
        return Section(key, title, State.BAD if sent else State.UNKNOWN, f"{said} in this period.")
    judged = spells(rows)
    broken = [spell for spell in judged if spell.broken]
    pairs = sorted({spell.pair for spell in broken})
    unjudged = {_pair(row) for row in rows} - {spell.pair for spell in judged}
    state = State.OK if judged else State.UNKNOWN
    if broken:
        state = State.WARN if len(broken) == 1 else State.BAD
    promise = f"{DELIVER_P99_S:g} s for 99 of 100"
    said = (
        f"Too few canaries to judge {promise}: it takes {JUDGED} on a pair."
        if not judged
        else f"On every pair 99 of 100 canaries arrived within {DELIVER_P99_S:g} s, at all times."
        if not broken
        else f"The promise of {promise} was broken {count(len(broken), 'time')}, "
        f"on {count(len(pairs), 'pair')}: {named(pairs)}."
    )
    if judged and unjudged:
        said += f" Too few to judge on {count(len(unjudged), 'pair')}."
    plots = (
        Plot("Slowest percent, worst pairs", _DECIDES_HEAT, _heat(rows)),
        Plot("All pairs together", _DECIDES_LINES, _lines(rows)),
        Plot("Late or lost, of a hundred", _DECIDES_LOSS, _missed(sent)),
    )
    table = Table(
        "When the promise was broken",
        ("pair", "from", "hours", "delivered", "late", "longest ms"),
        [
            (
                spell.pair,
                moment(spell.first_s),
                spell.hours,
                spell.delivered,
                spell.late,
                _ms(spell.longest_us),
            )
            for spell in sorted(broken, key=lambda spell: -spell.late / spell.delivered)
        ],
        most=12,
    )
    return Section(key, title, state, f"{said} {budget(sent, facts)}", plots, (table,))


def budget(rows: Sequence[Row], facts: Facts) -> str:
    """How much of what the promise allows is used up, beside the week before."""
    used = _used(rows)
    earlier = [row for row in facts.earlier.get("delivery_slo", ()) if row["role"] == "canary"]
    said = f"Of what the promise allows, {used:.0f} % is used up"
    return f"{said} (the week before: {_used(earlier):.0f} %)." if earlier else f"{said}."


def _used(rows: Sequence[Row]) -> float:
    sent = sum(row["sent"] - row["pending"] - row["refused"] for row in rows)
    missed = sum(row["late"] + row["lost"] for row in rows)
    return 100 * missed / (SHARE * sent) if sent else 0.0


_DECIDES_HEAT = (
    "where to look: one dark row is the path between two routers, a dark column one moment for all."
)
_DECIDES_LOSS = "whether something got worse, and since when: one of a hundred is what the promise allows."
_DECIDES_LINES = "whether the promise still fits the fleet, before users notice that it does not."


def _pair(row: Row) -> str:
    return f"{row['from_router']} → {row['to_router']}"


def _ms(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / 1000


def _heat(rows: list[Row]) -> str:
    slowest: dict[str, float] = defaultdict(float)
    for row in rows:
        slowest[_pair(row)] = max(slowest[_pair(row)], row["deliver_p99_us"])
    pairs = sorted(slowest, key=lambda pair: -slowest[pair])[:WORST]
    hours = sorted({row["hour_s"] for row in rows})[-HOURS:]
    cells = {
        (pairs.index(_pair(row)), hours.index(row["hour_s"])): row["deliver_p99_us"] / 1e6
        for row in rows
        if _pair(row) in pairs and row["hour_s"] in hours
    }
    label = "99th percentile of delivery, in seconds"
    return heat(pairs, [moment(hour)[5:16] for hour in hours], cells, label, "s", DELIVER_P99_S)


def _lines(rows: list[Row]) -> str:
    hours: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        hours[row["hour_s"]].append(row)
    middle = [(hour, _mean(found, "deliver_p50_us")) for hour, found in sorted(hours.items())]
    worst = [
        (hour, max(row["deliver_p99_us"] for row in found) / 1e6) for hour, found in sorted(hours.items())
    ]
    series = (Series("99th of the worst pair", worst), Series("median of all", middle))
    return lines(series, "Delivery over time", "s", limit=DELIVER_P99_S)


def _missed(rows: list[Row]) -> str:
    hours: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        hours[row["hour_s"]].append(row)
    late, lost = (
        [
            (hour, 100 * sum(row[name] for row in found) / max(sum(row["sent"] for row in found), 1))
            for hour, found in sorted(hours.items())
        ]
        for name in ("late", "lost")
    )
    return lines((Series("late", late), Series("lost", lost)), "Late or lost", "%", limit=100 * SHARE)


def _mean(rows: list[Row], name: str) -> float:
    sent = sum(row["sent"] for row in rows) or 1
    return float(sum(row[name] * row["sent"] for row in rows) / sent / 1e6)


def integrity(facts: Facts) -> Section:
    """Lost, repeated and damaged messages of canaries."""
    pairs, faults = facts.of("canary_integrity"), facts.of("canary_faults")
    key, title = "integrity", "Did everything arrive, once and unchanged?"
    if not pairs:
        return Section(key, title, State.UNKNOWN, "No canary has sent anything in this period.")
    sent, lost = sum(row["sent"] for row in pairs), sum(row["lost"] for row in pairs)
    broken = sum(row["lost_accepted"] for row in pairs)
    again = sum(row["duplicates"] for row in pairs)
    wrong = sum(row["bad_hash"] + row["bad_id"] for row in pairs)
    state = State.BAD if broken or wrong else State.WARN if lost or again else State.OK
    said = (
        f"All {count(sent, 'message')} of our canaries arrived once and unchanged."
        if state is State.OK
        else f"Of {count(sent, 'message')}: lost {lost} (after OK {broken}), twice {again}, damaged {wrong}."
    )
    by_pair = sorted(pairs, key=lambda row: -(row["lost"] + row["duplicates"]))
    plot = Plot(
        "Messages that went wrong",
        "which router to take out of service: losses with one router behind the arrow point at its store.",
        bars(
            [Bar(_pair(row), _bad(row), number(_bad(row)), bad=True) for row in by_pair[:WORST] if _bad(row)],
            title,
        ),
    )
    table = Table(
        "Each message that went wrong",
        ("pair", "number", "sent at", "fault", "came as far as", "bytes"),
        [
            (_pair(row), row["number"], moment(row["sent_us"] / 1e6), row["fault"], row["stage"], row["size"])
            for row in sorted(faults, key=lambda row: row["sent_us"])
        ],
    )
    return Section(key, title, state, said, (plot,) if state is not State.OK else (), (table,))


def _bad(row: Row) -> int:
    return int(row["lost"] + row["duplicates"] + row["bad_hash"] + row["bad_id"] + row["skipped"])
