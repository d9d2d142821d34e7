"""A run of the pipeline in which something is killed, with no chance to clean up, at a point it was told.

Started as a process of its own: python -m tests.support.pipeline.killed JOURNAL OUT STAGE POINT HOW
where HOW is `run` or `follow`, and this process is killed, or the address of a master, and an executor is.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.follow import follow
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.runner import Step, run
from blindpost.pipeline.session import SparkOptions, spark_session
from tests.support.pipeline.lakes import LASTING, QUICK

TABLES = ("delivery_slo",)


def main(journal: str, out: str, stage: str, point: str, how: str = "run") -> None:
    on_cluster = how.startswith("spark://")
    settings = {**QUICK, "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    master = how if on_cluster else "local[2]"
    with spark_session(SparkOptions(master, settings=settings, small=True)) as spark:

        def observe(step: Step) -> None:
            if (step.stage, step.point) == (stage, point):
                os.kill(_executor(spark) if on_cluster else os.getpid(), signal.SIGKILL)

        wanted = [datasets()[name] for name in TABLES]
        lake = Lake(spark, journal, out, settings=LASTING)
        if how == "follow":
            follow(lake, wanted, observe)
        else:
            run(lake, wanted, observer=observe)


def _executor(spark: SparkSession) -> int:
    """One of the processes that compute for this run."""
    application = spark.sparkContext.applicationId.encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if application in words and any(b"ExecutorBackend" in word for word in words):
            return int(folder.name)
    raise AssertionError("no executor runs")


if __name__ == "__main__":
    main(*sys.argv[1:])
