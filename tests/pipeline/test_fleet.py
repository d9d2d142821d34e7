"""Faults planted in a generated fleet are found, and nothing else; real servers' totals are right."""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from blindpost.journal.schema import DAILY_COLUMNS, DELIVERY_EVENTS, Source
from blindpost.pipeline.generate.smp import STORM_MINUTES
from blindpost.pipeline.gold.daily_statistics import column_name
from blindpost.pipeline.gold.delivery_service import COUNTERS
from tests.support.pipeline.fleet_lake import PLAN, REAL, Fleet, dataset, the_fleet
from tests.support.pipeline.lakes import plain
from tests.support.pipeline.real_servers import DS, NTF, OTHER_MESSAGES, OWN_MESSAGES

DAY = PLAN.first
pytestmark = pytest.mark.timeout(900)  # the whole pipeline runs once, in the first test


@pytest.fixture(scope="module")
def fleet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return the_fleet(spark, tmp_path_factory)


def test_bad_files_are_set_aside_with_their_reason(fleet: Fleet, spark: SparkSession) -> None:
    entries = fleet.lake(spark).ledger.all()
    found = {path: entry.reason for path, entry in entries.items() if entry.reason}
    assert found == fleet.truth["files"]["quarantined"]
    assert sorted(found.values()) == ["corrupt", "empty", "foreign", "future version", "truncated"]


def test_late_files_complete_a_day_that_was_published(fleet: Fleet, spark: SparkSession) -> None:
    late = [path for path in fleet.truth["files"]["late"] if "/smp-" in path]
    sent = sum(row["msgSent"] for row in fleet.rows(spark, "daily_statistics"))
    assert late
    assert 0 < fleet.before < sent


def test_storms(fleet: Fleet, spark: SparkSession) -> None:
    (storm,) = fleet.rows(spark, "subscription_storms")
    planted = fleet.faults["storm"]
    assert (storm["router"], storm["first_s"], storm["minutes"], storm["cause"]) == (
        planted["server"],
        planted["first_s"],
        STORM_MINUTES,
        "restart",
    )
    assert storm["restarted_s"] == planted["first_s"]


