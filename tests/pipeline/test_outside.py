"""What may be published: noised once, exactly as stated, rounded, without small numbers or today."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import datasketches
import pytest
from pyspark.sql import SparkSession

from blindpost.journal.schema import TABLES
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.outside import LEAST, PUBLISHED, discrete_laplace, publish, shown, written
from blindpost.pipeline.runner import run
from tests.support.pipeline.lakes import LASTING, Journal, computed, seal_rows

DRAWS = 40_000
QUEUES = 50_000


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(1), Fraction(7, 3), Fraction(25)])
def test_the_noise_is_that_of_the_discrete_laplace_mechanism(scale: Fraction) -> None:
    """Every frequency near zero within five standard errors, and the variance within a few percent."""
    draw = random.Random(5).randrange
    found = Counter(discrete_laplace(scale, draw) for _ in range(DRAWS))
    ratio = math.exp(-1 / scale)
    for number in range(-4, 5):
        chance = (1 - ratio) / (1 + ratio) * ratio ** abs(number)
        error = math.sqrt(chance * (1 - chance) / DRAWS)
        assert abs(found[number] / DRAWS - chance) < 5 * error, number
    variance = sum(number**2 * times for number, times in found.items()) / DRAWS
    assert variance == pytest.approx(2 * ratio / (1 - ratio) ** 2, rel=0.08)


def test_neighbours_are_as_hard_to_tell_apart_as_the_budget_says() -> None:
    """With scale 2 the chances of any answer for 10 and for 11 differ by at most exp(1/2)."""
    draw = random.Random(6).randrange
    ten, eleven = (
        Counter(value + discrete_laplace(Fraction(2), draw) for _ in range(DRAWS)) for value in (10, 11)
    )
    for answer in range(6, 16):
        share = ten[answer] / eleven[answer]
        assert math.exp(-0.5) * 0.9 < share < math.exp(0.5) * 1.1, answer


def test_small_numbers_are_omitted_and_others_rounded() -> None:
    assert [shown(number) for number in (-50, 0, LEAST - 1)] == [None] * 3
    assert [shown(number) for number in (LEAST, 14, 15, 1_234)] == [10, 10, 20, 1_230]


def _lake(spark: SparkSession, folder: Path, now: datetime) -> Lake:
    return Lake(spark, str(folder / "journal"), str(folder / "lake"), settings=LASTING, clock=now.timestamp)


def _seal(folder: Path, router: str, day: datetime, sent: int) -> None:
    head = {"router": router, "role": "smp", "boot": "00" * 8, "seq": day.day}
    head["minute_s"] = int(day.timestamp())
    place = f"date={day.date()}/{router}.parquet"
    rows = [{**head, "name": "msgSent", "value": sent}]
    seal_rows(folder / "journal" / "P" / "p_counters" / place, TABLES["p_counters"], rows)
    gauges = [{**head, "name": "messages", "value": 1.0}]
    seal_rows(folder / "journal" / "P" / "p_gauges" / place, TABLES["p_gauges"], gauges)


def _sketches() -> tuple[bytes, bytes]:
    """Of many queues, and of these and ten more that change it; most would not."""
    active = datasketches.hll_sketch(12, datasketches.HLL_8)
    for number in range(QUEUES):
        active.update(number)
    before, changes = active.serialize_compact(), 0
    for number in range(QUEUES, 2 * QUEUES):
        known = active.get_estimate()
        active.update(number)
        changes += active.get_estimate() > known
        if changes == 10:
            break
    return before, active.serialize_compact()


def test_what_one_person_does_changes_a_number_by_no_more_than_is_hidden(spark: SparkSession) -> None:
    """Two routers with the same day, but for one person who uses the second one as much as is allowed."""
    minute_s = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp())
    counters = {"msgSent": 100, "msgRecv": 100, "qCreated": 10}
    sketches = _sketches()
    journal: Journal = {"p_counters": [], "p_gauges": [], "p_sketches": []}
    for router, person in (("without", 0), ("with", 1)):
        head = {"router": router, "role": "smp", "boot": "00" * 8, "seq": 1, "minute_s": minute_s}
        journal["p_counters"] += [
            {**head, "name": name, "value": 50_000 + person * most} for name, most in counters.items()
        ]
        journal["p_gauges"].append({**head, "name": "queues", "value": 1.0})
        about = {"name": "queues", "day_s": minute_s - 12 * 3_600, "sketch": sketches[person]}
        journal["p_sketches"].append({**head, **about})
    found = {row["router"]: row for row in computed(spark, datasets()["daily_statistics"], journal)}
    changed = {
        name: abs(found["with"][name] - found["without"][name])
        for name in found["with"]
        if isinstance(found["with"][name], int)
    }
    assert {one.column: changed[one.column] for one in PUBLISHED} == {
        one.column: one.most for one in PUBLISHED
    }
    assert changed["activeQueues_day"] > 100, "an estimate of queues hides nobody"


def test_a_day_is_noised_once_and_kept_whatever_arrives_later(spark: SparkSession, tmp_path: Path) -> None:
    first, second = (datetime(2026, 3, day, tzinfo=UTC) for day in (1, 2))
    for day in (first, second):
        _seal(tmp_path, "oak-secret", day, 50_000)
    wanted = [datasets()["daily_statistics"]]
    noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    lake = _lake(spark, tmp_path, noon)
    run(lake, wanted)
    rows = publish(lake, Fraction(1))
    assert [row["day"] for row in rows] == ["2026-03-01"]  # today is not over
    sent = rows[0]["messages_sent"]
    assert isinstance(sent, int)
    assert sent % 10 == 0
    assert abs(sent - 50_000) < 40 * 100 * len(PUBLISHED)
    assert rows[0]["queues_created"] is None or abs(int(rows[0]["queues_created"])) < 2_000
    _seal(tmp_path, "late", first, 1_000_000)
    run(lake, wanted)
    assert publish(lake, Fraction(1)) == rows == publish(lake, Fraction(100))
    later = _lake(spark, tmp_path, datetime(2026, 3, 3, 12, tzinfo=UTC))
    assert [row["day"] for row in publish(later, Fraction(1))] == ["2026-03-01", "2026-03-02"]
    for as_json in (True, False):
        text = written(publish(later, Fraction(1)), as_json=as_json)
        assert "oak" not in text
        assert "epsilon-differentially private" in text
    assert json.loads(written(rows, as_json=True))["days"] == rows
