"""Lanes that do not match their ids are found by a sample, and sums distinguish ids of any bytes."""

from __future__ import annotations

import hashlib

import pytest
from pyspark.sql import SparkSession

from blindpost.journal.schema import S_QUEUES
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.snapshots import SAMPLED_OF, sampled
from blindpost.pipeline.sums import QUEUE_SETS
from tests.support.pipeline.lakes import Row, silver_frame, sums_frame

pytestmark = pytest.mark.timeout(600)
COUNT = 30 * SAMPLED_OF
SERVICES = (b"\xff\xfe right", b"\xff\xfd wrong", None)
"""Not text in any encoding, and with a common prefix."""


def _rows() -> list[Row]:
    rows: list[Row] = []
    for number in range(COUNT):
        service = SERVICES[number % len(SERVICES)]
        queue_id = number.to_bytes(24)
        lanes = hashlib.md5(queue_id, usedforsecurity=False).digest()
        high, low = (int.from_bytes(lanes[at : at + 8], signed=True) for at in (0, 8))
        rows.append(
            dict.fromkeys(S_QUEUES.by_name)
            | {"snapshot": "0" * 16, "router": "smp-01", "side": "router", "at_s": 2_000_000_000}
            | {"role": "notifier", "queue_id": queue_id, "service_id": service}
            | {"h_hi": high, "h_lo": low if service != SERVICES[1] else low ^ 1}
        )
    return rows


def test_wrong_lanes_are_found_and_sums_equal_those_of_the_lanes(spark: SparkSession) -> None:
    rows = _rows()
    queues = silver_frame(spark, S_QUEUES.name, rows)
    drawn = {row["service_id"]: row for row in sampled(queues).collect()}
    found = {service: drawn[service] for service in SERVICES}
    assert all(0 < row["lanes_sampled"] < COUNT / 100 for row in found.values())
    assert [row["lanes_wrong"] for row in found.values()] == [0, found[SERVICES[1]]["lanes_sampled"], 0]
    summed = {row["service_id"]: row for row in sums_frame(queues, QUEUE_SETS).collect()}
    for service in SERVICES:
        high = low = 0
        own = [row for row in rows if row["service_id"] == service]
        for row in own:
            high, low = high ^ row["h_hi"], low ^ row["h_lo"]
        one = summed[service]
        assert (one["count"], one["h_hi"], one["h_lo"]) == (len(own), high, low)
        assert (one["side"], one["role"], one["router"]) == ("router", "notifier", "smp-01")


def test_sums_are_computed_once_and_shared(spark: SparkSession) -> None:
    drift, rows = datasets()["service_drift"], _rows()[:30]
    frames = {
        given.table: silver_frame(spark, given.table, rows if given.table == S_QUEUES.name else ())
        for given in drift.inputs
    }
    frames[QUEUE_SETS.name] = sums_frame(frames[S_QUEUES.name], QUEUE_SETS)
    plan = str(drift.computed(frames)._jdf.queryExecution().optimizedPlan())
    assert "bit_xor" not in plan.lower()