def test_flapping(fleet: Fleet, spark: SparkSession) -> None:
    planted = fleet.faults["flapping"]
    minutes = Counter(minute // 3600 * 3600 for minute in range(planted["first_s"], planted["end_s"], 60))
    found = fleet.rows(spark, "displacement_flapping")
    assert {row["hour_s"]: row["minutes"] for row in found} == pytest.approx(
        {hour: count for hour, count in minutes.items() if count >= 5}, abs=1
    )
    assert {(row["router"], row["ordinal"]) for row in found} == {(planted["server"], 0)}
    assert all(row["ends"] == row["times"] for row in found)


def test_funnel(fleet: Fleet, spark: SparkSession) -> None:
    wanted: Counter[tuple[str, str, str]] = Counter()
    for key, value in fleet.truth["tables"]["p_funnel"][DAY.isoformat()].items():
        router, state, _, provider = key.split("|")
        wanted[router, provider, state] += value
    found = fleet.rows(spark, "notification_funnel")
    states = {state for _, _, state in wanted}
    assert {
        (row["router"], row["provider"], state): row[state] for row in found for state in states
    } == wanted
    assert {row["provider"]: row["open"] for row in found} == {
        "apns": fleet.faults["unfinished_count"],
        "webpush": 0,
    }
    canaries = fleet.rows(spark, "notification_canaries")
    assert sum(row["unfinished"] for row in canaries) == fleet.faults["unfinished_count"]
    assert {row["ended_twice"] for row in canaries} == {0}


def test_tokens(fleet: Fleet, spark: SparkSession) -> None:
    found = fleet.rows(spark, "token_transitions")
    names = ("router", "from_state", "to_state", "reason")
    assert {"|".join(row[name] for name in names): row["tokens"] for row in found} == fleet.truth["tables"][
        "p_token_transitions"
    ][DAY.isoformat()]
    assert all(row["legal"] for row in found)
    reasons = {row["reason"]: row["tokens"] for row in found if row["to_state"] == "INVALID"}
    for reason, count in fleet.faults["invalid_reasons"]:
        assert reasons[reason] >= count


def test_canaries(fleet: Fleet, spark: SparkSession) -> None:
    names = ("from_router", "to_router", "number", "sent_us", "fault")
    found = fleet.rows(spark, "canary_faults")
    wanted = {tuple(row[name] for name in names) for row in fleet.truth["canary"]["faults"]}
    assert {tuple(row[name] for name in names) for row in found} == wanted
    assert {row["fault"] for row in found} == {"lost", "duplicate", "skipped"}
    pairs = fleet.rows(spark, "canary_integrity")
    bad = Counter({name: sum(row[name] for row in pairs) for name in ("lost", "duplicates", "skipped")})
    assert bad == {"lost": 1, "duplicates": 1, "skipped": 1}
    assert len([row for row in pairs if row["day"] == DAY]) == PLAN.routers**2


def test_latency(fleet: Fleet, spark: SparkSession) -> None:
    slow = fleet.faults["slow"]
    hours = range(slow["first_s"] // 3600 * 3600, slow["end_s"], 3600)
    found = {
        (row["from_router"], row["to_router"], row["hour_s"])
        for row in fleet.rows(spark, "delivery_slo")
        if row["deliver_max_us"] > 500_000
    }
    assert found == {(slow["from_router"], slow["to_router"], hour) for hour in hours}


def test_delivery_service(fleet: Fleet, spark: SparkSession) -> None:
    rows = fleet.rows(spark, "delivery_service")
    (name,) = PLAN.ds
    wanted = fleet.truth["counters"][name][DAY.isoformat()]
    for counter in ("enqueued", "handed_out", "acknowledged", "put_back", "waits", "wakes", "waits_expired"):
        assert sum(row[counter] for row in rows) == wanted[counter]
    deepest = max(rows, key=lambda row: row["depth_max"])
    backlog = fleet.faults["backlog"]
    assert backlog["first_s"] <= deepest["hour_s"] + 3600
    assert deepest["hour_s"] < backlog["end_s"] + 60
    assert deepest["depth_max"] > 3 * min(row["depth_max"] for row in rows)
    (lab,) = fleet.rows(spark, "delivery_lab")
    assert lab["enqueued"] == lab["acked"] == lab["leased"] - lab["put_back"]


def test_backlog(fleet: Fleet, spark: SparkSession) -> None:
    rows = fleet.rows(spark, "router_backlog")
    for router in PLAN.smp:
        wanted = fleet.truth["counters"][router][DAY.isoformat()]
        own = [row for row in rows if row["router"] == router]
        for name, counter in (
            ("accepted", "msgSent"),
            ("acked", "msgRecv"),
            ("refused_full", "msgSentQuota"),
        ):
            assert sum(row[name] for row in own) == wanted[counter]
        assert own[-1]["backlog"] == fleet.truth["gauges"][router][DAY.isoformat()]["messages"]
    quota, expiry = fleet.faults["quota"], fleet.faults["expiry"]
    full = max(rows, key=lambda row: row["refused_full"])
    assert (full["router"], quota["first_s"] <= full["hour_s"] + 3600 <= quota["end_s"] + 3600) == (
        quota["server"],
        True,
    )
    aged = max(rows, key=lambda row: row["expired"])
    assert (aged["router"], aged["hour_s"]) == (expiry["server"], expiry["first_s"] // 3600 * 3600)


def test_drift(fleet: Fleet, spark: SparkSession) -> None:
    (planted,) = fleet.truth["drift"]
    kinds = ("unclaimed", "gone", "unassociated")
    found: dict[str, list[str]] = {kind: [] for kind in kinds}
    for row in fleet.rows(spark, "service_drift_queues"):
        assert (row["router"], row["service_id"].hex(), row["role"]) == (
            planted["router"],
            planted["service_id"],
            planted["role"],
        )
        found[row["problem"]].append(row["queue_id"].hex())
    assert {kind: sorted(ids) for kind, ids in found.items()} == {kind: planted[kind] for kind in kinds}
    rows = fleet.rows(spark, "service_drift")
    assert [row["router"] for row in rows if row["verdict"] != "agrees"] == [planted["router"]]


def test_migrations(fleet: Fleet, spark: SparkSession) -> None:
    found = {(row["router"], row["name"]): row["verdict"] for row in fleet.rows(spark, "migration_proof")}
    good, bad = fleet.faults["migration_good"], fleet.faults["migration_bad"]
    assert found == {
        (good, "queues"): "equal",
        (good, "messages"): "equal",
        (bad, "queues"): "equal",
        (bad, "messages"): "different",
    }


def _statistics(row: dict[str, Any]) -> dict[str, int]:
    return {
        column.metric: row[column_name(column.name)]
        for column in DAILY_COLUMNS
        if column.source is Source.COUNTER and row[column_name(column.name)]
    }


def test_statistics(fleet: Fleet, spark: SparkSession) -> None:
    """Sums of repeated and late files are the sums of what was written."""
    known = {column.metric for column in DAILY_COLUMNS if column.source is Source.COUNTER}
    for row in fleet.rows(spark, "daily_statistics"):
        wanted = fleet.truth["counters"][row["router"]][DAY.isoformat()]
        assert _statistics(row) == {name: value for name, value in wanted.items() if name in known}


def test_a_real_routers_totals_are_its_counters(fleet: Fleet, spark: SparkSession) -> None:
    rows = plain(fleet.lake(spark).gold(dataset("daily_statistics")).where(f"router = '{REAL}'").collect())
    summed: Counter[str] = Counter()
    for row in rows:
        summed.update(_statistics(row))
    known = {column.metric for column in DAILY_COLUMNS if column.source is Source.COUNTER}
    counters = fleet.real["counters"]
    assert dict(summed) == {name: value for name, value in counters.items() if value and name in known}
    assert summed["msgSent"] > 0
    assert rows[0]["day"] > date(2026, 1, 31)


def test_a_real_notification_routers_totals_are_its_counters(fleet: Fleet, spark: SparkSession) -> None:
    """The funnel equals its ledger and counters; the canaries' table is the operator's own part of it."""
    told = fleet.real["ntf"]
    found = _summed(fleet.real_rows(spark, "notification_funnel", NTF))
    ledger, counters = told["all"]["ledger"], told["all"]["counters"]
    assert found["received"] == found["stored"] == counters["notifications_received"]
    assert found["received"] == OWN_MESSAGES + OTHER_MESSAGES
    assert (found["accepted"], found["replaced"]) == (ledger["accepted"], ledger["superseded"])
    assert found["ended"] == sum(count for state, count in ledger.items() if state != "waiting")
    assert found["open"] == ledger["waiting"] == 0
    assert found["retried"] >= counters["push_retries"] > 0
    assert ledger["superseded"] > 0
    own = _summed(fleet.real_rows(spark, "notification_canaries", NTF))
    assert own["received"] == own["ended_once"] == told["own"]["counters"]["notifications_received"]
    assert own["received"] == OWN_MESSAGES
    assert own["accepted"] == told["own"]["ledger"]["accepted"]
    assert own["out_of_order"] == 0
    moves = fleet.real_rows(spark, "token_transitions", NTF)
    created = sum(row["tokens"] for row in moves if not row["from_state"])
    verified = sum(row["tokens"] for row in moves if row["to_state"] == "ACTIVE")
    assert (created, verified) == (counters["tokens_created"], counters["tokens_verified"]) == (2, 2)


def test_a_real_delivery_services_totals_are_its_counters(fleet: Fleet, spark: SparkSession) -> None:
    told = fleet.real["ds"]
    found = _summed(fleet.real_rows(spark, "delivery_service", DS))
    assert {name: found[name] for name in COUNTERS} == {
        name: told["all"]["counters"][name] for name in COUNTERS
    }
    own, counters = _summed(fleet.real_rows(spark, "delivery_lab", DS)), told["own"]["counters"]
    assert {event: own[event] for event in DELIVERY_EVENTS if event != "woken"} == {
        "enqueued": counters["enqueued"],
        "waited": counters["waits"],
        "timed_out": counters["waits_expired"],
        "leased": counters["handed_out"],
        "put_back": counters["put_back"],
        "acked": counters["acknowledged"] + counters["finished"],
        "expired": counters["displaced"],
    }
    assert own["woken"] == counters["waits"] - counters["waits_expired"] - counters["waits_canceled"]
    assert all(own[event] for event in DELIVERY_EVENTS)
    assert own["enqueued"] < found["enqueued"]


def _summed(rows: list[dict[str, Any]]) -> Counter[str]:
    """Over the hours and days that a server ran in."""
    found: Counter[str] = Counter()
    for row in rows:
        found.update({name: value for name, value in row.items() if type(value) is int})
    return found


def test_a_report_from_the_lake_says_what_is_wrong(fleet: Fleet) -> None:
    page = fleet.report
    for path, reason in fleet.truth["files"]["quarantined"].items():
        assert path in page
        assert f'<td data-name="reason">{reason}</td>' in page
    for said in ("Action is needed", "5 files", "drift", "flapping", "Decides:"):
        assert said in page
    assert Path(fleet.folder / "report.html").stat().st_size < 1_000_000
