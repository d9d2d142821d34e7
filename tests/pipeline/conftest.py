"""One Spark for all tests of the pipeline, small and quick to plan."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from blindpost.pipeline.session import SparkOptions, spark_session
from tests.support.pipeline.lakes import QUICK
from tests.support.pipeline.shared_classes import archive, leave_behind

os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
"""Tests are short: a quick compiler beats an optimising one, in test clusters too."""


@pytest.fixture(scope="session")
def shared_classes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """If there is no archive of Spark's classes, a short run leaves one behind: all others start with it."""
    base = tmp_path_factory.getbasetemp()
    everybodys = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (everybodys / "classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive().exists():
            leave_behind(base / "classes")


@pytest.fixture(scope="session")
def spark(shared_classes: None) -> Iterator[SparkSession]:
    with spark_session(SparkOptions("local[2]", settings=QUICK, small=True)) as session:
        yield session
