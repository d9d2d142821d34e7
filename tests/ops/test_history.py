"""Rates from counters: minutes, gaps, and processes that begin anew."""

from __future__ import annotations

from blindpost.ops.history import MINUTES, Counted
from blindpost.ops.rendering import curve, shown


def test_growth_of_the_last_minute_and_of_each_minute() -> None:
    counted = Counted()
    for second in range(0, 181, 10):
        counted.sample(1_200.0 + second, 1_000 + 2 * second)
    assert counted.per_minute == 120
    assert counted.minutes == (100, 120, 120)


def test_a_counter_that_went_back_starts_anew() -> None:
    counted = Counted()
    counted.sample(0, 500)
    counted.sample(10, 510)
    counted.sample(20, 3)
    counted.sample(30, 5)
    assert counted.per_minute == 2
    counted.sample(61, 5)
    assert counted.minutes == (12,)


def test_a_gap_is_filled_with_nothing_and_an_hour_is_kept() -> None:
    counted = Counted()
    counted.sample(0, 0)
    counted.sample(30, 7)
    counted.sample(200, 7)
    assert counted.minutes == (7, 0, 0)
    counted.sample(1e6, 9)
    assert counted.minutes == (0.0,) * MINUTES
    counted.sample(1e6 + 60, 9)
    assert counted.minutes == (*(0.0,) * (MINUTES - 1), 2)


def test_nothing_seen_is_nothing_grown() -> None:
    assert Counted().per_minute == 0
    assert Counted().minutes == ()


def test_a_curve_ends_at_the_right_edge_and_its_highest_point_is_at_the_top() -> None:
    assert curve((0.0, 4.0, 2.0)) == "231.9,46.0 235.9,2.0 240.0,24.0"
    assert curve(()) == ""


def test_numbers_as_people_write_them() -> None:
    assert [shown(value) for value in (1_234_567, 0.25, None, "a<b")] == ["1,234,567", "0.2", "-", "a&lt;b"]
