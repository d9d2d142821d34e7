"""The agent's benchmark in its smallest form measures everything that it tells."""

from __future__ import annotations

import asyncio

from benchmarks.agent import floor_us, run, shown


def test_smallest_run() -> None:
    result = asyncio.run(run(messages=4, connections=2, idle=20, many=2, echoes=2))
    assert result.messages_per_cpu_s > 0
    assert result.message_us > result.floor_us > 0
    assert result.connections_per_s > 0
    assert result.idle_bytes > 0
    assert [scene.connections for scene in result.rates.scenes] == [1, 2]
    for scene in result.rates.scenes:
        assert scene.per_s > 0
        assert scene.sender.statements > scene.sender.commits > 0
        assert scene.recipient.statements > scene.recipient.commits > 0
    assert result.rates.echoes_per_s > 0
    assert min(result.rates.commits_per_s) > 0
    text = shown(result)
    for part in (
        "messages per CPU second",
        "multiple of the floor",
        "20 idle connections",
        "durable messages a second",
    ):
        assert part in text


def test_floor_is_a_fraction_of_a_millisecond_or_a_few() -> None:
    assert 50 < floor_us() < 20_000
