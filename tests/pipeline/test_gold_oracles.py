"""Each table equals an oracle in plain Python, on random journals with every kind of fault."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from pyspark.sql import SparkSession

from blindpost.pipeline.dataset import Dataset, datasets
from tests.support.pipeline import journals, oracles
from tests.support.pipeline.journals import JOBS, SEEDS
from tests.support.pipeline.lakes import Row, computed, in_order

pytestmark = pytest.mark.timeout(900)  # the first job of a fresh Spark is slow on a busy machine
few = settings(max_examples=JOBS, deadline=None, phases=(Phase.explicit, Phase.generate))
"""A seed is more useful than a shrunken one."""
DATASETS = datasets()


def _same(found: list[Row], wanted: list[Row]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one == {name: _near(value) for name, value in other.items()}


def _near(value: Any) -> Any:
    return pytest.approx(value, rel=1e-12) if isinstance(value, float) else value


def _without(rows: list[Row], *names: str) -> list[Row]:
    return in_order({key: value for key, value in row.items() if key not in names} for row in rows)


def _dataset(name: str) -> Dataset:
    return DATASETS[name]


@given(SEEDS)
@few
def test_delivery_slo(spark: SparkSession, seeds: list[int]) -> None:
    journal = journals.together(seeds, journals.messages)
    _same(computed(spark, _dataset("delivery_slo"), journal), oracles.delivery_slo(journal))


@given(SEEDS)
@few
def test_service_drift(spark: SparkSession, seeds: list[int]) -> None:
    journal = journals.together(seeds, journals.state)
    found = computed(spark, _dataset("service_drift"), journal)
    _same(_without(found, "lanes_sampled"), _without(oracles.service_drift(journal)))


@given(SEEDS)
@few
def test_service_drift_queues(spark: SparkSession, seeds: list[int]) -> None:
    journal = journals.together(seeds, journals.state)
    _same(computed(spark, _dataset("service_drift_queues"), journal), oracles.drift_queues(journal))


@given(SEEDS)
@few
def test_migration_proof(spark: SparkSession, seeds: list[int]) -> None:
    journal = journals.together(seeds, journals.migrations)
    _same(computed(spark, _dataset("migration_proof"), journal), oracles.migration_proof(journal))


@given(SEEDS)
@few
def test_router_backlog(spark: SparkSession, seeds: list[int]) -> None:
    journal = journals.together(seeds, journals.production, journals.state)
    _same(computed(spark, _dataset("router_backlog"), journal), oracles.router_backlog(journal))


@given(SEEDS)
@few
def test_daily_statistics(spark: SparkSession, seeds: list[int]) -> None:
    journal = journals.together(seeds, journals.production)
    _same(computed(spark, _dataset("daily_statistics"), journal), oracles.daily_statistics(journal))
