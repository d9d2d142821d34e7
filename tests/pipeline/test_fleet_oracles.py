"""Storms, funnels, integrity and the delivery service's hours equal an oracle in plain Python."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from pyspark.sql import SparkSession

from blindpost.pipeline.dataset import datasets
from tests.support.pipeline import fleet_journals, fleet_oracles, journals
from tests.support.pipeline.journals import JOBS, SEEDS
from tests.support.pipeline.lakes import Journal, Row, computed

DATASETS = datasets()
pytestmark = pytest.mark.timeout(600)  # the first one starts Spark
CASES: dict[str, tuple[Callable[[random.Random], Journal], Callable[[Journal], list[Row]]]] = {
    "subscription_storms": (fleet_journals.subscriptions, fleet_oracles.subscription_storms),
    "displacement_flapping": (fleet_journals.services, fleet_oracles.displacement_flapping),
    "notification_funnel": (fleet_journals.funnel, fleet_oracles.notification_funnel),
    "token_transitions": (fleet_journals.funnel, fleet_oracles.token_transitions),
    "notification_canaries": (fleet_journals.notifications, fleet_oracles.notification_canaries),
    "canary_integrity": (journals.messages, fleet_oracles.canary_integrity),
    "canary_faults": (journals.messages, fleet_oracles.canary_faults),
    "delivery_service": (fleet_journals.delivery, fleet_oracles.delivery_service),
    "delivery_lab": (fleet_journals.load_test, fleet_oracles.delivery_lab),
}


def _near(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value


@pytest.mark.parametrize("name", CASES)
@given(seeds=SEEDS)
@settings(max_examples=JOBS, deadline=None, phases=(Phase.explicit, Phase.generate))
def test_a_table_equals_its_oracle(spark: SparkSession, name: str, seeds: list[int]) -> None:
    """Rows come repeated and in any order, from one or two boots, on both sides of midnight."""
    make, oracle = CASES[name]
    journal = journals.together(seeds, make)
    wanted = oracle(journal)
    found = computed(spark, DATASETS[name], journal)
    assert len(wanted) > 1
    assert [*found] == [{key: _near(value) for key, value in row.items()} for row in wanted]
