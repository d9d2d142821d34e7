"""Histograms count what was observed, and can undo an observation."""

from __future__ import annotations

from blindpost.engine.histogram import Histogram


def test_a_value_counts_in_the_first_bucket_not_below_it() -> None:
    histogram = Histogram((1, 5, 10))
    for value in (0, 1, 1.5, 5, 9, 10, 11):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 2, 1]
    assert histogram.cumulative() == [(1, 2), (5, 4), (10, 6)]
    assert (histogram.count, histogram.total, histogram.maximum) == (7, 37.5, 11)


def test_an_observation_can_be_undone() -> None:
    histogram = Histogram((1, 5))
    histogram.observe(2)
    histogram.observe(4)
    histogram.forget(2)
    assert (histogram.counts, histogram.count, histogram.total) == ([0, 1, 0], 1, 4)
