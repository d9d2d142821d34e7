"""Anomalies of the generated fleet: planted ones rank first, and calm days rarely raise a false alarm."""

from __future__ import annotations

from datetime import date, timedelta
from functools import cache
from typing import Any

import pyarrow.compute as pc
import pytest

from blindpost.pipeline.generate import smp
from blindpost.pipeline.generate.faults import Faults, choose
from blindpost.pipeline.generate.plan import Plan, boots, minutes, start_s
from blindpost.pipeline.gold.router_backlog import COUNTED
from blindpost.pipeline.report.facts import Facts, Row
from blindpost.pipeline.report.page import State
from blindpost.pipeline.report.unusual import forecast, section, unusual

PLAN = Plan(routers=4, days=12, scale=0.05, seed=3)


@cache
def _hours() -> tuple[list[Row], Faults]:
    """The hours of every router, summed from the minutes that the generator writes."""
    faults = choose(PLAN)
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    names = {meter: name for name, meter in COUNTED.items()}
    for server in PLAN.smp:
        router = smp.Router.of(PLAN, server)
        known = boots(PLAN, server, "smp", faults.restarts_s.get(server, ()))
        for day in PLAN.dates:
            tables = {
                table.name: found for table, found in smp.day(PLAN, faults, router, minutes(known, day), day)
            }
            counters = tables["p_counters"]
            counters = counters.filter(pc.is_in(counters["name"], pc.cast(list(names), "string")))
            for row in counters.to_pylist():
                hour = row["minute_s"] // 3_600 * 3_600
                of = rows.setdefault(
                    (server, hour), {"router": server, "hour_s": hour, **dict.fromkeys(names.values(), 0)}
                )
                of[names[row["name"]]] += row["value"]
    return [*rows.values()], faults


def test_planted_faults_come_first_and_calm_days_are_quiet() -> None:
    rows, faults = _hours()
    found = unusual(rows, start_s(PLAN.dates[-7]))
    planted = {
        (span.server, hour)
        for span in (faults.quota, faults.expiry)
        for hour in range(span.first_s // 3_600 * 3_600, span.end_s + 7_200, 3_600)
    }
    where = [(one.router, one.hour_s) for one in found]
    assert {faults.quota.server, faults.expiry.server} <= {router for router, _ in where}
    assert where[0] in planted
    false = [one for one in found if (one.router, one.hour_s) not in planted]
    judged = 7 * 24 * len(PLAN.smp) * len(COUNTED)
    assert len(false) / judged < 0.002, false


def test_few_days_are_not_judged() -> None:
    rows, _ = _hours()
    few = [row for row in rows if row["hour_s"] < start_s(PLAN.dates[3])]
    assert section(Facts(days=[PLAN.dates[2].isoformat()], made_s=0, rows={"router_backlog": few})) is None


def _days(values: list[float]) -> dict[str, float]:
    first = date(2026, 1, 1)
    return {(first + timedelta(days=number)).isoformat(): value for number, value in enumerate(values)}


def test_a_forecast_says_how_wrong_it_was() -> None:
    steady = forecast(_days([1_000.0 + 10 * number for number in range(20)]))
    assert steady is not None
    assert (steady.now, steady.later) == pytest.approx((1_190, 1_490))
    assert steady.error < 1e-9
    turned = forecast(_days([1_000.0] * 15 + [2_000.0] * 5))
    assert turned is not None
    assert turned.error == pytest.approx(0.5)
    assert forecast(_days([1.0] * 4)) is None


def test_one_outlier_day_does_not_bend_the_line() -> None:
    values = [1_000.0] * 20
    values[10] = 90_000.0
    found = forecast(_days(values))
    assert found is not None
    assert found.later == pytest.approx(1_000)


def test_the_section_shows_anomalies_and_forecasts() -> None:
    rows, _ = _hours()
    days = [day.isoformat() for day in PLAN.dates[-7:]]
    statistics = [
        {"day": day, "router": "smp-01", "minutes": 1_440, "msgSent": 100, "qCount": 10, "msgCount": 5}
        for day in PLAN.dates
    ]
    told = section(
        Facts(
            days=days,
            made_s=start_s(PLAN.dates[-1]),
            rows={"router_backlog": [row for row in rows if row["hour_s"] >= start_s(PLAN.dates[-7])]},
            earlier={
                "router_backlog": [row for row in rows if row["hour_s"] < start_s(PLAN.dates[-7])],
                "daily_statistics": statistics,
            },
        )
    )
    assert told is not None
    assert told.state is State.WARN
    assert [row[0] for row in told.tables[1].rows] == [
        "messages sent in a day",
        "queues stored",
        "messages stored",
    ]
