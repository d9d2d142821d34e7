"""What the pipeline's tables must hold, computed again in plain Python from the rows of a journal."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import datasketches

from blindpost.journal.schema import DAILY_COLUMNS, Source
from tests.support.pipeline.fleet_oracles import judged
from tests.support.pipeline.lakes import Journal, Row, in_order, once


def day_of(seconds: float) -> date:
    return datetime.fromtimestamp(seconds, UTC).date()


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return found


def percentile(values: list[int], share: float) -> float | None:
    """With a straight line between neighbours."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def delivery_slo(journal: Journal) -> list[Row]:
    hours: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for message in judged(journal):
        hour = message["sent_us"] // 3_600_000_000 * 3600
        pair = (message[name] for name in ("role", "from_router", "to_router"))
        hours[(day_of(hour), hour, *pair)].append(message)
    return in_order(_slo_row(key, found) for key, found in hours.items())


def _slo_row(key: tuple[Any, ...], found: list[Row]) -> Row:
    times = [message["first"] for message in found]
    row: Row = dict(zip(("day", "hour_s", "role", "from_router", "to_router"), key, strict=True))
    row |= {"sent": len(found), "accepted": sum(message["accepted"] for message in found)}
    row |= {
        fate: sum(message["fate"] == fate for message in found)
        for fate in ("delivered", "refused", "lost", "pending")
    }
    row["acked"] = sum("acked" in first for first in times)
    row["late"] = sum(first.get("delivered", first["sent"]) - first["sent"] > 10**6 for first in times)
    row["duplicates"] = sum(max(message["came"] - 1, 0) for message in found)
    spans = {"accept": ("sent", "accepted"), "deliver": ("sent", "delivered"), "ack": ("delivered", "acked")}
    for span, (start, end) in spans.items():
        taken = [first[end] - first[start] for first in times if start in first and end in first]
        for which, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            row[f"{span}_{which}_us"] = percentile(taken, share)
        row[f"{span}_max_us"] = max(taken, default=None)
    return row


def complete_exports(journal: Journal) -> list[Row]:
    """Manifests of the exports of which every queue is there."""
    queues = grouped(once("s_queues", journal["s_queues"]), "snapshot", "router", "side")
    return [
        row
        for row in once("s_snapshot", journal["s_snapshot"])
        if row["table"] == "s_queues"
        and len(queues.get((row["snapshot"], row["router"], row["side"]), [])) == row["rows"]
    ]


def _last_exports(journal: Journal) -> dict[tuple[date, str, bytes], dict[str, Row]]:
    """The last export of a router, and of a subscriber, about each service, by day and router."""
    in_order_of_time = sorted(complete_exports(journal), key=lambda row: (row["at_s"], row["snapshot"]))
    by_router = {
        (day_of(row["at_s"]), row["router"]): row for row in in_order_of_time if row["side"] == "router"
    }
    found: dict[tuple[date, str, bytes], dict[str, Row]] = defaultdict(dict)
    for row in in_order_of_time:
        day, router = day_of(row["at_s"]), row["router"]
        if row["side"] == "subscriber":
            for service in _services(journal, row):
                found[day, router, service]["subscriber"] = row
        elif row is by_router[day, router]:
            for service in _services(journal, row):
                found[day, router, service]["router"] = row
    for (day, router, _), sides in found.items():
        if (day, router) in by_router:
            sides["router"] = by_router[day, router]
    return found


def _services(journal: Journal, export: Row) -> set[bytes]:
    """Those that an export lists queues of, or claims."""
    return {service for _, service in (*_sets(journal, export), *_claims(journal, export)) if service}


def _sets(journal: Journal, export: Row | None) -> dict[tuple[str, bytes | None], set[bytes]]:
    found: dict[tuple[str, bytes | None], set[bytes]] = defaultdict(set)
    for row in once("s_queues", journal["s_queues"]):
        if export is not None and row["snapshot"] == export["snapshot"]:
            found[row["role"], row["service_id"]].add(row["queue_id"])
    return found


def _claims(journal: Journal, export: Row | None) -> dict[tuple[str, bytes | None], tuple[int, int, int]]:
    return {
        (row["role"], row["service_id"]): (row["count"], row["h_hi"], row["h_lo"])
        for row in once("s_service_claims", journal["s_service_claims"])
        if export is not None and row["snapshot"] == export["snapshot"]
    }


def _summed(ids: set[bytes]) -> tuple[int, int, int]:
    high = low = 0
    for queue_id in ids:
        digest = hashlib.md5(queue_id, usedforsecurity=False).digest()
        high ^= int.from_bytes(digest[:8], "big", signed=True)
        low ^= int.from_bytes(digest[8:], "big", signed=True)
    return len(ids), high, low


