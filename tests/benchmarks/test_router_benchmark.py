"""The router's benchmark in its smallest form: every scene runs and gives its rows."""

from __future__ import annotations

import pytest

from benchmarks.figures.rows import as_json, parsed
from benchmarks.router import NAMES, SMALLEST, figures, measured, shown

ROWS = {
    "cycles": {"cycle: full, 1 connections", "cycle: full, 4 connections"},
    "database_cycles": {
        f"PostgreSQL: {whose}, {connections} connections"
        for whose in ("router", "its backend", "rest of the database")
        for connections in (1, 4)
    },
    "idle_cycles": {
        f"one at a time: full, {what}, {part}"
        for what in ("cycle", "wait for a processor", "write, fdatasync")
        for part in ("p50", "p99")
    },
    "subscribing": {
        "SUB: 140 queues, first of the day",
        "SUB: 140 queues, again",
        "memory: of one subscription",
    },
    "memory": {"memory: of 1 M queues at rest", "memory: of an idle connection, of 2"},
    "refusals": {
        *(
            f"refusal: {kind}, {when}, CPU"
            for kind in ("unknown id", "wrong key", "bad signature")
            for when in ("new", "again")
        ),
        "refusal: medians apart, new",
        "refusal: medians apart, again",
    },
    "services": {
        "SUBS: with 3 queues, CPU",
        "SUBS: with 5 queues, CPU",
        "SUBS: walk over 20 messages, each",
    },
    "churn": {
        *(f"churn: memory after {count} queues" for count in (2, 4, 6, 8)),
        "churn: NEW and DEL of one queue",
    },
}


def test_every_scene_is_tried() -> None:
    assert set(ROWS) == set(NAMES)


@pytest.mark.parametrize("scene", sorted(ROWS))
async def test_a_scene_gives_its_rows(scene: str) -> None:
    told: list[str] = []
    rows = await measured(SMALLEST, told.append, [scene])
    assert told
    assert {f"{row.scene}: {row.what}" for row in rows} == ROWS[scene]
    assert all(row.lower <= row.median <= row.upper for row in rows)
    assert len(parsed(as_json(figures(rows)))) == len(rows)
    table = shown(rows)
    assert all(name in table for name in ROWS[scene])
    if scene == "cycles":
        blocks = {row.what: row.note for row in rows}
        assert " 5.0 blocks; " in blocks["full, 4 connections"]
