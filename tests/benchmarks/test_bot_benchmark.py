"""The benchmark of a bot with many contacts in its smallest form measures everything that it tells."""

from __future__ import annotations

from benchmarks.bot_scale import run, shown


def test_smallest_run() -> None:
    result = run(20)
    assert result.contacts == 20
    assert (result.stored, result.sent) == (20, 20)
    assert 0 < result.stored_s <= result.broadcast_s
    assert result.memory_most_mb >= result.memory_ready_mb > 0
    for part in ("20 contacts", "start to ready", "broadcast sent"):
        assert part in shown(result)
