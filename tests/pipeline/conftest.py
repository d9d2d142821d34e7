"""One Spark for all tests of the pipeline, small and quick to plan."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from blindpost.pipeline.session import SparkOptions, spark_session
from tests.support.lakes import QUICK

HERE = Path(__file__).parent

os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
"""Tests are short: a compiler that starts at once beats one that optimises."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them in one worker, so that one Spark serves them."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session(SparkOptions("local[2]", settings=QUICK)) as session:
        yield session
