"""The router's benchmark in its smallest form: every scene runs and gives its rows."""

from __future__ import annotations

import json

import pytest

from benchmarks.router import NAMES, SMALLEST, as_json, measured, shown

ROWS = {
    "cycles": {"cycle: full, 1 connections", "cycle: full, 4 connections"},
    "idle_cycles": {"idle cycle: full, p50", "idle cycle: full, p99"},
    "subscribing": {
        "SUB: 140 queues, first of the day",
        "SUB: 140 queues, again",
        "memory: of one subscription",
    },
    "memory": {"memory: of 1 M queues at rest", "memory: of an idle connection, of 2"},
    "refusals": {
        "refusal: unknown id",
        "refusal: wrong key",
        "refusal: bad signature",
        "refusal: medians apart",
    },
    "services": {
        "SUBS: answer with 3 queues",
        "SUBS: answer with 5 queues",
        "SUBS: walk over 20 messages, each",
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
    assert len(json.loads(as_json(rows))["rows"]) == len(rows)
    table = shown(rows)
    assert all(name in table for name in ROWS[scene])
    if scene == "cycles":
        blocks = {row.what: row.note for row in rows}
        assert blocks["full, 4 connections"].endswith(" 5.0 blocks")
