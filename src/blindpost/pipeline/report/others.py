"""Notifications, the delivery service, and the data that all of this rests on."""

from __future__ import annotations

from collections import defaultdict

from blindpost.journal.schema import NOTIFICATION_STATES, TERMINAL_STATES
from blindpost.pipeline.report.facts import Facts, Row, count, moment, named, span
from blindpost.pipeline.report.page import Plot, Section, State, Table
from blindpost.pipeline.report.svg import Bar, Series, bars, lines, number

ONE_NAME = "one server of a name"
DEEP_TIMES = 5
"""A delivery service is behind when an hour is this many times deeper than its median hour."""
INVALID_TIMES = 3


def notifications(facts: Facts) -> Section:
    """The funnel, tokens that became invalid, and whether each notification ended."""
    rows, canaries, tokens = (
        facts.of(name) for name in ("notification_funnel", "notification_canaries", "token_transitions")
    )
    key, title = "notifications", "Do notifications reach an end?"
    if not rows and not canaries:
        return Section(key, title, State.UNKNOWN, "No notification router wrote anything in this period.")
    received, accepted = (sum(row[name] for row in rows) for name in ("received", "accepted"))
    unfinished = sum(row["unfinished"] + row["ended_twice"] for row in canaries)
    invalid = [row for row in tokens if row["to_state"] == "INVALID"]
    illegal = [row for row in tokens if not row["legal"]]
    spiked = _spiked(invalid)
    parts = [
        f"{count(unfinished, 'notification')} of our canaries did not end exactly once" if unfinished else "",
        f"{count(len(illegal), 'kind')} of token transitions that the protocol does not have"
        if illegal
        else "",
        f"far more tokens than usual became invalid on {named(spiked)}" if spiked else "",
    ]
    told = "; ".join(part for part in parts if part)
    percent = 100 * accepted / max(received, 1)
    share = f"Of {count(received, 'notification')} providers accepted {percent:.1f} %{_shares(rows)}"
    state = State.BAD if unfinished or illegal else State.WARN if spiked else State.OK
    said = f"{told[0].upper()}{told[1:]}. {share}." if told else f"{share}, and each one ended."
    plots = (
        Plot("From received to accepted", "which step loses them, and with which provider.", _funnel(rows)),
        Plot(
            "Where the others ended",
            "whether to write to owners of dead tokens, or to the provider.",
            _ends(rows),
        ),
        Plot(
            "Why tokens became invalid",
            "whether to mend our credentials (BAD, TOPIC) or nothing (UNREGISTERED: the app was removed).",
            bars(_reasons(invalid), title),
        ),
    )
    columns = ("day", "router", "received", "ended_once", "ended_twice", "unfinished", "accepted_ms_p95")
    table = Table(
        "Notifications of canaries",
        columns,
        [
            [row[name] for name in columns]
            for row in sorted(canaries, key=lambda row: (row["day"], row["router"]))
        ],
    )
    return Section(key, title, state, said, plots, (_by_provider(rows), table))


def _spiked(invalid: list[Row]) -> list[str]:
    """Days on which far more became invalid than on the quietest of the period."""
    days: dict[str, int] = defaultdict(int)
    for row in invalid:
        days[str(row["day"])] += row["tokens"]
    if len(days) < 2:
        return []
    least = min(days.values())
    return [day for day, tokens in sorted(days.items()) if tokens > INVALID_TIMES * least and tokens >= 50]


_STEPS = ("received", "stored", "pushed", "accepted")


def _of_providers(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["provider"]].append(row)
    return dict(sorted(found.items()))


def _funnel(rows: list[Row]) -> str:
    """The steps, and at each the providers side by side."""
    providers = _of_providers(rows)
    shown = []
    for step in _STEPS:
        for provider, of_it in providers.items():
            total = sum(row[step] for row in of_it)
            shown.append(Bar(f"{step} · {provider}", total, number(total)))
    return bars(shown, "Notifications by step and provider")


def _shares(rows: list[Row]) -> str:
    """What part each provider accepted, where there are several."""
    parts = []
    for provider, of_it in _of_providers(rows).items():
        received, accepted = (sum(row[name] for row in of_it) for name in ("received", "accepted"))
        if received and provider != "none":
            parts.append(f"{provider} {100 * accepted / received:.1f} %")
    return f" ({', '.join(parts)})" if len(parts) > 1 else ""


def _by_provider(rows: list[Row]) -> Table:
    names = (*NOTIFICATION_STATES, "open")
    return Table(
        "Notifications by provider",
        ("provider", *(name.replace("_", " ") for name in names)),
        [
            (provider, *(sum(row[name] for row in of_it) for name in names))
            for provider, of_it in _of_providers(rows).items()
        ],
    )


def _ends(rows: list[Row]) -> str:
    totals = {name: sum(row[name] for row in rows) for name in TERMINAL_STATES if name != "accepted"}
    shown = sorted(totals.items(), key=lambda item: -item[1])
    ends = [Bar(name.replace("_", " "), value, number(value)) for name, value in shown if value]
    return bars(ends, "Notifications by end")


def _reasons(invalid: list[Row]) -> list[Bar]:
    totals: dict[str, int] = defaultdict(int)
    for row in invalid:
        totals[row["reason"] or "unknown"] += row["tokens"]
    return [
        Bar(name, value, number(value)) for name, value in sorted(totals.items(), key=lambda item: -item[1])
    ]