def drift_queues(journal: Journal) -> list[Row]:
    found: list[Row] = []
    for (day, router, about), sides in _last_exports(journal).items():
        if len(sides) < 2:
            continue
        ours, theirs = _sets(journal, sides["router"]), _sets(journal, sides["subscriber"])
        known = {(role, queue) for (role, _), ids in ours.items() for queue in ids}
        for role, service in {of for of in {*ours, *theirs} if of[1] == about}:
            head = {"day": day, "router": router, "service_id": service, "role": role}
            here, there = ours.get((role, service), set()), theirs.get((role, service), set())
            for queue in here - there:
                found.append({**head, "queue_id": queue, "problem": "unclaimed", "repair": "review"})
            for queue in there - here:
                subscribe = "SUB" if role == "messaging" else "NSUB"
                problem, repair = (
                    ("unassociated", subscribe) if (role, queue) in known else ("gone", "forget")
                )
                found.append({**head, "queue_id": queue, "problem": problem, "repair": repair})
    return in_order(found)


def service_drift(journal: Journal) -> list[Row]:
    """Everything but how many lanes were drawn."""
    different = grouped(drift_queues(journal), "day", "router", "service_id", "role")
    found: list[Row] = []
    exports = _last_exports(journal)
    for (day, router, about), sides in exports.items():
        stores = {name: _sets(journal, sides.get(name)) for name in ("router", "subscriber")}
        claims = {name: _claims(journal, sides.get(name)) for name in ("router", "subscriber")}
        named = [*stores["router"], *stores["subscriber"], *claims["router"], *claims["subscriber"]]
        all_sets = {of for of in named if of[1] == about}
        others = sorted(service for *of, service in exports if of == [day, router])
        ordinals = {service: place for place, service in enumerate(others, 1)}
        for role, service in all_sets:
            of = role, service
            true = _summed(stores["router"].get(of, set()))
            agrees = {
                name: claims[name][of] == true if "router" in sides and of in claims[name] else None
                for name in claims
            }
            both = len(sides) == 2
            problems = different.get((day, router, service, role), [])
            row: Row = {"day": day, "router": router, "service": ordinals[service or b""], "role": role}
            for name in ("router", "subscriber"):
                row[f"{name}_stored"] = len(stores[name].get(of, set())) if name in sides else None
                row[f"{name}_claimed"] = claims[name][of][0] if of in claims[name] else None
                row[f"{name}_agrees"] = agrees[name]
            for problem in ("unassociated", "gone", "unclaimed"):
                row[problem] = sum(queue["problem"] == problem for queue in problems) if both else None
            row["lanes_wrong"] = 0
            row["online"] = any(export["online"] for export in sides.values())
            row["verdict"] = _drift_verdict(agrees, both, bool(problems))
            found.append(row)
    return in_order(found)


def _drift_verdict(agrees: dict[str, bool | None], both: bool, problems: bool) -> str:
    if agrees["router"] is False:
        return "router's claim wrong"
    if problems or agrees["subscriber"] is False:
        return "drift"
    return "agrees" if both or agrees["subscriber"] else "one side only"


def migration_proof(journal: Journal) -> list[Row]:
    rows = once("s_migration", journal["s_migration"])
    lines = grouped(rows, "router", "migration", "name", "service_id", "role")
    began = {
        key: min(row["at_s"] for row in found) for key, found in grouped(rows, "router", "migration").items()
    }
    services = {
        key: {service: place for place, service in enumerate(sorted({*map(_service, found)} - {None}), 1)}
        for key, found in grouped(rows, "router", "migration").items()
    }
    found: list[Row] = []
    for (router, migration, name, service, role), both in lines.items():
        sides = {row["side"]: row for row in both}
        source, result = sides.get("source"), sides.get("result")
        there = source is not None and result is not None
        counts = there and source["count"] == result["count"] if source and result else False
        hashes = (
            all(source[name] == result[name] for name in ("ids_hash", "content_hash"))
            if source and result
            else False
        )
        stored = _stored_set(journal, router, began[router, migration], name, service, role)
        found.append(
            {
                "day": day_of(both[0]["at_s"]),
                "router": router,
                "migration": migration,
                "name": name,
                "service": services[router, migration].get(service),
                "role": role,
                "source_count": source and source["count"],
                "result_count": result and result["count"],
                "counts_equal": counts,
                "hashes_equal": hashes,
                "verdict": "only in the source"
                if result is None
                else "only in the result"
                if source is None
                else "equal"
                if counts and hashes
                else "different",
                "stored_count": None if stored is None else stored[0],
                "stored_agrees": None
                if stored is None or result is None or result["ids_hash"] is None
                else (stored[0], stored[1]) == (result["count"], result["ids_hash"]),
                "stored_online": None if stored is None else stored[2],
            }
        )
    return in_order(found)


