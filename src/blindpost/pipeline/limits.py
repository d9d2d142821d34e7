"""Possible values: a number outside these is the writer's fault, and would stop a job.

One router with a broken meter must not harm the tables of the others, so its file is set aside, naming the
column and the impossible value.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from blindpost.journal.schema import ALL_TABLES, Table, Type

MINUTE_S, DAY_S = 60, 86_400
GROWTH = 10**14
"""No counter grows by this much in a minute; a day of such minutes of a thousand boots still fits."""
LEVEL = 2**53
"""Whole numbers are exact in a level up to this."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The smallest and the largest value of a column, and of what it is a multiple."""

    least: float
    most: float
    step: int = 1


_ANY = {"seq": Limit(0, LEVEL), "minute_s": Limit(0, LEVEL, MINUTE_S), "day_s": Limit(0, LEVEL, DAY_S)}
_OF_TABLE: dict[str, dict[str, Limit]] = {
    "p_boots": {"started_s": Limit(0, LEVEL)},
    "p_counters": {"value": Limit(-GROWTH, GROWTH)},
    "p_gauges": {"value": Limit(0, LEVEL)},
    "p_histograms": {
        "counts": Limit(0, GROWTH),
        "bounds": Limit(-LEVEL, LEVEL),
        "total": Limit(-LEVEL, LEVEL),
        "maximum": Limit(-LEVEL, LEVEL),
    },
    "p_services": {"ordinal": Limit(0, LEVEL), "times": Limit(0, LEVEL)},
    "p_token_transitions": {"value": Limit(-GROWTH, GROWTH)},
    "p_funnel": {"value": Limit(-GROWTH, GROWTH)},
    "p_day": {
        "value": Limit(-LEVEL, LEVEL),
        "minutes": Limit(0, DAY_S // MINUTE_S),
        "last_minute_s": Limit(0, LEVEL, MINUTE_S),
    },
    "s_queues": {"waiting": Limit(0, LEVEL), "oldest_s": Limit(-DAY_S, LEVEL)},
    "s_service_claims": {"count": Limit(0, LEVEL)},
    "s_snapshot": {"rows": Limit(0, LEVEL), "finished_s": Limit(0, LEVEL)},
    "s_migration": {"count": Limit(0, LEVEL)},
    "l_messages": {"size": Limit(0, LEVEL)},
    "l_delivery": {"depth": Limit(0, LEVEL), "age_us": Limit(-DAY_S * 10**6, LEVEL)},
}
LIMITS: dict[str, dict[str, Limit]] = {
    table.name: {name: limit for name, limit in _ANY.items() if name in table.by_name}
    | _OF_TABLE.get(table.name, {})
    for table in ALL_TABLES
}


def impossible(table: Table, rows: pa.Table) -> str | None:
    """The first impossible value, in words; None if there is none."""
    return next(_found(table, rows), None)


def _found(table: Table, rows: pa.Table) -> Iterator[str]:
    for name, limit in LIMITS[table.name].items():
        if name in rows.column_names:
            yield from _outside(name, rows[name].combine_chunks(), limit)
    if table.name == "p_day":
        levels = rows.filter(pc.equal(rows["kind"], "gauge"))
        yield from _outside("value", levels["value"].combine_chunks(), Limit(0, LEVEL))
    if table.name == "p_histograms":
        yield from _misshapen(rows)
    for column in table.columns:
        if column.name == "sketch" and column.type is Type.BINARY:
            for content in rows[column.name]:
                if not is_sketch(content.as_py()):
                    yield "column sketch is no HyperLogLog sketch of 4096 registers"


def _outside(name: str, column: pa.Array, limit: Limit) -> Iterator[str]:
    values = (pc.list_flatten(column) if pa.types.is_list(column.type) else column).drop_null()
    # A comparison with NaN is false, so that it is in no range.
    within = pc.and_(pc.greater_equal(values, limit.least), pc.less_equal(values, limit.most))
    if limit.step > 1:
        whole = pc.multiply(pc.divide(values, limit.step), limit.step)
        within = pc.and_(within, pc.equal(whole, values))
    wrong = values.filter(pc.invert(within))
    if len(wrong):
        yield f"column {name} has {wrong[0].as_py()}, which cannot be"


def _misshapen(rows: pa.Table) -> Iterator[str]:
    pairs = zip(rows["bounds"].to_pylist(), rows["counts"].to_pylist(), strict=True)
    for bounds, counts in pairs:
        if None in bounds or None in counts:
            yield "column bounds or counts has a null"
        elif len(counts) != len(bounds) + 1 or bounds != sorted(set(bounds)):
            yield "column counts does not fit to its bounds"


_LG_K, _FAMILY, _SERIAL = 12, 7, 1
_LIST, _SET, _REGISTERS = 0, 1, 2
_PREAMBLE = {_LIST: 2, _SET: 3, _REGISTERS: 10}
_HLL_8 = 2
_EMPTY_FLAG, _COMPACT_FLAG = 0x04, 0x08


def is_sketch(content: bytes) -> bool:
    """Whether this is a whole sketch as routers write them; Spark fails at any other."""
    if len(content) < 8:
        return False
    words, serial, family, lg_k, _, flags, few, mode = content[:8]
    kind, target = mode & 3, mode >> 2 & 3
    if (serial, family, lg_k) != (_SERIAL, _FAMILY, _LG_K) or _PREAMBLE.get(kind) != words:
        return False
    if kind == _LIST:
        return len(content) == 8 + 4 * (0 if flags & _EMPTY_FLAG else few)
    if kind == _SET:
        return len(content) >= 12 and len(content) == 12 + 4 * int.from_bytes(content[8:12], "little")
    if target != _HLL_8 or len(content) != 40 + 2**_LG_K or max(content[40:]) > 64 - _LG_K:
        return False
    return all(math.isfinite(number) for number in struct.unpack_from("<3d", content, 8))
