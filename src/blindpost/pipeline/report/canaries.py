"""What our own messages say: how long they take, and whether all of them came."""

from __future__ import annotations

from collections import defaultdict

from blindpost.pipeline.report.facts import Facts, Row, count, moment, named
from blindpost.pipeline.report.page import Plot, Section, State, Table
from blindpost.pipeline.report.svg import Bar, Series, bars, heat, lines, number

DELIVER_P99_S = 1.0
"""What we promise: of a hundred canaries in an hour, at most one takes longer."""
WORST = 10
HOURS = 48


def delivery(facts: Facts) -> Section:
    """Latency of every pair, hour by hour, against the promise."""
    rows = [row for row in facts.of("delivery_slo") if row["role"] == "canary" and row["deliver_p99_us"]]
    key, title = "delivery", "Do messages arrive in time?"
    if not rows:
        return Section(key, title, State.UNKNOWN, "No canary has sent anything in this period.")
    late = [row for row in rows if row["deliver_p99_us"] > DELIVER_P99_S * 1e6]
    pairs = sorted({_pair(row) for row in late})
    state = State.OK if not late else State.WARN if len(late) == 1 else State.BAD
    said = (
        f"On every pair 99 of 100 canaries arrived within {DELIVER_P99_S:g} s, every hour."
        if not late
        else f"{count(len(late), 'hour')} of {count(len(pairs), 'pair')} broke the promise "
        f"of {DELIVER_P99_S:g} s for 99 of 100: {named(pairs)}."
    )
    plots = (
        Plot("Slowest percent, worst pairs", _DECIDES_HEAT, _heat(rows)),
        Plot("All pairs together", _DECIDES_LINES, _lines(rows)),
    )
    table = Table(
        "Hours that broke the promise",
        ("pair", "hour", "sent", "median ms", "99th ms", "longest ms"),
        [
            (
                _pair(row),
                moment(row["hour_s"]),
                row["sent"],
                *(_ms(row[f"deliver_{name}_us"]) for name in _SHOWN),
            )
            for row in sorted(late, key=lambda row: -row["deliver_p99_us"])
        ],
        most=12,
    )
    return Section(key, title, state, said, plots, (table,))


_SHOWN = ("p50", "p99", "max")
_DECIDES_HEAT = (
    "where to look: one dark row is the path between two routers, a dark column one moment for all."
)
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
        "which router to take out of service: losses that share a `to` side point at its store.",
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
