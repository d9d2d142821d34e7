"""The same tables as storms, funnels, canaries and the delivery service's hours, in plain Python."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from datetime import UTC, date, datetime
from typing import Any

from blindpost.journal.schema import DELIVERY_EVENTS, NOTIFICATION_STATES, TERMINAL_STATES, TOKEN_STATES
from blindpost.pipeline.gold.delivery_service import COUNTERS
from tests.support.pipeline.lakes import Journal, Row, in_order, once

HOUR_US = 3_600_000_000
Key = tuple[Any, ...]


def day_of(seconds: float) -> date:
    return datetime.fromtimestamp(seconds // 1, UTC).date()


def groups(rows: list[Row], *names: str) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return found


def quantile(values: list[float], part: float) -> float | None:
    """Between the two nearest values, as far as the part lies between them."""
    if not values:
        return None
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def subscription_storms(journal: Journal) -> list[Row]:
    counters, gauges, boots = (
        [row for row in once(name, journal[name]) if row["role"] == "smp"]
        for name in ("p_counters", "p_gauges", "p_boots")
    )
    minutes: dict[tuple[str, int], int] = {(row["router"], row["minute_s"]): 0 for row in gauges}
    for row in counters:
        if row["name"] in ("qSub", "ntfSub"):
            at = row["router"], row["minute_s"]
            minutes[at] = minutes.get(at, 0) + row["value"]
    days: dict[tuple[date, str], dict[int, int]] = defaultdict(dict)
    for (router, minute), value in minutes.items():
        days[day_of(minute), router][minute] = value
    found = []
    for (day, router), values in days.items():
        usual = float(statistics.median(values.values()))
        high = sorted(minute for minute, value in values.items() if value >= 200 and value > 8 * usual)
        for first in [minute for minute in high if minute - 60 not in high]:
            storm = [first]
            while storm[-1] + 60 in high:
                storm.append(storm[-1] + 60)
            starts = [row["started_s"] for row in boots if row["router"] == router]
            before = [at for at in starts if first - 900 <= at <= first + 60]
            found.append(
                {
                    "day": day,
                    "router": router,
                    "first_s": first,
                    "minutes": len(storm),
                    "subscribed": sum(values[minute] for minute in storm),
                    "peak_per_minute": max(values[minute] for minute in storm),
                    "usual_per_minute": usual,
                    "cause": "restart" if before else "unknown",
                    "restarted_s": max(before, default=None),
                }
            )
    return in_order(found)


def displacement_flapping(journal: Journal) -> list[Row]:
    def hours(name: str) -> list[Row]:
        return [{**row, "hour_s": row["minute_s"] // 3600 * 3600} for row in once(name, journal[name])]

    ends: Counter[Key] = Counter()
    for row in hours("p_counters"):
        role = {"rcvServices.subEnd": "messaging", "ntfServices.subEnd": "notifier"}.get(row["name"])
        ends[row["router"], row["boot"], role, row["hour_s"]] += row["value"]
    found = []
    names = ("router", "boot", "ordinal", "service_role", "hour_s")
    for key, rows in groups(hours("p_services"), *names).items():
        times, minutes = sum(row["times"] for row in rows), len({row["minute_s"] for row in rows})
        if times >= 10 and minutes >= 5:
            row = dict(zip(names, key, strict=True))
            found.append(
                {"day": day_of(row["hour_s"]), **row, "times": times, "minutes": minutes}
                | {"minutes_disagreed": sum(not one["agreed"] for one in rows)}
                | {"ends": ends[row["router"], row["boot"], row["service_role"], row["hour_s"]]}
            )
    return in_order(found)


def notification_funnel(journal: Journal) -> list[Row]:
    rows = [
        {**row, "day": day_of(row["minute_s"]), "provider": row["provider"] or "unknown"}
        for row in once("p_funnel", journal["p_funnel"])
    ]
    found = []
    for (day, router, provider), of_day in groups(rows, "day", "router", "provider").items():
        sums = {
            state: sum(row["value"] for row in of_day if row["state"] == state)
            for state in NOTIFICATION_STATES
        }
        ended = sum(sums[state] for state in TERMINAL_STATES)
        found.append(
            {"day": day, "router": router, "provider": provider, **sums}
            | {"ended": ended, "open": sums["received"] - ended}
        )
    return in_order(found)


def token_transitions(journal: Journal) -> list[Row]:
    rows = [
        {**row, "day": day_of(row["minute_s"])}
        for row in once("p_token_transitions", journal["p_token_transitions"])
    ]
    names = ("day", "router", "from_state", "to_state", "reason")
    return in_order(
        {**dict(zip(names, key, strict=True)), "tokens": sum(row["value"] for row in same)}
        | {"legal": _legal(key[2], key[3])}
        for key, same in groups(rows, *names).items()
    )


def _legal(before: str, after: str) -> bool:
    """By the protocol's table of transitions."""
    if before == "":
        return after == "REGISTERED"
    if after in ("", "INVALID", "REGISTERED"):
        return before in TOKEN_STATES
    if after == "CONFIRMED":
        return before in ("REGISTERED", "INVALID", "EXPIRED")
    return after == "ACTIVE" and before in ("REGISTERED", "CONFIRMED", "ACTIVE")


