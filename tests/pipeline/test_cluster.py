"""The same rows come out on one machine and on a cluster, started as an operator would."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from blindpost.pipeline import submit
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.runner import run
from tests.support import journals
from tests.support.lakes import plain, seal_journal
from tests.support.spark_cluster import cluster, wheel

pytestmark = pytest.mark.timeout(900)
NAMES = ("delivery_slo", "service_drift")
ROOT = Path(__file__).parents[2]


def test_the_same_rows_on_a_cluster(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(21)
    found = {**journals.messages(rng, count=150), **journals.state(rng, routers=2, days=2)}
    folder = tmp_path / "journal"
    seal_journal(folder, journals.repeated(rng, found), rng, files=3)
    wanted = [datasets()[name] for name in NAMES]
    here = Lake(spark, str(folder), str(tmp_path / "here"))
    run(here, wanted)
    there = Lake(spark, str(folder), str(tmp_path / "there"))
    tables = [argument for name in NAMES for argument in ("--table", name)]
    with cluster(tmp_path) as started:
        program = Path(submit.__file__)
        done = started.submit(
            *(wheel(ROOT, tmp_path / "wheel"), program, "--journal", str(folder), "--out", there.out),
            *tables,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["set_aside"] == 0
    for dataset in wanted:
        rows = plain(here.gold(dataset).collect())
        assert rows
        assert plain(there.gold(dataset).collect()) == rows
