"""Files of exactly the given number of rows, with silver's columns: the input of the measured functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from blindpost.journal.schema import (
    INTEGRITY,
    L_MESSAGES,
    MESSAGE_EVENTS,
    P_COUNTERS,
    S_QUEUES,
    SERVICE_ROLES,
    Table,
)
from blindpost.pipeline.generate.files import Journal
from blindpost.pipeline.generate.plan import DAY_S, Plan, start_s
from blindpost.pipeline.generate.rows import build, same, words
from blindpost.pipeline.generate.state import binary, new_ids

SERVICES, ROUTERS, NAMES = 20, 20, 60
FILE_ROWS = 2_000_000 // NAMES * NAMES
"""A file of the journal has about this many at most: compaction stops at 64 MB. A minute is in one file."""
Progress = Callable[[int, int], None]


def write(plan: Plan, table: Table, rows: int, folder: Path, progress: Progress) -> Path:
    """The table's folder, with this many rows in files of the usual size; existing files are reused."""
    journal = Journal(folder / f"{table.name}-{rows}")
    made = journal.root / table.tier.value / table.name
    if made.exists():
        progress(rows, rows)
        return made
    make = {"s_queues": _queues, "p_counters": _counters, "l_messages": _messages}[table.name]
    for first in range(0, rows, FILE_ROWS):
        count = min(FILE_ROWS, rows - first)
        journal.put(table, plan.first, "bench", _with_day(table, make(plan, first, count)), f"{first:012d}")
        progress(first + count, rows)
    return made


def journal(plan: Plan, rows: int, folder: Path) -> Path:
    """Counters as servers write them: a journal's folder, in which no two files share a record."""
    made = Journal(folder)
    for first in range(0, rows, FILE_ROWS):
        found = _counters(plan, first, min(FILE_ROWS, rows - first))
        made.put(P_COUNTERS, plan.first, "bench", found, f"{first:012d}")
    return made.root


def end_s(plan: Plan, rows: int) -> int:
    """When the last day of such a journal is over."""
    days = (rows - 1) // NAMES // (DAY_S // 60) // ROUTERS + 1
    return start_s(plan.first) + days * DAY_S


def fleet(plan: Plan, routers: int, folder: Path) -> Path:
    """A day of many routers, a file each, with one minute of every hour: what counts is how many they are."""
    made = Journal(folder)
    rng = plan.rng("bench", "fleet")
    rows = 24 * NAMES
    hour = np.arange(rows) // NAMES
    names = words([f"counter{place:02d}" for place in range(NAMES)], np.arange(rows) % NAMES)
    for number in range(routers):
        router = f"smp-{number:05d}"
        found = build(
            P_COUNTERS,
            {
                "router": same(router, rows),
                "role": same("smp", rows),
                "boot": same(plan.hex_id("bench", router), rows),
                "seq": hour,
                "minute_s": start_s(plan.first) + hour * 3_600,
                "name": names,
                "value": rng.poisson(40, rows),
            },
        )
        made.put(P_COUNTERS, plan.first, f"{router}-smp", found)
    return made.root


def _with_day(table: Table, rows: pa.Table) -> pa.Table:
    unit_s = 1_000_000 if table.time.endswith("_us") else 1
    day = rows[table.time].to_numpy() // (DAY_S * unit_s)
    return rows.append_column("day", pa.array(day.astype(np.int32), pa.date32()))


def _queues(plan: Plan, first: int, count: int) -> pa.Table:
    """Queues of many services. Their hashes are random: nothing here compares them with the ids."""
    rng = plan.rng("bench", S_QUEUES.name, first)
    services = new_ids(plan.rng("bench services"), SERVICES)
    service = rng.integers(-1, SERVICES, count)
    service_id = pa.DictionaryArray.from_arrays(
        pa.array(service.clip(0).astype(np.int32), mask=service < 0), binary(services)
    ).cast(pa.binary())
    at_s = start_s(plan.first)
    return build(
        S_QUEUES,
        {
            "snapshot": same("0" * 16, count),
            "router": same("smp-01", count),
            "side": same("router", count),
            "at_s": np.full(count, at_s),
            "role": words(SERVICE_ROLES, (rng.random(count) < 0.2).astype(np.int32)),
            "queue_id": binary(new_ids(rng, count)),
            "h_hi": rng.integers(-(2**63), 2**63 - 1, count),
            "h_lo": rng.integers(-(2**63), 2**63 - 1, count),
            "service_id": service_id,
            "status": words(("active", "off", "blocked"), rng.choice(3, count, p=(0.98, 0.015, 0.005))),
            "mode": words(("messaging", "contact"), rng.choice(2, count, p=(0.9, 0.1))),
            "secured": rng.random(count) < 0.8,
            "waiting": np.where(rng.random(count) < 0.05, 1, 0).astype(np.int32),
            "full": np.zeros(count, bool),
        },
    )


def _counters(plan: Plan, first: int, count: int) -> pa.Table:
    """Minute after minute of one router after another, sixty counters each."""
    rng = plan.rng("bench", P_COUNTERS.name, first)
    number = np.arange(first, first + count)
    minute = number // NAMES
    router = minute // (DAY_S // 60) % ROUTERS
    seq = minute % (DAY_S // 60) + minute // (DAY_S // 60) // ROUTERS * (DAY_S // 60)
    return build(
        P_COUNTERS,
        {
            "router": words(plan.smp[:ROUTERS], router),
            "role": same("smp", count),
            "boot": words([plan.hex_id("bench", name) for name in plan.smp[:ROUTERS]], router),
            "seq": seq,
            "minute_s": start_s(plan.first) + seq * 60,
            "name": words([f"counter{place:02d}" for place in range(NAMES)], number % NAMES),
            "value": rng.poisson(40, count),
        },
    )


def _messages(plan: Plan, first: int, count: int) -> pa.Table:
    """Four events of each message, as one canary writes them; some messages never come."""
    number = np.arange(first, first + count)
    message, event = number // 4, number % 4
    came = message % 10_007 != 0
    kinds = np.array([MESSAGE_EVENTS.index(name) for name in ("sent", "accepted", "delivered", "acked")])
    event = np.where((event >= 2) & ~came, MESSAGE_EVENTS.index("accepted"), kinds[event])
    pair = message % (ROUTERS * ROUTERS)
    return build(
        L_MESSAGES,
        {
            "router": same("canary-01", count),
            "role": same("canary", count),
            "boot": same("0" * 16, count),
            "seq": number,
            "time_us": start_s(plan.first) * 1_000_000 + message % 80_000 * 1_000_000 + number % 4 * 20_000,
            "from_router": words(plan.smp[:ROUTERS], pair // ROUTERS),
            "to_router": words(plan.smp[:ROUTERS], pair % ROUTERS),
            "connection": pair + 1,
            "number": message // (ROUTERS * ROUTERS),
            "event": words(MESSAGE_EVENTS, event),
            "integrity": words(INTEGRITY, np.zeros(count, np.int32)),
            "size": np.full(count, 2_000, np.int32),
        },
    )
