"""Wrong lanes are found by a sample, sums tell ids of any bytes apart, each subscriber speaks for itself."""

from __future__ import annotations

import hashlib
import random

import pytest
from pyspark.sql import SparkSession

from blindpost.journal.schema import S_QUEUES
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.drift import Chosen, queues_of
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.snapshots import SAMPLED_OF, sampled
from blindpost.pipeline.sums import QUEUE_SETS
from tests.support.pipeline import journals
from tests.support.pipeline.lakes import Journal, Row, computed, silver_frame, sums_frame

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


def _export(
    journal: Journal, side: str, at_s: int, queues: dict[bytes, int], claims: tuple[bytes, ...] = ()
) -> None:
    """An export that lists so many queues of each service, and claims to have none of others."""
    head = {"snapshot": f"{at_s:016x}", "router": "smp-01", "side": side, "at_s": journals.FIRST_S + at_s}
    rng = random.Random(1)
    rows = [
        row
        for service, count in queues.items()
        for row in journals.queue_rows(
            head, "messaging", service, [service + bytes([number]) for number in range(count)], rng
        )
    ]
    journal.setdefault("s_queues", []).extend(rows)
    manifest = {**head, "table": "s_queues", "rows": len(rows)}
    journal.setdefault("s_snapshot", []).append(
        {**manifest, "finished_s": head["at_s"], "online": side == "subscriber"}
    )
    journal.setdefault("s_service_claims", []).extend(
        {**head, "service_id": service, "role": "messaging", "count": 0, "h_hi": 0, "h_lo": 0}
        for service in claims
    )


def test_a_router_may_have_several_subscribers(spark: SparkSession) -> None:
    """Of each service the last export that lists or claims it counts; of others nothing is known."""
    one, two, three, four = (bytes([number]) * 24 for number in range(1, 5))
    journal: Journal = {}
    _export(journal, "router", 0, {one: 5, two: 5, three: 5, four: 5})
    _export(journal, "subscriber", 10, {one: 4})
    _export(journal, "subscriber", 20, {one: 5})
    _export(journal, "subscriber", 30, {two: 3})
    _export(journal, "subscriber", 40, {}, (three,))
    found = computed(spark, datasets()["service_drift"], journal)
    names = ("service", "subscriber_stored", "unclaimed", "online", "verdict")
    assert sorted(tuple(row[name] for name in names) for row in found) == [
        (1, 5, 0, True, "agrees"),
        (2, 3, 2, True, "drift"),
        (3, 0, 5, True, "drift"),
        (4, None, None, False, "one side only"),
    ]
    queues = computed(spark, datasets()["service_drift_queues"], journal)
    assert {row["service_id"] for row in queues} == {two, three}


def test_the_queues_of_a_service_are_those_of_its_own_subscriber(spark: SparkSession) -> None:
    one, two, three = (bytes([number]) * 24 for number in range(1, 4))
    journal: Journal = {}
    _export(journal, "router", 0, {one: 5, two: 4})
    _export(journal, "subscriber", 10, {one: 2})
    _export(journal, "subscriber", 20, {one: 3})
    _export(journal, "subscriber", 30, {two: 1})
    queues, snapshots, claims = (
        silver_frame(spark, name, journal[name]) for name in ("s_queues", "s_snapshot", "s_service_claims")
    )
    summed = sums_frame(queues, QUEUE_SETS)

    def count(side: str, service: bytes) -> int:
        chosen = Chosen("smp-01", side, "messaging", service)
        return queues_of(queues, snapshots, claims, summed, chosen).count()

    assert (count("subscriber", one), count("subscriber", two), count("router", one)) == (3, 1, 5)
    with pytest.raises(PipelineError, match="no complete export of smp-01 by its subscriber about this"):
        count("subscriber", three)
