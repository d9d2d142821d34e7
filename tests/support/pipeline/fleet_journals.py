"""Random journals for storms, funnels, notifications and the delivery service; a seed is a journal."""

from __future__ import annotations

import itertools
import random

from blindpost.journal.schema import (
    DELIVERY_EVENTS,
    INVALID_REASONS,
    NOTIFICATION_STATES,
    PROVIDERS,
    TOKEN_STATES,
)
from blindpost.pipeline.gold.delivery_service import COUNTERS
from tests.support.pipeline.journals import DAY_S, FIRST_S
from tests.support.pipeline.lakes import Journal, Row


def _boots(rng: random.Random, router: str, role: str, minutes: int) -> list[list[Row]]:
    """The heads of the records of one or two runs of a server, over midnight."""
    minute, found = FIRST_S + DAY_S - 60 * rng.randrange(minutes), []
    for _ in range(rng.randint(1, 2)):
        boot, heads = f"{rng.getrandbits(64):016x}", []
        for seq in range(rng.randint(minutes // 2, minutes)):
            heads.append({"router": router, "role": role, "boot": boot, "seq": seq, "minute_s": minute})
            minute += 60 if rng.random() < 0.95 else 60 * rng.randint(2, 30)
        found.append(heads)
    return found


def subscriptions(rng: random.Random) -> Journal:
    """Quiet minutes and storms, with and without a restart before them."""
    journal: Journal = {name: [] for name in ("p_counters", "p_gauges", "p_boots")}
    for number in range(4):
        usual, storm = rng.choice((0, 3, 400)), 0
        for heads in _boots(rng, f"r{number}", rng.choice(("smp", "smp", "ds")), 90):
            started = heads[0]["minute_s"] - rng.choice((0, 30, 1_000))
            journal["p_boots"].append({**heads[0], "started_s": started, "program": "x"})
            storm = rng.choice((0, 5))
            for head in heads:
                storm = rng.randint(1, 6) if rng.random() < 0.04 else max(storm - 1, 0)
                if rng.random() < 0.9:
                    journal["p_gauges"].append({**head, "name": "queues", "value": 1.0})
                high = rng.choice((rng.randint(200, 9_000), rng.randint(145, 190)))
                subs = high if storm else rng.randint(0, 2 * usual)
                for name, value in (("qSub", subs), ("ntfSub", subs // 3), ("msgSent", 10_000)):
                    if value:
                        journal["p_counters"].append({**head, "name": name, "value": value})
    return journal


def services(rng: random.Random) -> Journal:
    """Services that subscribe now and then, and some that flap."""
    journal: Journal = {"p_services": [], "p_counters": []}
    for number in range(4):
        for heads in _boots(rng, f"r{number}", "smp", 150):
            busy = {
                (ordinal, role): rng.random() ** 3
                for ordinal in range(3)
                for role in ("messaging", "notifier")
            }
            for head in heads:
                for (ordinal, role), share in busy.items():
                    if rng.random() < share / 4:
                        told = {"agreed": rng.random() < 0.9, "times": rng.randint(1, 3)}
                        journal["p_services"].append(
                            {**head, "ordinal": ordinal, "service_role": role, **told}
                        )
                for name in ("rcvServices.subEnd", "ntfServices.subEnd", "qSubEnd"):
                    if rng.random() < 0.2:
                        journal["p_counters"].append({**head, "name": name, "value": rng.randint(1, 5)})
    return journal


def funnel(rng: random.Random) -> Journal:
    """States of notifications and transitions of tokens, legal or not."""
    journal: Journal = {"p_funnel": [], "p_token_transitions": []}
    for number in range(3):
        for heads in _boots(rng, f"n{number}", "ntf", 60):
            for head in heads:
                for state in rng.sample(NOTIFICATION_STATES, 4):
                    reason = rng.choice(("", "Unregistered"))
                    provider = rng.choice((*PROVIDERS, None))
                    journal["p_funnel"].append(
                        {**head, "state": state, "reason": reason, "value": rng.randint(1, 9)}
                        | {"provider": provider}
                    )
                states = {
                    "from_state": rng.choice(("", *TOKEN_STATES)),
                    "to_state": rng.choice(("", *TOKEN_STATES)),
                }
                reason = rng.choice(INVALID_REASONS)
                journal["p_token_transitions"].append(
                    {**head, **states, "reason": reason, "value": rng.randint(1, 9)}
                )
    return journal


def notifications(rng: random.Random) -> Journal:
    """Notifications that end once, twice, late, never, or before they came."""
    rows: list[Row] = []
    for number in range(300):
        router = f"n{number % 3}"
        at = (FIRST_S + rng.randrange(2 * DAY_S)) * 10**6 + rng.randrange(10**6)
        steps = [("received", at), ("stored", at + rng.randrange(10**4)), ("pushed", at + 20_000)]
        fate = rng.choice(("once", "once", "once", "twice", "late", "never", "early", "after", "unseen"))
        end = at + 20_000 + rng.randrange(10**6)
        accepted = rng.choice(("accepted", "failed"))
        if fate in ("once", "twice", "after"):
            steps.append((accepted, end))
        if fate == "twice":
            steps.append(("dropped", end + rng.choice((0, 5))))
        if fate == "after":
            steps.append(("retried", end + 9))
        if fate == "late":
            steps.append((accepted, at + 3_600_000_000 + rng.choice((0, 1))))
        if fate == "early":
            steps.append(("stored", at - 5))
        if fate == "unseen":
            steps = steps[1:]
        rows += [
            {
                "router": router,
                "role": "canary",
                "boot": router,
                "time_us": time,
                "token": 7,
                "notification": number,
            }
            | {"state": state}
            for state, time in steps
        ]
    rows.sort(key=lambda row: row["time_us"])
    return {"l_notifications": [{**row, "seq": seq} for seq, row in enumerate(rows)]}


def delivery(rng: random.Random) -> Journal:
    """Meters of delivery services of two versions, whose buckets have other bounds."""
    journal: Journal = {name: [] for name in ("p_counters", "p_gauges", "p_histograms")}
    for number in range(3):
        for heads in _boots(rng, f"d{number}", rng.choice(("ds", "ds", "smp")), 120):
            bounds = rng.choice(([0.1, 1.0, 10.0], [0.1, 0.5, 1.0]))
            for before, head in itertools.pairwise(heads):
                if head["seq"] == 1 or rng.random() < 0.05:
                    head["minute_s"] = before["minute_s"]
            for head in heads:
                for name in rng.sample((*COUNTERS, "enqueued_bytes"), 6):
                    journal["p_counters"].append({**head, "name": name, "value": rng.randint(1, 40)})
                if rng.random() < 0.9:
                    for name in ("payloads", "in_hand", "waiting", "connections"):
                        journal["p_gauges"].append(
                            {**head, "name": name, "value": float(rng.randint(0, 500))}
                        )
                for name in ("wait_s", "turn_s"):
                    if rng.random() < 0.3:
                        counts = [rng.choice((0, 0, 1, 9)) for _ in range(len(bounds) + 1)]
                        told = {"bounds": bounds, "counts": counts, "total": 1.5, "maximum": 9.0}
                        journal["p_histograms"].append({**head, "name": name, **told})
    return journal


def load_test(rng: random.Random) -> Journal:
    """Events of delivery services under a load test, over midnight."""
    rows: list[Row] = []
    for seq in range(1_500):
        at = (FIRST_S + DAY_S) * 10**6 + rng.randrange(-5 * 3_600_000_000, 5 * 3_600_000_000)
        head = {"router": f"d{seq % 2}", "role": "load", "boot": "b", "seq": seq, "time_us": at}
        what = {"queue": rng.randrange(9), "payload": seq, "event": rng.choice(DELIVERY_EVENTS)}
        rows.append({**head, **what, "depth": rng.randrange(90), "age_us": rng.randrange(10**7)})
    return {"l_delivery": rows}
