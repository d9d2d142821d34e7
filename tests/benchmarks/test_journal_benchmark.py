"""The journal's benchmark in its smallest form measures everything that it tells."""

from __future__ import annotations

import pytest

from benchmarks.journal import EVENTS_PER_MESSAGE, RATES, measure, shown


def test_everything_is_measured_and_told() -> None:
    cost = measure(event_count=2_000, connections=20, rounds=2)
    assert cost.floor_us > 0
    assert cost.events_per_s == pytest.approx(1e6 / cost.event_us)
    assert cost.lab_share == pytest.approx(EVENTS_PER_MESSAGE * cost.event_us / cost.floor_us)
    assert set(cost.production_share) == set(RATES)
    for rate, share in cost.production_share.items():
        assert share == pytest.approx(cost.record_us / (60 * rate * cost.floor_us))
    assert 500 < cost.record_bytes < 50_000
    assert cost.sealed_rows_per_s > 0
    text = shown(cost)
    assert f"{cost.floor_us:.0f} us of CPU" in text
    assert "at 100 messages a second" in text
