"""Everything together: a fleet's journal in a folder, and the truth about it in a file beside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa

from blindpost.journal.schema import P_BOOTS, P_COUNTERS, P_DAY, P_GAUGES, S_MIGRATION, Table
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.generate import days, ds, ntf, smp, state
from blindpost.pipeline.generate.canary import CANARY, Canary, NotificationCanary
from blindpost.pipeline.generate.faults import Faults, choose
from blindpost.pipeline.generate.files import Journal, Spoiled, spoil
from blindpost.pipeline.generate.plan import Boot, Minutes, Plan, boots, minutes

JOURNAL, TRUTH, LATE = "journal", "truth.json", "late"
ROUTERS_MIN = 2
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Truth:
    """What a pipeline must find; written down while it is made."""

    counters: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """Server, day, name: the sum."""
    gauges: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """Server, day, name: the last level."""
    tables: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """Table of several words, day, words: the sum."""
    drift: list[dict[str, Any]] = field(default_factory=list)

    def count(self, table: Table, server: str, day: date, rows: pa.Table) -> None:
        """Add up what was written."""
        when = day.isoformat()
        if table is P_COUNTERS:
            summed = rows.group_by("name").aggregate([("value", "sum")]).to_pylist()
            self.counters.setdefault(server, {})[when] = {row["name"]: row["value_sum"] for row in summed}
        elif table is P_GAUGES:
            last = rows.slice(max(len(rows) - 200, 0)).to_pylist()
            self.gauges.setdefault(server, {})[when] = {row["name"]: row["value"] for row in last}
        elif table.name in ("p_funnel", "p_token_transitions"):
            words = [
                name
                for name in ("state", "from_state", "to_state", "reason", "provider")
                if name in table.by_name
            ]
            summed = rows.group_by(words).aggregate([("value", "sum")]).to_pylist()
            found = self.tables.setdefault(table.name, {}).setdefault(when, {})
            for row in summed:
                key = "|".join([server, *(row[name] for name in words)])
                found[key] = found.get(key, 0) + row["value_sum"]


def generate(
    plan: Plan, folder: Path, progress: Progress, *, spoiled: bool = True, late: int = 0
) -> dict[str, Any]:
    """Write the journal below `folder`, and the truth about it; returns the truth."""
    if plan.routers < ROUTERS_MIN or plan.days < 1:
        raise PipelineError(f"a fleet has at least {ROUTERS_MIN} routers and one day.")
    if folder.exists() and any(folder.iterdir()):
        raise PipelineError(f"{folder}: the folder is not empty. Name a new one for the journal.")
    faults, journal, truth = choose(plan), Journal(folder / JOURNAL), Truth()
    canary = Canary(plan, faults)
    steps = _steps(plan, faults, journal, truth, canary)
    total = (plan.routers + len(plan.ntf) + len(plan.ds)) * plan.days + len(plan.lab_dates)
    for done, _ in enumerate(steps, start=1):
        progress(done, total)
    found = spoil(plan, journal.root, folder / LATE, late) if spoiled else Spoiled({}, [], [])
    facts = _facts(plan, faults, journal, truth, canary, found)
    (folder / TRUTH).write_text(json.dumps(facts, indent=1, default=str) + "\n")
    return facts


def _steps(plan: Plan, faults: Faults, journal: Journal, truth: Truth, canary: Canary) -> Iterator[None]:
    """Write one server's day after another."""
    runs = {
        server: boots(plan, server, role, faults.restarts_s.get(server, ()))
        for role, servers in (("smp", plan.smp), ("ntf", plan.ntf), ("ds", plan.ds))
        for server in servers
    }
    routers = {name: smp.Router.of(plan, name) for name in plan.smp}
    notified = [NotificationCanary(plan, faults, server) for server in plan.ntf]
    for number, day in enumerate(plan.dates):
        for server, known in runs.items():
            _server_day(plan, faults, journal, truth, routers.get(server), number, day, known)
            yield
        if day in plan.lab_dates:
            _lab_day(plan, faults, journal, truth, canary, notified, routers, day)
            yield


def _server_day(
    plan: Plan,
    faults: Faults,
    journal: Journal,
    truth: Truth,
    router: smp.Router | None,
    number: int,
    day: date,
    known: list[Boot],
) -> None:
    """Everything that one server writes on one day, always on."""
    there = minutes(known, day)
    rows: dict[str, tuple[Table, pa.Table]] = {P_BOOTS.name: (P_BOOTS, days.starts(there))}
    for table, found in _meters(plan, faults, router, there, day):
        rows[table.name] = (table, found)
    rows[P_DAY.name] = (P_DAY, days.sums(there, rows["p_counters"][1], rows["p_gauges"][1]))
    if router is not None:
        rows.update(
            {table.name: (table, found) for table, found in days.sketches(plan, there, number, router.weight)}
        )
    for table, found in rows.values():
        truth.count(table, there.server, day, found)
        journal.put_boots(table, day, there.server, there.role, found)


def _meters(
    plan: Plan, faults: Faults, router: smp.Router | None, there: Minutes, day: date
) -> Iterator[tuple[Table, pa.Table]]:
    if router is not None:
        return smp.day(plan, faults, router, there, day)
    return (ntf.day if there.role == "ntf" else ds.day)(plan, faults, there, day)


def _lab_day(
    plan: Plan,
    faults: Faults,
    journal: Journal,
    truth: Truth,
    canary: Canary,
    notified: list[NotificationCanary],
    routers: dict[str, smp.Router],
    day: date,
) -> None:
    """Whole events and state: what stays in the lab, and what stays with the router."""
    table, rows = canary.day(plan.dates.index(day), day)
    journal.put(table, day, f"{CANARY}-canary-{plan.hex_id(CANARY)}", rows)
    for one in notified:
        table, rows = one.day(day)
        journal.put_boots(table, day, one.server, "canary", rows)
    for server in plan.ds:
        table, rows = ds.load_test(plan, server, day)
        journal.put_boots(table, day, server, "load", rows)
    if day in plan.dates[-2:]:
        for name, router in routers.items():
            _state_day(plan, faults, journal, truth, name, router.queues, day)


def _state_day(
    plan: Plan, faults: Faults, journal: Journal, truth: Truth, name: str, queues: int, day: date
) -> None:
    exports, drift = state.snapshot(plan, faults, name, day, queues)
    for table, rows in exports:
        which = "migration" if table is S_MIGRATION else "snapshot"
        journal.put(table, day, f"{name}-{rows['side'][0]}-{rows[which][0]}", rows)
    if drift is not None:
        truth.drift.append(asdict(drift))


def _facts(
    plan: Plan, faults: Faults, journal: Journal, truth: Truth, canary: Canary, spoiled: Spoiled
) -> dict[str, Any]:
    return {
        "plan": asdict(plan),
        "written": {
            "files": journal.files,
            "rows": journal.rows,
            "bytes": journal.size,
            "tables": journal.tables,
        },
        "faults": asdict(faults),
        "canary": {"sent": canary.sent, "faults": [asdict(one) for one in canary.known]},
        "files": asdict(spoiled),
        **asdict(truth),
    }