def judged(journal: Journal) -> list[Row]:
    """What became of each message of canaries and load tests within an hour."""
    events = once("l_messages", journal["l_messages"])
    ends: dict[Key, int] = defaultdict(int)
    for row in events:
        of = day_of(row["time_us"] // 10**6), row["role"], row["router"]
        ends[of] = max(ends[of], row["time_us"])
    found = []
    for rows in groups(events, "role", "from_router", "to_router", "connection", "number").values():
        sent = [row for row in rows if row["event"] == "sent"]
        if not sent:
            continue
        sent_us = min(row["time_us"] for row in sent)
        seen = [row for row in rows if row["time_us"] <= sent_us + HOUR_US]
        kinds = Counter(row["event"] for row in seen)
        came = max(kinds["delivered"] + kinds["duplicate"], min(kinds["acked"], 1))
        day = day_of((sent_us + HOUR_US) // 10**6)
        over = sent_us + HOUR_US <= ends[day, rows[0]["role"], min(row["router"] for row in sent)]
        fate = (
            "delivered"
            if came
            else "refused"
            if kinds["refused"]
            else "lost"
            if kinds["lost"] or over
            else "pending"
        )
        found.append(
            {"day": day, "from_router": rows[0]["from_router"], "to_router": rows[0]["to_router"]}
            | {"number": rows[0]["number"], "sent_us": sent_us, "fate": fate, "kinds": kinds, "came": came}
            | {"wrong": {row["integrity"] for row in seen}, "size": rows[0]["size"]}
            | {"role": rows[0]["role"], "accepted": fate != "refused" and bool(kinds["accepted"] or came)}
            | {"first": {kind: min(row["time_us"] for row in seen if row["event"] == kind) for kind in kinds}}
        )
    return found


def canary_integrity(journal: Journal) -> list[Row]:
    names = ("day", "from_router", "to_router")
    found = []
    canaries = [row for row in judged(journal) if row["role"] == "canary"]
    for key, rows in groups(canaries, *names).items():
        lost = [row for row in rows if row["fate"] == "lost"]
        found.append(
            dict(zip(names, key, strict=True))
            | {"sent": len(rows), "accepted": sum(row["accepted"] for row in rows)}
            | {
                fate: sum(row["fate"] == fate for row in rows)
                for fate in ("delivered", "refused", "lost", "pending")
            }
            | {"lost_accepted": sum(row["accepted"] for row in lost)}
            | {"lost_unsaid": sum(row["kinds"]["lost"] == 0 for row in lost)}
            | {"acked": sum(row["kinds"]["acked"] > 0 for row in rows)}
            | {"duplicates": sum(max(row["came"] - 1, 0) for row in rows)}
            | {word: sum(word in row["wrong"] for row in rows) for word in ("skipped", "bad_id", "bad_hash")}
        )
    return in_order(found)


def canary_faults(journal: Journal) -> list[Row]:
    found = []
    for row in [row for row in judged(journal) if row["role"] == "canary"]:
        faults = [row["fate"]] if row["fate"] in ("lost", "refused") else []
        faults += ["duplicate"] if row["came"] > 1 else []
        faults += [word for word in ("skipped", "bad_id", "bad_hash") if word in row["wrong"]]
        steps = [event for event in ("acked", "accepted", "refused") if row["kinds"][event]]
        reached = ["delivered"] if row["came"] else []
        stage = next(
            (one for one in ("acked", "delivered", "accepted", "refused") if one in [*steps, *reached]),
            "sent",
        )
        kept = {name: row[name] for name in ("day", "from_router", "to_router", "number", "sent_us")}
        found += [{**kept, "fault": fault, "stage": stage, "size": row["size"]} for fault in faults]
    return in_order(found)


def notification_canaries(journal: Journal) -> list[Row]:
    events = once("l_notifications", journal["l_notifications"])
    ends: dict[Key, int] = defaultdict(int)
    for row in events:
        of = day_of(row["time_us"] // 10**6), row["router"], row["boot"]
        ends[of] = max(ends[of], row["time_us"])
    days: dict[Key, list[Row]] = defaultdict(list)
    for (router, boot, _), rows in groups(events, "router", "boot", "notification").items():
        came = [row["time_us"] for row in rows if row["state"] == "received"]
        if not came:
            continue
        seen = [row for row in rows if row["time_us"] <= min(came) + HOUR_US]
        over = [row["time_us"] for row in seen if row["state"] in TERMINAL_STATES]
        times = [row["time_us"] for row in seen]
        day = day_of((min(came) + HOUR_US) // 10**6)
        days[day, router].append(
            {"ends": len(over), "accepted": any(row["state"] == "accepted" for row in seen)}
            | {"ms": (min(over) - min(came)) / 1000 if over else None}
            | {"disorder": min(times) < min(came) or (len(over) == 1 and max(times) > over[0])}
            | {"closed": min(came) + HOUR_US <= ends[day, router, boot]}
        )
    found = []
    for (day, router), rows in days.items():
        accepted = [row["ms"] for row in rows if row["accepted"]]
        found.append(
            {"day": day, "router": router, "received": len(rows)}
            | {"ended_once": sum(row["ends"] == 1 for row in rows)}
            | {"ended_twice": sum(row["ends"] > 1 for row in rows)}
            | {"unfinished": sum(not row["ends"] and row["closed"] for row in rows)}
            | {"pending": sum(not row["ends"] and not row["closed"] for row in rows)}
            | {"accepted": len(accepted), "out_of_order": sum(row["disorder"] for row in rows)}
            | {"accepted_ms_p50": quantile(accepted, 0.5), "accepted_ms_p95": quantile(accepted, 0.95)}
        )
    return in_order(found)


def delivery_service(journal: Journal) -> list[Row]:
    tables = {
        name: groups(
            [
                {**row, "hour_s": row["minute_s"] // 3600 * 3600}
                for row in once(name, journal[name])
                if row["role"] == "ds" and row["name"] in known
            ],
            "router",
            "hour_s",
        )
        for name, known in (
            ("p_counters", COUNTERS),
            ("p_gauges", ("payloads", "in_hand", "waiting")),
            ("p_histograms", ("wait_s",)),
        )
    }
    found = []
    for router, hour in {*tables["p_counters"], *tables["p_gauges"]}:
        counted = tables["p_counters"].get((router, hour), [])
        levels = tables["p_gauges"].get((router, hour), [])
        depth = [row["value"] for row in levels if row["name"] == "payloads"]
        # A boot's first record and that of the minute it began in are about the same minute.
        last = max(
            (
                (row["minute_s"], row["boot"], row["seq"], row["value"])
                for row in levels
                if row["name"] == "payloads"
            ),
            default=None,
        )
        found.append(
            {"day": day_of(hour), "router": router, "hour_s": hour}
            | {name: sum(row["value"] for row in counted if row["name"] == name) for name in COUNTERS}
            | {"depth_last": last and last[-1], "depth_mean": statistics.fmean(depth) if depth else None}
            | {"depth_max": max(depth, default=None)}
            | {
                f"{words}_max": max((row["value"] for row in levels if row["name"] == name), default=None)
                for name, words in (("in_hand", "leases"), ("waiting", "waiting"))
            }
            | _waited(tables["p_histograms"].get((router, hour), []))
        )
    return in_order(found)


def _waited(rows: list[Row]) -> Row:
    buckets: Counter[float] = Counter()
    for row in rows:
        for bound, many in zip([*row["bounds"], math.inf], row["counts"], strict=True):
            buckets[bound] += many
    total = sum(buckets.values())
    found: Row = {"waits_answered": total}
    for name, part in (("wait_s_p50", 0.5), ("wait_s_p95", 0.95)):
        below, found[name] = 0, None
        for bound in sorted(buckets):
            below += buckets[bound]
            if total and below >= total * part and found[name] is None:
                found[name] = bound
    return found


def delivery_lab(journal: Journal) -> list[Row]:
    rows = [
        {**row, "hour_s": row["time_us"] // HOUR_US * 3600}
        for row in once("l_delivery", journal["l_delivery"])
    ]
    found = []
    for (router, hour), events in groups(rows, "router", "hour_s").items():
        kinds = Counter(row["event"] for row in events)
        leased = [row["age_us"] / 1000 for row in events if row["event"] == "leased"]
        woken = [row["age_us"] / 1000 for row in events if row["event"] == "woken"]
        found.append(
            {"day": day_of(hour), "router": router, "hour_s": hour}
            | {"queues": len({row["queue"] for row in events})}
            | {event: kinds[event] for event in DELIVERY_EVENTS}
            | {"depth_max": max(row["depth"] for row in events)}
            | {"leased_age_ms_p50": quantile(leased, 0.5), "leased_age_ms_p95": quantile(leased, 0.95)}
            | {"leased_age_ms_max": max(leased, default=None)}
            | {"woken_ms_p50": quantile(woken, 0.5), "woken_ms_p95": quantile(woken, 0.95)}
        )
    return in_order(found)
