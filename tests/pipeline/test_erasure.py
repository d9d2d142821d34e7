"""Expired data is in no byte of the lake; what was computed from it stays. And a canary that dies."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from blindpost.journal.schema import L_MESSAGES, TABLES
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.runner import run
from blindpost.pipeline.settings import Keep, Settings, read_settings
from tests.support.pipeline import journals
from tests.support.pipeline.lakes import LASTING, Row, plain, seal_journal, seal_rows

pytestmark = pytest.mark.timeout(300)
DRIFT = [datasets()[name] for name in ("service_drift", "service_drift_queues")]
START = datetime.fromtimestamp(journals.FIRST_S, UTC)


def _contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file of a folder: its bytes, and if it is Parquet every value in it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            yield path, content
            if content.startswith(b"PAR1"):
                for column in pq.ParquetFile(path).read().columns:
                    yield (
                        path,
                        b"".join(
                            value if isinstance(value, bytes) else str(value).encode()
                            for value in column.to_pylist()
                        ),
                    )


def _holding(folder: Path, secrets: set[bytes]) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path, content in _contents(folder)
        if any(secret in content for secret in secrets)
    }


def test_no_byte_of_an_expired_queue_id_is_in_the_lake(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(3)
    state = journals.state(rng, routers=2, days=1, queues=20)
    seal_journal(tmp_path / "journal", state, rng)
    ids = {row["queue_id"] for row in state["s_queues"]}
    now = [START + timedelta(days=2)]
    lake = Lake(spark, str(tmp_path / "journal"), str(tmp_path / "lake"), clock=lambda: now[0].timestamp())
    run(lake, DRIFT)
    before = plain(lake.gold(DRIFT[0]).collect())
    differing = {row["queue_id"] for row in plain(lake.gold(DRIFT[1]).collect())}
    assert before
    assert differing
    late = state["s_queues"][:1]  # the same rows in a second version
    seal_rows(tmp_path / "journal" / "S" / "s_queues" / "late.parquet", TABLES["s_queues"], late)
    run(lake, DRIFT)
    held = _holding(tmp_path / "lake", ids)
    assert {place.split("/")[1] for place in held} == {"versions", "results"}
    published = plain(lake.gold(DRIFT[0]).collect())

    now[0] += timedelta(days=8)
    summary = run(lake, DRIFT)
    assert {"s_queues", "s_service_claims", "s_snapshot", "service_drift_queues"} == set(summary.erased)
    assert _holding(tmp_path / "lake", ids) == set()
    assert plain(lake.gold(DRIFT[0]).collect()) == published  # sums stay as they were
    assert plain(lake.gold(DRIFT[1]).collect()) == []
    again = run(lake, DRIFT)  # the journal still has the files: they are not taken up again
    assert (again.computed, again.erased) == ({}, {})
    assert _holding(tmp_path / "lake", ids) == set()


def test_a_run_killed_while_erasing_is_completed(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(4)
    state = journals.state(rng, routers=2, days=1, queues=10)
    seal_journal(tmp_path / "journal", state, rng)
    lake = Lake(
        spark,
        str(tmp_path / "journal"),
        str(tmp_path / "lake"),
        clock=(START + timedelta(days=2)).timestamp,
    )
    run(lake, DRIFT[1:])
    store = lake.silver_store(TABLES["s_queues"])
    kept = {
        path: path.read_bytes() for path, _ in _contents(tmp_path / "lake" / "zone" / "versions" / "silver")
    }
    store.erase("2100-01-01")
    for path, content in kept.items():  # as if it had been killed before it removed anything
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert store.erase("2100-01-01") == []
    ids = {row["queue_id"] for row in state["s_queues"]}
    assert _holding(tmp_path / "lake" / "zone" / "versions" / "silver", ids) == set()


def _event(number: int, event: str, time_us: int, seq: int) -> Row:
    row = {"router": "canary", "role": "canary", "boot": "00" * 8, "seq": seq, "time_us": time_us}
    row |= {"from_router": "a", "to_router": "b", "connection": 1, "number": number, "event": event}
    return row | {"integrity": "ok" if event == "delivered" else "", "size": 100}


def test_the_last_hour_of_a_dead_canary_is_counted_the_same_everywhere(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It sends a message a minute; from 23:15 nothing arrives, and at 23:59 it dies."""
    day_us = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * 10**6
    rows: list[Row] = []
    for minute in range(22 * 60, 24 * 60):
        sent_us = day_us + minute * 60_000_000
        rows.append(_event(minute, "sent", sent_us, len(rows)))
        if minute < 23 * 60 + 15:
            rows.append(_event(minute, "delivered", sent_us + 100_000, len(rows)))
    seal_rows(tmp_path / "journal" / "L" / "l_messages" / "x.parquet", L_MESSAGES, rows)
    lake = Lake(
        spark,
        str(tmp_path / "journal"),
        str(tmp_path / "lake"),
        settings=LASTING,
        clock=datetime(2026, 3, 2, 9, tzinfo=UTC).timestamp,
    )
    wanted = [datasets()[name] for name in ("canary_integrity", "delivery_slo", "canary_faults")]
    assert run(lake, wanted).failed == {}
    names = ("sent", "delivered", "refused", "lost", "pending")
    sums = [
        {name: sum(row[name] for row in plain(lake.gold(dataset).collect())) for name in names}
        for dataset in wanted[:2]
    ]
    assert sums == [{"sent": 120, "delivered": 75, "refused": 0, "lost": 0, "pending": 45}] * 2


def test_settings_of_the_fleet(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text('[fleet]\nexpected = ["a", "b"]\nsilent_minutes = 20\n[keep]\nlab_days = 3\n')
    found = read_settings(file)
    assert (found.fleet.expected, found.fleet.silent_minutes, found.keep) == (
        ("a", "b"),
        20,
        Keep(lab_days=3),
    )
    assert read_settings(None) == Settings()
    for text, said in (
        ("[flete]\n", "no section"),
        ("[keep]\nlab = 3\n", "no setting lab"),
        ("[keep]\nlab_days = 0\n", "1 to 36500"),
        ('[fleet]\nexpected = "a"\n', "names expected"),
        ("[", "no TOML"),
    ):
        file.write_text(text)
        with pytest.raises(PipelineError, match=said):
            read_settings(file)
    with pytest.raises(PipelineError, match="No such file"):
        read_settings(tmp_path / "none.toml")