def delivery_service(facts: Facts) -> Section:
    """Depth over time, wake-ups and leases."""
    rows = sorted(facts.of("delivery_service"), key=lambda row: row["hour_s"])
    key, title = "delivery-service", "Does the delivery service keep up?"
    if not rows:
        return Section(key, title, State.UNKNOWN, "No delivery service wrote anything in this period.")
    deep = [row for row in rows if _deep(row, rows)]
    waits, expired = (sum(row[name] for row in rows) for name in ("waits", "waits_expired"))
    answered = 100 * (1 - expired / waits) if waits else 100.0
    state = State.BAD if deep else State.OK
    said = (
        f"Payloads piled up on {named(sorted({row['router'] for row in deep}))}, at most "
        f"{max(row['depth_max'] for row in deep):,.0f}, from {moment(deep[0]['hour_s'])}."
        if deep
        else f"Nothing piles up; {answered:.0f} % of waiting calls were answered with payloads."
    )
    plots = (
        Plot(
            "Payloads waiting",
            "whether callers have stopped fetching.",
            _over_time(rows, "depth_max", "payloads"),
        ),
        Plot(
            "Waiting calls that were woken",
            "whether long polls are worth their connections, or time out for nothing.",
            _woken(rows),
        ),
        Plot(
            "Leases given back or displaced",
            "whether callers take longer than a lease lasts.",
            _over_time(rows, "put_back", "per hour"),
        ),
    )
    lab = facts.of("delivery_lab")
    columns = (
        "router",
        "enqueued",
        "depth_max",
        "leased_age_ms_p95",
        "leased_age_ms_max",
        "woken_ms_p95",
        "put_back",
    )
    table = Table(
        "Load tests",
        ("hour", *columns),
        [
            (moment(row["hour_s"]), *(row[name] for name in columns))
            for row in sorted(lab, key=lambda row: row["hour_s"])
        ],
        most=10,
    )
    return Section(key, title, state, said, plots, (table,))


def _deep(row: Row, rows: list[Row]) -> bool:
    own = sorted(other["depth_max"] or 0.0 for other in rows if other["router"] == row["router"])
    return bool((row["depth_max"] or 0.0) > max(DEEP_TIMES * own[len(own) // 2], 100.0))


def _over_time(rows: list[Row], name: str, unit: str) -> str:
    routers = sorted({row["router"] for row in rows})
    series = [
        Series(router, [(row["hour_s"], row[name]) for row in rows if row["router"] == router])
        for router in routers[:4]
    ]
    return lines(series, name, unit)


def _woken(rows: list[Row]) -> str:
    shares: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for row in rows:
        done = row["waits_answered"] + row["waits_expired"]
        shares[row["router"]].append((row["hour_s"], 100 * row["waits_answered"] / done if done else None))
    return lines([Series(router, points) for router, points in sorted(shares.items())[:4]], "woken", "%")


def data(facts: Facts) -> Section:
    """Who is silent or missing, what was set aside, and which rules do not hold."""
    silent = sorted(server for server, (_, at) in facts.heard.items() if _behind(facts, at) > facts.silent_s)
    names = {server.split(" ")[0] for server in facts.heard}
    missing = sorted(set(facts.expected) - names)
    strangers = sorted(names - set(facts.expected)) if facts.expected else []
    newest = facts.newest_s()
    everybody = facts.heard and len(silent) == len(facts.heard)
    shared = sum(rows for (_, _, rule), rows in facts.broken.items() if rule == ONE_NAME)
    urgent = [
        f"nobody has written for {span(_behind(facts, newest))}" if everybody and newest else "",
        f"silent: {named(silent)}" if silent and not everybody else "",
        f"expected and not heard of: {named(missing)}" if missing else "",
        f"two servers write under one name on {count(shared, 'day')}" if shared else "",
    ]
    parts = [
        *urgent,
        f"not expected: {named(strangers)}" if strangers else "",
        f"{count(len(facts.quarantine), 'file')} of {facts.files} set aside" if facts.quarantine else "",
        f"{count(len(facts.broken), 'rule')} broken" if facts.broken else "",
    ]
    told = "; ".join(part for part in parts if part)
    reasons: dict[str, int] = defaultdict(int)
    for _, reason, _ in facts.quarantine:
        reasons[reason] += 1
    plot = Plot(
        "Files set aside, by reason",
        "whether a disk is failing (corrupt, truncated), or a server runs a newer version than this program.",
        bars(
            [Bar(reason, many, str(many), bad=True) for reason, many in sorted(reasons.items())],
            "Files set aside",
        ),
    )
    quarantined = Table(
        "Set aside: not read, still where they were", ("file", "reason", "detail"), facts.quarantine
    )
    rules = Table(
        "Rules that do not hold",
        ("table", "day", "rule", "rows"),
        [(*key, rows) for key, rows in sorted(facts.broken.items())],
        most=30,
    )
    ages = Table(
        "Newest data of each server",
        ("server", "role", "newest minute", "how long ago"),
        [
            (server, role, moment(at), span(_behind(facts, at)))
            for server, (role, at) in sorted(facts.heard.items(), key=lambda item: item[1][1])
        ],
        most=40,
    )
    state = State.BAD if any(urgent) else State.WARN if told else State.OK
    said = (
        f"{told[0].upper()}{told[1:]}."
        if told
        else "Every file was read, every server writes, every rule holds."
    )
    return Section(
        "data",
        "Can this report be trusted?",
        state,
        said,
        (plot,) if facts.quarantine else (),
        (quarantined, rules, ages),
    )


def _behind(facts: Facts, at_s: float) -> float:
    """How long a server had been silent when silence was judged."""
    return max(facts.clock_s - at_s, 0.0)
