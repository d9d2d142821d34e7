"""What the message routers say of themselves: services, backlog, storms, numbers of the day, imports."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime

from blindpost.pipeline.quality import is_over
from blindpost.pipeline.report.facts import DAYS, Facts, Row, count, days_before, moment, named, span
from blindpost.pipeline.report.page import Plot, Section, State, Table
from blindpost.pipeline.report.svg import Bar, Series, bars, lines, number

SHOWN = 4
EXPIRED_SHARE = 0.05
"""An hour in which more than this share of what was accepted aged out is worth a look."""


def drift(facts: Facts) -> Section:
    """Whether services and routers agree about their queues."""
    rows = facts.of("service_drift")
    key, title = "drift", "Do services and routers agree?"
    if not rows:
        return Section(key, title, State.UNKNOWN, "No router's state was exported in this period.")
    wrong = [row for row in rows if row["verdict"] not in ("agrees", "one side only")]
    newest = max(str(row["day"]) for row in rows)
    now = [row for row in wrong if str(row["day"]) == newest]
    state = State.BAD if now else State.WARN if wrong else State.OK
    said = (
        f"{count(len(rows), 'comparison')} of count and hash, and all agree."
        if not wrong
        else f"{count(len(wrong), 'service differs', 'services differ')}, "
        f"{len(now)} on the newest day ({newest}): {named(sorted({row['router'] for row in wrong}))}. "
        "The list that repairs them is in the trust zone: service_drift_queues."
    )
    kinds = (("unassociated", "SUB repairs"), ("gone", "to forget"), ("unclaimed", "to review"))
    drawn = [
        Bar(f"{row['router']} {words}", row[name], number(row[name]), bad=True)
        for row in wrong
        for name, words in kinds
        if row[name]
    ]
    plot = Plot(
        "Queues that differ",
        "whether to send the repair list now: `SUB repairs` are queues whose messages wait unseen.",
        bars(drawn[:12], title),
    )
    columns = ("day", "router", "service", "role", "router_stored", "subscriber_stored", "verdict")
    table = Table("Services that differ", columns, [[row[name] for name in columns] for row in wrong])
    return Section(key, title, state, said, (plot,) if wrong else (), (table,))


def backlog(facts: Facts) -> Section:
    """What waits, what aged out, what was refused because queues were full."""
    rows = facts.of("router_backlog")
    key, title = "backlog", "Does anything pile up?"
    if not rows:
        return Section(key, title, State.UNKNOWN, "No router wrote anything in this period.")
    broken = sum(
        n for (table, _, rule), n in facts.broken.items() if (table, rule) == ("router_backlog", "balance")
    )
    full = [row for row in rows if row["refused_full"] > 0.05 * max(row["accepted"], 100)]
    aged = [row for row in rows if row["expired"] > EXPIRED_SHARE * max(row["accepted"], 1_000)]
    parts = [
        f"senders were refused for full queues on {named(sorted({row['router'] for row in full}))}"
        if full
        else "",
        f"many messages aged out on {named(sorted({row['router'] for row in aged}))}" if aged else "",
        f"totals do not balance in {count(broken, 'hour')}" if broken else "",
    ]
    told = "; ".join(part for part in parts if part)
    state = State.BAD if full or broken else State.WARN if aged else State.OK
    said = (
        f"{told[0].upper()}{told[1:]}."
        if told
        else "Everything that was accepted was taken, waits, or aged out."
    )
    plots = (
        Plot(
            "Messages waiting, fullest routers",
            "whether to look for recipients that stay away, or to give a router more disk.",
            _lines(rows, "backlog_max", "messages"),
        ),
        Plot(
            "Refused because the queue was full",
            "whether senders are held up: quota is the sender's only sign of a recipient who is gone.",
            _lines(rows, "refused_full", "per hour"),
        ),
        Plot(
            "Aged out",
            "whether messages are kept long enough for these users.",
            _lines(rows, "expired", "per hour"),
        ),
    )
    columns = ("router", "hour", "accepted", "acked", "expired", "refused_full", "backlog")
    shown = sorted(
        [*full, *[row for row in aged if row not in full]], key=lambda row: (row["router"], row["hour_s"])
    )
    table = Table(
        "Hours to look at",
        columns,
        [(row["router"], moment(row["hour_s"]), *(row[name] for name in columns[2:])) for row in shown],
        most=12,
    )
    return Section(key, title, state, said, plots, (table,))


def _lines(rows: list[Row], name: str, unit: str) -> str:
    """Of the routers with the highest values, one line each."""
    by_router: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["hour_s"]):
        by_router[row["router"]].append((row["hour_s"], float(row[name] or 0)))
    highest = sorted(by_router, key=lambda router: -max(value for _, value in by_router[router]))[:SHOWN]
    return lines([Series(router, by_router[router]) for router in sorted(highest)], name, unit)


def storms(facts: Facts) -> Section:
    """Subscription storms, and services that displace each other."""
    found, flaps = facts.of("subscription_storms"), facts.of("displacement_flapping")
    key, title = "storms", "Are subscriptions calm?"
    if not facts.of("router_backlog"):
        return Section(key, title, State.UNKNOWN, "No router wrote anything in this period.")
    unexplained = [row for row in found if row["cause"] != "restart"]
    flapping = {(row["router"], row["ordinal"], row["service_role"]) for row in flaps}
    troubled = sorted({router for router, _, _ in flapping})
    parts = [
        f"{count(len(found), 'storm')} of subscriptions, {len(found) - len(unexplained)} after a restart"
        if found
        else "",
        f"{count(len(flapping), 'service')} displaced again and again on {named(troubled)}"
        if flapping
        else "",
    ]
    told = "; ".join(part for part in parts if part)
    state = State.BAD if flapping or unexplained else State.WARN if found else State.OK
    plots = [
        Plot(
            "Subscriptions in the worst minute of a storm",
            "whether to restart routers one at a time, and whether the machine has room for this minute.",
            bars(
                [
                    Bar(
                        f"{row['router']} {moment(row['first_s'])[5:16]}",
                        row["peak_per_minute"],
                        number(row["peak_per_minute"]),
                    )
                    for row in sorted(found, key=lambda row: -row["peak_per_minute"])[:10]
                ],
                title,
            ),
        ),
        Plot(
            "Subscriptions of flapping services, per hour",
            "which service's owner to ask: two programs use one certificate, and each cuts the other off.",
            bars(
                [
                    Bar(
                        f"{row['router']} {moment(row['hour_s'])[5:16]}",
                        row["times"],
                        number(row["times"]),
                        bad=True,
                    )
                    for row in sorted(flaps, key=lambda row: (row["router"], row["hour_s"]))[:10]
                ],
                title,
            ),
        ),
    ]
    drawn = [plot for plot, rows in zip(plots, (found, flaps), strict=True) if rows]
    said = f"{told[0].upper()}{told[1:]}." if told else "No storm, and no service that displaces another."
    table = Table(
        "Storms",
        ("router", "began", "minutes", "subscribed", "in the worst minute", "usual minute", "cause"),
        [
            (
                row["router"],
                moment(row["first_s"]),
                row["minutes"],
                row["subscribed"],
                row["peak_per_minute"],
                row["usual_per_minute"],
                row["cause"],
            )
            for row in sorted(found, key=lambda row: row["first_s"])
        ],
    )
    return Section(key, title, state, said, drawn, (table,))


def statistics(facts: Facts) -> Section:
    """How much the fleet is used."""
    rows = facts.of("daily_statistics")
    key, title = "statistics", "How much is the fleet used?"
    if not rows:
        return Section(key, title, State.UNKNOWN, "No router wrote anything in this period.")
    days: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        days[str(row["day"])].append(row)
    last = max(days)
    sums = {name: sum(row[name] for row in days[last]) for name in ("msgSent", "qCount", "activeQueues_day")}
    whole = is_over(last, facts.made_s)
    partial = sum(row["minutes"] < 1_440 for row in days[last]) if whole else 0
    said = (
        f"{'On ' + last if whole else 'Today so far'}: {count(sums['msgSent'], 'message')} sent, "
        f"about {count(sums['activeQueues_day'], 'queue')} in use "
        f"of {count(sums['qCount'], 'queue')}, on {count(len(days[last]), 'router')}"
        + (f"; {partial} of them recorded less than the whole day." if partial else ".")
    )
    plots = (
        Plot(
            "Messages sent in a day",
            "when the fleet needs another router.",
            _daily(days, (("msgSent", "sent"),)),
        ),
        Plot(
            "Queues in use (estimates)",
            "how many people would notice: queues of a day, of 7 and of 30 days.",
            _daily(
                days,
                (
                    ("activeQueues_day", "day"),
                    ("active_queues_7d", "7 days"),
                    ("active_queues_30d", "30 days"),
                ),
            ),
        ),
    )
    return Section(key, title, State.OK, f"{said} {_week_before(facts, last)}".rstrip(), plots)


def _week_before(facts: Facts, last: str) -> str:
    """The newest finished day beside the same weekday a week before."""
    today = last if is_over(last, facts.made_s) else days_before(last, 1)
    other = days_before(today, DAYS)
    rows = [*facts.of("daily_statistics"), *facts.earlier.get("daily_statistics", ())]
    sent = {day: sum(row["msgSent"] for row in rows if str(row["day"]) == day) for day in (today, other)}
    if not sent[today] or not sent[other]:
        return ""
    change = 100 * (sent[today] / sent[other] - 1)
    return f"A week before {today} it was {count(sent[other], 'message')} ({change:+.0f} % since)."


def _daily(days: dict[str, list[Row]], named_columns: tuple[tuple[str, str], ...]) -> str:
    series = [
        Series(
            words,
            [
                (
                    datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp(),
                    float(sum(row[name] for row in days[day])),
                )
                for day in sorted(days)
            ],
        )
        for name, words in named_columns
    ]
    return lines(series, named_columns[0][1], "")


def migrations(facts: Facts) -> Section | None:
    """Imports of this period; nothing if there was none."""
    rows = facts.of("migration_proof")
    if not rows:
        return None
    wrong = [row for row in rows if row["verdict"] != "equal"]
    imports = {(row["router"], row["migration"]) for row in rows}
    bad = sorted({row["router"] for row in wrong})
    said = (
        f"{count(len(imports), 'import')}, and everything arrived."
        if not wrong
        else f"{count(len(imports), 'import')}; on {named(bad)} result and source differ: "
        "keep the old router's state."
    )
    columns = ("router", "name", "role", "source_count", "result_count", "verdict", "stored_agrees")
    table = Table("What was compared", columns, [[row[name] for name in columns] for row in rows])
    return Section(
        "migrations", "Did imports bring everything?", State.BAD if wrong else State.OK, said, (), (table,)
    )


def age(facts: Facts) -> str:
    """How old the newest data is, in words."""
    newest = facts.newest_s()
    return (
        "none"
        if newest is None
        else f"{moment(newest)}, {span(max(facts.made_s - newest, 0))} before this report"
    )
