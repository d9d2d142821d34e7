"""The benchmark of imports measures a whole import, in its short form."""

from __future__ import annotations

from pathlib import Path

from benchmarks.moving import measure


async def test_a_short_run_is_complete_and_needs_little_memory(tmp_path: Path) -> None:
    result = await measure(5_000, tmp_path)
    assert result.equal
    assert result.lines > 10_000
    assert result.rows > 15_000
    assert result.peak_memory_mb < 200
