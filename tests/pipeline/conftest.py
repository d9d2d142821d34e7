"""One Spark for all tests of the pipeline, small and quick to plan."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from blindpost.pipeline.session import SparkOptions, spark_session
from tests.support.pipeline.lakes import QUICK

os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
"""Tests are short: a quick compiler beats an optimising one, in test clusters too."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session(SparkOptions("local[2]", settings=QUICK, small=True)) as session:
        yield session
