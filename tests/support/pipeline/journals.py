"""Random journals with everything that goes wrong: restarts, repeated rows, lost records, drift.

All of it follows from one random source, so a seed is a journal.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import datasketches
from hypothesis import strategies as st

from blindpost.journal.schema import DAILY_COLUMNS, DAILY_GAUGES, Source
from tests.support.pipeline.lakes import Journal, Row

FIRST_S = int(datetime(2025, 1, 30, tzinfo=UTC).timestamp())
"""A Thursday; the next day ends a month, and three days on a week ends."""
DAY_S = 86_400
COUNTERS = sorted({column.metric for column in DAILY_COLUMNS if column.source is Source.COUNTER})
JOURNALS = 16
"""How many journals one job of Spark computes: the job itself costs as much as a dozen of them."""
JOBS = 10 if os.environ.get("BLINDPOST_PIPELINE_LONG") else 1
SEEDS = st.lists(st.integers(0, 2**32), min_size=JOURNALS, max_size=JOURNALS, unique=True)
BALANCE = ("msgSent", "msgRecv", "msgExpired", "msgSentQuota", "qDeletedAll", "qBlocked")


def repeated(rng: random.Random, journal: Journal) -> Journal:
    """Some rows twice, some twice with another content, all in another order."""
    found: Journal = {}
    for name, rows in journal.items():
        again = [dict(row) for row in rows if rng.random() < 0.2]
        for row in again:
            if "value" in row and rng.random() < 0.3:
                row["value"] += 1
        found[name] = rng.sample(rows + again, len(rows) + len(again))
    return found


def together(seeds: Iterable[int], *makers: Callable[[random.Random], Journal]) -> Journal:
    """The journals of many fleets as one, so that one job computes all: names of servers have a number."""
    whole: Journal = {}
    for fleet, seed in enumerate(seeds):
        rng = random.Random(seed)
        found: Journal = {}
        for make in makers:
            for name, rows in make(rng).items():
                found.setdefault(name, []).extend(rows)
        for name, rows in repeated(rng, found).items():
            whole.setdefault(name, []).extend(_of_fleet(row, fleet) for row in rows)
    return whole


def _of_fleet(row: Row, fleet: int) -> Row:
    """Connections too are different ones: they are numbers under a key of their canary."""
    names = ("router", "from_router", "to_router")
    own = {name: f"fleet{fleet}-{row[name]}" for name in names if name in row}
    return {**row, **own, **({"connection": row["connection"] + 1000 * fleet} if "connection" in row else {})}


def _hex(rng: random.Random) -> str:
    return f"{rng.getrandbits(64):016x}"


def production(rng: random.Random, routers: int = 3, days: int = 5) -> Journal:
    """Minutes, days and sketches of message routers, and a little of another server."""
    journal: Journal = {
        name: [] for name in ("p_counters", "p_gauges", "p_day", "p_sketches", "p_day_sketches", "p_boots")
    }
    for number in range(routers):
        start = FIRST_S + rng.randrange(DAY_S // 60) * 60
        for _ in range(rng.randint(1, 2)):
            start = _boot(rng, journal, f"r{number}", "smp", start, days)
    _boot(rng, journal, "other", "ntf", FIRST_S, 1)
    return journal


def _boot(rng: random.Random, journal: Journal, router: str, role: str, start: int, days: int) -> int:
    """One life of a process; when it ended."""
    boot, minute = _hex(rng), start
    last = FIRST_S + days * DAY_S - 60
    active = datasketches.hll_sketch(12, datasketches.HLL_8)
    about = minute // DAY_S * DAY_S
    written: dict[int, list[int]] = {}
    for seq in range(rng.randint(5, 25)):
        head = {"router": router, "role": role, "boot": boot, "seq": seq, "minute_s": minute}
        written.setdefault(minute // DAY_S * DAY_S, []).append(minute)
        names = {*rng.sample(COUNTERS, 5), *BALANCE} if rng.random() < 0.8 else set()
        journal["p_counters"] += [
            {**head, "name": name, "value": rng.randint(0, 50)} for name in sorted(names)
        ]
        journal["p_gauges"] += [
            {**head, "name": name, "value": float(rng.randint(0, 10_000))}
            for name in sorted({*DAILY_GAUGES.values()})
        ]
        if minute // DAY_S * DAY_S != about:
            about = minute // DAY_S * DAY_S
            active = datasketches.hll_sketch(12, datasketches.HLL_8)
        for _ in range(rng.choice((3, 60, 2_000))):
            active.update(f"{router} {rng.randrange(5_000)}")
        name = rng.choice(("queues", "queues_notify"))
        sketch = active.serialize_compact()
        journal["p_sketches"].append({**head, "name": name, "day_s": about, "sketch": sketch})
        minute += 60 * rng.choice((1, 30, 300, 900))
        if minute > last:
            break
    _days(rng, journal, {"router": router, "role": role, "boot": boot}, written)
    return min(minute, last)


def _days(rng: random.Random, journal: Journal, head: Row, written: dict[int, list[int]]) -> None:
    """Rows of whole days, for some days; of some of these the minutes are gone."""
    for day_s, minutes in written.items():
        if rng.random() < 0.5:
            continue
        gone = rng.random() < 0.5
        for name in (*BALANCE, *rng.sample(COUNTERS, 3)):
            row = {
                **head,
                "day_s": day_s,
                "kind": "counter",
                "name": name,
                "value": float(rng.randint(0, 900)),
            }
            journal["p_day"].append({**row, "minutes": len(minutes), "last_minute_s": minutes[-1]})
        for name in sorted({*DAILY_GAUGES.values()}):
            row = {**head, "day_s": day_s, "kind": "gauge", "name": name, "value": float(rng.randint(0, 900))}
            journal["p_day"].append({**row, "minutes": len(minutes), "last_minute_s": minutes[-1]})
        sketches = [
            row for row in journal["p_sketches"] if row["boot"] == head["boot"] and row["day_s"] == day_s
        ]
        if sketches:
            last = sketches[-1]
            journal["p_day_sketches"].append(
                {**head, "day_s": day_s, "name": last["name"], "sketch": last["sketch"]}
            )
        if gone:
            for table in ("p_counters", "p_gauges", "p_sketches"):
                journal[table] = [
                    row
                    for row in journal[table]
                    if row["boot"] != head["boot"] or row["minute_s"] // DAY_S * DAY_S != day_s
                ]
    unique = {(row["boot"], row["day_s"], row["kind"], row["name"]): row for row in journal["p_day"]}
    journal["p_day"] = list(unique.values())


def lanes(queue_id: bytes) -> tuple[int, int]:
    digest = hashlib.md5(queue_id, usedforsecurity=False).digest()
    return (
        int.from_bytes(digest[:8], "big", signed=True),
        int.from_bytes(digest[8:], "big", signed=True),
    )


def xor_of(ids: list[bytes]) -> tuple[int, int]:
    high = low = 0
    for queue_id in ids:
        one, other = lanes(queue_id)
        high ^= one
        low ^= other
    return high, low


def queue_rows(
    head: Row, role: str, service: bytes | None, ids: list[bytes], rng: random.Random
) -> list[Row]:
    found = []
    for queue_id in ids:
        high, low = lanes(queue_id)
        waiting = rng.choice((0, 0, 1, 5))
        row = {**head, "role": role, "queue_id": queue_id, "h_hi": high, "h_lo": low, "service_id": service}
        mine = {
            "status": "active",
            "mode": "messaging",
            "secured": True,
            "waiting": waiting,
            "oldest_s": rng.randrange(10**6) if waiting else None,
            "full": rng.random() < 0.1,
            "updated_day_s": FIRST_S,
        }
        if head["side"] == "subscriber":
            mine = dict.fromkeys(mine, None)
        found.append({**row, **mine})
    return found


def state(rng: random.Random, routers: int = 2, days: int = 2, queues: int = 40) -> Journal:
    """Exports of routers and of who subscribes through them, with and without drift."""
    journal: Journal = {"s_queues": [], "s_service_claims": [], "s_snapshot": []}
    for number in range(routers):
        for day in range(days):
            for _ in range(rng.randint(1, 2)):
                at_s = FIRST_S + day * DAY_S + rng.randrange(DAY_S)
                _exports(rng, journal, f"r{number}", at_s, queues)
    return journal


def _exports(rng: random.Random, journal: Journal, router: str, at_s: int, queues: int) -> None:
    services: list[bytes | None] = [rng.randbytes(24) for _ in range(3)]
    sets: dict[tuple[str, bytes | None], list[bytes]] = {
        (role, service): [rng.randbytes(24) for _ in range(rng.randint(1, queues))]
        for role in ("messaging", "notifier")
        for service in [*services, None]
        if rng.random() < 0.8
    }
    ours = {of: list(ids) for of, ids in sets.items()}
    theirs = {of: list(ids) for of, ids in sets.items() if of[1] is not None}
    for of, ids in theirs.items():
        kind = rng.choice(("same", "same", "unassociated", "gone", "unclaimed", "all"))
        if kind in ("unassociated", "all"):
            free = ours.setdefault((of[0], None), [])
            taken = ours[of].pop()
            free.append(taken)
        if kind in ("gone", "all"):
            ids.append(rng.randbytes(24))
        if kind in ("unclaimed", "all"):
            ours[of].append(rng.randbytes(24))
    _export(rng, journal, {"router": router, "side": "router", "at_s": at_s}, ours)
    shared = [{}, *({of: ids for of, ids in theirs.items() if of[1] == service} for service in services)]
    kinds = [[theirs], [theirs], shared, shared[:2], [{**shared[1], **shared[2]}, shared[3]], []]
    for of_subscriber in rng.choice(kinds):  # one of all services, or several, of which some share nothing
        later = min(at_s + rng.randrange(600), at_s // DAY_S * DAY_S + DAY_S - 1)
        _export(rng, journal, {"router": router, "side": "subscriber", "at_s": later}, of_subscriber)


def _export(
    rng: random.Random, journal: Journal, head: Row, sets: dict[tuple[str, bytes | None], list[bytes]]
) -> None:
    head = {"snapshot": _hex(rng), **head}
    rows: list[Row] = []
    for (role, service), ids in sets.items():
        rows += queue_rows(head, role, service, ids, rng)
        if service is not None and rng.random() < 0.9:
            high, low = xor_of(ids)
            wrong = rng.random() < 0.1
            claim = {**head, "service_id": service, "role": role, "count": len(ids)}
            journal["s_service_claims"].append({**claim, "h_hi": high ^ wrong, "h_lo": low})
    journal["s_queues"] += rows
    missing = rng.random() < 0.15
    manifest = {**head, "table": "s_queues", "rows": len(rows) + missing}
    journal["s_snapshot"].append({**manifest, "finished_s": head["at_s"] + 60, "online": rng.random() < 0.5})


def messages(rng: random.Random, routers: int = 3, count: int = 400, days: int = 3) -> Journal:
    """Events of canaries and of a load test, some of them lost, some late, some after midnight."""
    rows: list[Row] = []
    boots = [_hex(rng) for _ in range(2)]
    numbers = dict.fromkeys(boots, 0)
    for number in range(count):
        pair = {"from_router": f"r{rng.randrange(routers)}", "to_router": f"r{rng.randrange(routers)}"}
        sent = (FIRST_S + rng.randrange(days * DAY_S)) * 10**6 + rng.randrange(10**6)
        message = {**pair, "connection": rng.randrange(50), "number": number, "size": 100}
        boot = boots[number * 2 // count]
        for event, time_us, integrity in _events(rng, sent):
            head = {"router": "canary", "role": "canary" if number % 5 else "load", "boot": boot}
            event_row = {"time_us": time_us, "event": event, "integrity": integrity}
            rows.append({**head, "seq": numbers[boot], **message, **event_row})
            numbers[boot] += 1
    return {"l_messages": rows}


def _events(rng: random.Random, sent: int) -> list[tuple[str, int, str]]:
    fate = rng.choice(("acked",) * 12 + ("refused", "lost", "pending", "duplicate", "late", "slow"))
    step = 20 * 3600 * 10**6 if fate == "slow" else 50_000
    accepted = sent + rng.randrange(1, step)
    delivered = accepted + rng.randrange(1, step // 8)
    acked = delivered + rng.randrange(1, step // 16)
    all_events = {
        "refused": [("sent", sent, ""), ("refused", accepted, "")],
        "lost": [("sent", sent, ""), ("accepted", accepted, ""), ("lost", sent + 60_000_000, "")],
        "pending": [("sent", sent, ""), ("accepted", accepted, "")],
        "late": [("sent", sent, ""), ("accepted", accepted, ""), ("acked", sent + 30 * 3600 * 10**6, "ok")],
    }
    whole = [
        ("sent", sent, ""),
        ("accepted", accepted, ""),
        ("delivered", delivered, "ok"),
        ("acked", acked, ""),
    ]
    if fate == "duplicate":
        whole.append(("duplicate", acked + 5, "duplicate"))
    events = all_events.get(fate, whole)
    lost_records = rng.random() < 0.05
    return events[1:] if lost_records and len(events) > 1 else events


def migrations(rng: random.Random, routers: int = 3) -> Journal:
    """Imports that went well or badly, and for some an export of what is stored."""
    journal: Journal = {"s_migration": [], "s_queues": [], "s_snapshot": []}
    for number in range(routers):
        at_s = FIRST_S + rng.randrange(2 * DAY_S)
        head = {"migration": _hex(rng), "router": f"r{number}", "at_s": at_s}
        sets = {
            (role, service): [rng.randbytes(24) for _ in range(rng.randint(1, 9))]
            for role in ("messaging", "notifier")
            for service in (None, rng.randbytes(24), rng.randbytes(24))
        }
        for side in ("source", "result"):
            _certificate(rng, journal, {**head, "side": side}, sets)
        if rng.random() < 0.7:
            later = at_s + rng.choice((60, 3600, 2 * DAY_S))
            if rng.random() < 0.3:
                sets["messaging", None] = sets["messaging", None][1:]
            export: Journal = {"s_queues": [], "s_service_claims": [], "s_snapshot": []}
            _export(rng, export, {"router": f"r{number}", "side": "router", "at_s": later}, sets)
            journal["s_queues"] += export["s_queues"]
            journal["s_snapshot"] += export["s_snapshot"]
    return journal


def _certificate(
    rng: random.Random, journal: Journal, head: Row, sets: dict[tuple[str, bytes | None], list[bytes]]
) -> None:
    lines: list[tuple[str, bytes | None, str | None, list[bytes]]] = []
    for role, name in (("messaging", "queues"), ("notifier", "notifiers")):
        lines.append((name, None, None, [i for (r, _), ids in sets.items() if r == role for i in ids]))
    lines += [("service", service, of, ids) for (of, service), ids in sets.items() if service is not None]
    lines.append(("messages", None, None, []))
    for name, service, by, ids in lines:
        if rng.random() < 0.05:
            continue
        high, low = (value % 2**64 for value in xor_of(ids))
        row = {**head, "name": name, "service_id": service, "role": by, "count": len(ids)}
        wrong = rng.random() < 0.1
        content = hashlib.sha256(name.encode() + bytes([wrong])).hexdigest()
        row |= {"ids_hash": f"{high:016x}{low:016x}" if ids else None, "content_hash": content}
        journal["s_migration"].append(row)
