"""A run of the pipeline that is killed, with no chance to clean up, at a point that it was told.

Started as a process of its own: python -m tests.support.killed_pipeline JOURNAL OUT STAGE POINT [follow]
"""

from __future__ import annotations

import os
import signal
import sys

from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.follow import follow
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.runner import Step, run
from blindpost.pipeline.session import SparkOptions, spark_session
from tests.support.lakes import QUICK

TABLES = ("delivery_slo", "router_backlog")


def main(journal: str, out: str, stage: str, point: str, how: str = "run") -> None:
    def observe(step: Step) -> None:
        if (step.stage, step.point) == (stage, point):
            os.kill(os.getpid(), signal.SIGKILL)

    wanted = [datasets()[name] for name in TABLES]
    with spark_session(SparkOptions("local[2]", settings=QUICK)) as spark:
        lake = Lake(spark, journal, out)
        if how == "follow":
            follow(lake, wanted, observe)
        else:
            run(lake, wanted, observer=observe)


if __name__ == "__main__":
    main(*sys.argv[1:])
