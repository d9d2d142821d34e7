"""What is written once per boot, hour or day: starts, sketches of what was in use, and the sums of a day."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasketches import hll_sketch, tgt_hll_type

from blindpost.journal.schema import P_BOOTS, P_DAY, P_DAY_SKETCHES, P_SKETCHES, Table
from blindpost.pipeline.generate.plan import PROGRAM, Minutes, Plan
from blindpost.pipeline.generate.rows import build, of_writer, same

LG_K = 12
ACTIVE = {"queues": 1.0, "queues_notify": 0.3}
"""What is counted, and how much of it there is."""


def starts(minutes: Minutes) -> pa.Table:
    """A row for each boot that began on this day."""
    first = [boot.first_s for boot in minutes.boots]
    at = np.nonzero(minutes.up & np.isin(minutes.minute_s, first))[0]
    return build(
        P_BOOTS,
        {**of_writer(minutes, at), "started_s": minutes.minute_s[at], "program": same(PROGRAM, len(at))},
    )


def active(plan: Plan, share: float, weight: float) -> tuple[int, int]:
    """How many were in use on a day, and how many of them are others the day after."""
    size = int((2_000 * plan.scale * weight + 300) * share)
    return size, size // 10


def sketches(plan: Plan, minutes: Minutes, number: int, weight: float) -> Iterator[tuple[Table, pa.Table]]:
    """Written at the end of each hour: what was in use on the day so far."""
    hourly: list[tuple[int, str, bytes]] = []
    for name, share in ACTIVE.items():
        size, fresh = active(plan, share, weight)
        seen = hll_sketch(LG_K, tgt_hll_type.HLL_8, True)
        # Hashes under a salt of the router: the same queue is the same number on every day, and nowhere else.
        known = plan.rng("active", minutes.server, name).integers(-(2**63), 2**63 - 1, number * fresh + size)
        today = known[number * fresh :].tolist()
        for hour in range(24):
            for queue in today[size * hour // 24 : size * (hour + 1) // 24]:
                seen.update(queue)
            last = hour * 60 + 59
            if minutes.up[last]:
                hourly.append((last, name, seen.serialize_compact()))
    at = np.array([place for place, _, _ in hourly], np.int64)
    columns = {
        "name": pa.array([name for _, name, _ in hourly], pa.string()),
        "day_s": np.full(len(at), minutes.day_s),
        "sketch": pa.array([content for _, _, content in hourly], pa.binary()),
    }
    rows = build(P_SKETCHES, {**of_writer(minutes, at), **columns})
    yield P_SKETCHES, rows
    yield P_DAY_SKETCHES, _last_of_boots(rows)


def _last_of_boots(rows: pa.Table) -> pa.Table:
    by = ["router", "role", "boot", "day_s", "name"]
    ends = rows.group_by(by, use_threads=False).aggregate([("seq", "max")])
    found = rows.join(ends, [*by, "seq"], [*by, "seq_max"], "inner", use_threads=False).sort_by(
        [("boot", "ascending"), ("name", "ascending")]
    )
    return build(P_DAY_SKETCHES, {name: found[name].combine_chunks() for name in [*by, "sketch"]})


def sums(minutes: Minutes, counters: pa.Table, gauges: pa.Table) -> pa.Table:
    """The sums and last levels of the day, for each boot."""
    who = ["router", "role", "boot"]
    summed = counters.group_by([*who, "name"], use_threads=False).aggregate([("value", "sum")])
    lasts = gauges.group_by(who, use_threads=False).aggregate(
        [("minute_s", "max"), ("minute_s", "count_distinct")]
    )
    last = {row["boot"]: (row["minute_s_max"], row["minute_s_count_distinct"]) for row in lasts.to_pylist()}
    ended = pc.is_in(gauges["minute_s"], pa.array([end for end, _ in last.values()], pa.int64()))
    levels = [row for row in gauges.filter(ended).to_pylist() if row["minute_s"] == last[row["boot"]][0]]
    found = [
        (row["boot"], kind, row["name"], float(row[value]))
        for kind, rows, value in (("counter", summed.to_pylist(), "value_sum"), ("gauge", levels, "value"))
        for row in rows
    ]
    found.sort()
    return build(
        P_DAY,
        {
            "router": same(minutes.server, len(found)),
            "role": same(minutes.role, len(found)),
            "boot": pa.array([row[0] for row in found], pa.string()),
            "day_s": np.full(len(found), minutes.day_s),
            "kind": pa.array([row[1] for row in found], pa.string()),
            "name": pa.array([row[2] for row in found], pa.string()),
            "value": np.array([row[3] for row in found], float),
            "minutes": np.array([last[row[0]][1] for row in found], np.int32),
            "last_minute_s": np.array([last[row[0]][0] for row in found], np.int64),
        },
    )
