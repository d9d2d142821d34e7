"""A page for each router, the day its disk fills up, and a run's numbers for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import pytest

from blindpost.cli.pipeline_metrics import text_of
from blindpost.pipeline.ledger import Entry
from blindpost.pipeline.report.build import build
from blindpost.pipeline.report.each import PAGES_MOST, disks, disks_of, routers
from blindpost.pipeline.report.facts import Facts, Row
from blindpost.pipeline.report.page import State
from blindpost.pipeline.runner import Summary

FIRST = date(2026, 1, 1)
NOON = 1_767_614_400
GB = 1_000_000_000


def _days(router: str, free: Sequence[float], size: float = 100 * GB, sent: int = 10) -> list[Row]:
    return [
        {
            "day": FIRST + timedelta(days=place),
            "router": router,
            "msgSent": sent,
            "qCount": 7,
            "minutes": 1_440,
        }
        | {"activeQueues_day": 5, "active_queues_7d": 6, "active_queues_30d": 6}
        | {"disk_free_bytes": int(left), "disk_size_bytes": int(size)}
        for place, left in enumerate(free)
    ]


def _facts(rows: list[Row], **more: Any) -> Facts:
    days = sorted({str(row["day"]) for row in rows})
    return Facts(days=days, made_s=NOON, rows={"daily_statistics": rows, **more})


FILLING = [100 * GB - place * 8 * GB for place in range(9)]


def test_a_filling_disk_is_reported_with_its_day_and_the_forecasts_error() -> None:
    (disk,) = disks_of(_days("smp-1", FILLING))
    assert disk.full_in_days == pytest.approx(36 / 8)
    assert disk.error == pytest.approx(0.0)
    told = disks(_facts(_days("smp-1", FILLING) + _days("smp-2", [90.0 * GB] * 9)))
    assert told is not None
    assert told.state is State.BAD
    assert "smp-1: full in 4 days" in told.verdict
    bent = [*FILLING[:-2], FILLING[-2] + 20 * GB, FILLING[-1] + 20 * GB]
    (other,) = disks_of(_days("smp-1", bent))
    assert other.error is not None
    assert other.error > 0.2  # days that it did not see were otherwise


@pytest.mark.parametrize(
    ("free", "state", "said"),
    [
        ([90.0 * GB] * 9, State.OK, "No disk is full within 60 days"),
        ([90 * GB - place * 2 * GB for place in range(9)], State.WARN, "full in 37 days"),
        ([90 * GB - place * GB // 10 for place in range(9)], State.OK, "No disk is full"),
        ([4.0 * GB] * 9, State.BAD, "4 GB free, not filling"),
        ([90.0 * GB, 80.0 * GB], State.OK, "too few days for a forecast"),
        ([0.0] * 9, State.BAD, "0B free"),
    ],
    ids=["steady", "filling", "slowly", "little room", "two days", "full"],
)
def test_disks_are_judged_by_free_space_and_trend(free: Sequence[float], state: State, said: str) -> None:
    told = disks(_facts(_days("smp-1", free)))
    assert told is not None
    assert (told.state, said in told.verdict) == (state, True), told.verdict


def test_a_router_that_reports_no_disk_is_not_judged() -> None:
    rows: list[Row] = [
        {**row, "disk_free_bytes": None, "disk_size_bytes": None} for row in _days("smp-1", FILLING)
    ]
    assert disks(_facts(rows)) is None


def test_every_router_has_a_page_or_the_busiest_if_there_are_too_many() -> None:
    assert routers(_facts([])) is None
    hour = {"router": "smp-1", "hour_s": NOON, "accepted": 5, "acked": 4, "expired": 0, "backlog_max": 1}
    hour |= {"refused_full": 0, "backlog": 1}
    told = _facts(_days("smp-1", FILLING), router_backlog=[hour])
    page = build(told)
    assert '<details class="page" id="server-smp-1">' in page
    assert "full in 4 days" in page
    many = [row for place in range(PAGES_MOST + 3) for row in _days(f"smp-{place:03d}", [GB], sent=place)]
    section = routers(_facts(many))
    assert section is not None
    assert [one.name for one in section.pages] == [f"smp-{place:03d}" for place in range(3, PAGES_MOST + 3)]
    assert "The 3 with the fewest messages have no page" in section.verdict


def test_a_run_in_numbers() -> None:
    aside = Entry("P/x.parquet", 1, 1, "", "", 0, 0, (), "corrupt", "")
    summary = Summary(
        computed={"delivery_slo": ["2026-01-01", "2026-01-02"]},
        set_aside=[aside, aside],
        broken={
            ("delivery_slo", "2026-01-01", "nothing lost"): 2,
            ("delivery_slo", "2026-01-02", "nothing lost"): 3,
        },
        failed={"canary_faults": "why"},
        files=9,
        rows=100,
    )
    lines = text_of(summary, 1_767_614_400.0, 12.5).splitlines()
    for line in (
        "blindpost_pipeline_last_run_seconds 1767614400",
        "blindpost_pipeline_run_seconds 12.5",
        'blindpost_pipeline_days_computed{table="delivery_slo"} 2',
        'blindpost_pipeline_failed{table="canary_faults"} 1',
        'blindpost_pipeline_files_set_aside{reason="corrupt"} 2',
        'blindpost_pipeline_rows_breaking_a_rule{table="delivery_slo",rule="nothing lost"} 5',
    ):
        assert line in lines