def _service(row: Row) -> Any:
    return row["service_id"]


def _stored_set(
    journal: Journal, router: str, began: int, name: str, service: bytes | None, role: str | None
) -> tuple[int, str, bool] | None:
    exports = [
        row
        for row in complete_exports(journal)
        if row["router"] == router and row["side"] == "router" and began <= row["at_s"] < began + 86_400
    ]
    wanted = {"queues": "messaging", "notifiers": "notifier"}.get(name, role)
    if not exports or name not in ("queues", "notifiers", "service"):
        return None
    first = min(exports, key=lambda row: (row["at_s"], row["snapshot"]))
    sets = _sets(journal, first)
    chosen = [
        ids for (of, owner), ids in sets.items() if of == wanted and (name != "service" or owner == service)
    ]
    if not chosen:
        return None
    count, high, low = _summed(set().union(*chosen))
    return count, f"{high % 2**64:016x}{low % 2**64:016x}", first["online"]


def router_backlog(journal: Journal) -> list[Row]:
    names = {
        "accepted": "msgSent",
        "acked": "msgRecv",
        "expired": "msgExpired",
        "refused_full": "msgSentQuota",
        "queues_deleted": "qDeletedAll",
    }
    levels: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in once("p_gauges", journal["p_gauges"]):
        if row["role"] == "smp" and row["name"] == "messages":
            levels[row["router"], row["minute_s"] // 3600 * 3600].append(row)
    sums: dict[tuple[str, int, str], int] = defaultdict(int)
    for row in once("p_counters", journal["p_counters"]):
        if row["role"] == "smp":
            sums[row["router"], row["minute_s"] // 3600 * 3600, row["name"]] += row["value"]
    found: list[Row] = []
    before: dict[str, Row] = {}
    for (router, hour), rows in sorted(levels.items()):
        last = max(rows, key=lambda row: (row["minute_s"], row["boot"], row["seq"]))
        row = {"day": day_of(hour), "router": router, "hour_s": hour}
        row |= {name: sums[router, hour, meter] for name, meter in names.items()}
        earlier = before.get(router)
        known = earlier is not None and hour - earlier["minute_s"] <= 86_400
        row["backlog_before"] = int(earlier["value"]) if known and earlier is not None else None
        row["backlog"] = int(last["value"])
        row["backlog_max"] = int(max(one["value"] for one in rows))
        row["deleted"] = (
            row["backlog_before"] + row["accepted"] - row["acked"] - row["expired"] - row["backlog"]
            if known
            else None
        )
        row["minutes"] = len({one["minute_s"] for one in rows})
        row["boots"] = len({one["boot"] for one in rows})
        row |= _undelivered(journal, router, hour)
        before[router] = last
        found.append(row)
    return in_order(found)


def _undelivered(journal: Journal, router: str, hour: int) -> Row:
    exports = [
        row
        for row in complete_exports(journal)
        if row["router"] == router and row["side"] == "router" and row["at_s"] // 3600 * 3600 == hour
    ]
    nothing = {"waiting_queues": None, "full_queues": None, "oldest_s": None}
    if not exports:
        return nothing
    last = max(exports, key=lambda row: (row["at_s"], row["snapshot"]))
    queues = [
        row
        for row in once("s_queues", journal["s_queues"])
        if row["snapshot"] == last["snapshot"] and row["role"] == "messaging"
    ]
    if not queues:
        return nothing
    return {
        "waiting_queues": sum(bool(row["waiting"]) for row in queues),
        "full_queues": sum(bool(row["full"]) for row in queues),
        "oldest_s": max((row["oldest_s"] for row in queues if row["oldest_s"] is not None), default=None),
    }


def daily_statistics(journal: Journal) -> list[Row]:
    rows = {
        name: [row for row in once(name, journal[name]) if row["role"] == "smp"]
        for name in ("p_counters", "p_gauges", "p_day", "p_sketches", "p_day_sketches")
    }
    minutes: dict[tuple[date, str, str], set[int]] = defaultdict(set)
    kept: dict[tuple[date, str, str], int] = defaultdict(int)
    for row in rows["p_gauges"]:
        minutes[day_of(row["minute_s"]), row["router"], row["boot"]].add(row["minute_s"])
    for row in rows["p_day"]:
        of = day_of(row["day_s"]), row["router"], row["boot"]
        kept[of] = max(kept[of], row["minutes"])
    boots = {*minutes, *kept}
    from_day = {of for of in boots if kept.get(of, 0) > len(minutes.get(of, ()))}
    sums: dict[tuple[date, str, str], int] = defaultdict(int)
    levels: dict[tuple[date, str, str], list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows["p_counters"]:
        of = day_of(row["minute_s"]), row["router"], row["boot"]
        if of in boots - from_day:
            sums[of[0], of[1], row["name"]] += row["value"]
    for row in rows["p_gauges"]:
        of = day_of(row["minute_s"]), row["router"], row["boot"]
        if of not in from_day:
            levels[of[0], of[1], row["name"]].append((row["minute_s"], row["boot"], row["seq"], row["value"]))
    for row in rows["p_day"]:
        of = day_of(row["day_s"]), row["router"], row["boot"]
        if of in from_day and row["kind"] == "counter":
            sums[of[0], of[1], row["name"]] += int(row["value"])
        elif of in from_day:
            levels[of[0], of[1], row["name"]].append((row["last_minute_s"], row["boot"], 0, row["value"]))
    sketches = _sketches(rows["p_sketches"], rows["p_day_sketches"])
    found: list[Row] = []
    for day, router in {of[:2] for of in boots}:
        row = {"day": day, "router": router}

        def active(name: str, first: date, day: date = day, router: str = router) -> int:
            return _estimate(
                sketch for of, sketch in sketches.get((router, name), []) if first <= of[0] <= day
            )

        for column in DAILY_COLUMNS:
            row[column.name.replace(" ", "_")] = _cell(column, day, router, sums, levels, active)
        for sketch, begin in (("queues", "active_queues"), ("queues_notify", "active_queues_ntf")):
            for days in (7, 30):
                row[f"{begin}_{days}d"] = active(sketch, day - timedelta(days=days - 1))
        row["queues_blocked"] = sums[day, router, "qBlocked"]
        for name in ("disk_free_bytes", "disk_size_bytes"):
            last = max(levels[day, router, name], default=None)
            row[name] = None if last is None else int(last[-1])
        of_day = [of for of in boots if of[:2] == (day, router)]
        written = sum(max(len(minutes.get(of, ())), kept.get(of, 0)) for of in of_day)
        seen = [minutes.get(of, set()) for of in of_day]
        row["minutes_twice"] = sum(map(len, seen)) - len(set().union(*seen))
        row["minutes"] = min(written - row["minutes_twice"], 1_440)
        row["boots"] = len(of_day)
        found.append(row)
    return in_order(found)


def _cell(
    column: Any,
    day: date,
    router: str,
    sums: dict[tuple[date, str, str], int],
    levels: dict[tuple[date, str, str], list[tuple[Any, ...]]],
    active: Callable[[str, date], int],
) -> int | None:
    if column.source is Source.COUNTER:
        return sums[day, router, column.metric]
    if column.source is Source.GAUGE:
        return int(max(levels[day, router, column.metric], default=(0,))[-1])
    if column.source is Source.ACTIVE:
        if column.name.endswith("day"):
            return active(column.metric, day)
        if column.name.endswith("week"):
            return active(column.metric, day - timedelta(days=6)) if day.isoweekday() == 7 else None
        ends = (day + timedelta(days=1)).day == 1
        return active(column.metric, day.replace(day=1)) if ends else None
    return 0


def _sketches(
    hours: list[Row], days: list[Row]
) -> dict[tuple[str, str], list[tuple[tuple[date, str], bytes]]]:
    last: dict[tuple[str, str, date, str], tuple[int, int, bytes]] = {}
    for row in hours:
        of = row["router"], row["name"], day_of(row["day_s"]), row["boot"]
        last[of] = max(last.get(of, (0, 0, b"")), (row["minute_s"], row["seq"], row["sketch"]))
    kept = {(*of, found[2]) for of, found in last.items()}
    kept |= {(row["router"], row["name"], day_of(row["day_s"]), row["boot"], row["sketch"]) for row in days}
    result: dict[tuple[str, str], list[tuple[tuple[date, str], bytes]]] = defaultdict(list)
    for router, name, day, boot, sketch in sorted(kept):
        result[router, name].append(((day, boot), sketch))
    return result


def _estimate(sketches: Iterable[bytes]) -> int:
    """Of the union, made one after another."""
    united: Any = None
    for content in sketches:
        sketch = datasketches.hll_sketch.deserialize(content)
        if united is None:
            united = sketch
            continue
        union = datasketches.hll_union(12)
        union.update(united)
        union.update(sketch)
        united = union.get_result(datasketches.HLL_8)
    return 0 if united is None else round(united.get_estimate())
