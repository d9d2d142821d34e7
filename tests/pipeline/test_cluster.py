"""The same rows come out on one machine and on a cluster, started as an operator would."""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import blindpost
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.runner import run
from tests.support.docs.documents import ROOT
from tests.support.docs.executed import Place, commands_at
from tests.support.docs.packages import build_wheel
from tests.support.pipeline import journals
from tests.support.pipeline import killed as killed_pipeline
from tests.support.pipeline.lakes import AS_OF, LASTING, plain, seal_journal
from tests.support.pipeline.spark_cluster import Cluster, cluster

pytestmark = pytest.mark.timeout(900)
LONG = bool(os.environ.get("BLINDPOST_PIPELINE_LONG"))
NAMES = ("delivery_slo", "service_drift") if LONG else ("delivery_slo",)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def as_documented(places: dict[str, str]) -> tuple[Path, list[str]]:
    """The program that the guide submits, and its arguments with paths of this machine."""
    (line,) = (c.text for c in commands_at(Place.ON_A_CLUSTER) if c.text.startswith("spark-submit "))
    words = shlex.split(line)
    wheel = f"blindpost-{blindpost.__version__}-py3-none-any.whl"
    assert words[1:5] == ["--master", "spark://host:7077", "--py-files", wheel]
    return ROOT / words[5], [places.get(word, word) for word in words[6:]]


def test_the_same_rows_on_a_cluster(spark: SparkSession, started: Cluster, tmp_path: Path) -> None:
    rng = random.Random(21)
    found = {**journals.messages(rng, count=150), **journals.state(rng, routers=2, days=2)}
    folder = tmp_path / "journal"
    seal_journal(folder, journals.repeated(rng, found), rng, files=3)
    wanted = [datasets()[name] for name in NAMES]
    built = build_wheel(tmp_path / "wheel")
    here = Lake(spark, str(folder), str(tmp_path / "here"), settings=LASTING)
    run(here, wanted)
    there = Lake(spark, str(folder), str(tmp_path / "there"), settings=LASTING)
    tables = [argument for name in NAMES for argument in ("--table", name)]
    program, arguments = as_documented({"hdfs:///journal": str(folder), "hdfs:///lake": there.out})
    done = started.submit(built, program, *arguments, *tables, "--as-of", AS_OF)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["set_aside"] == 0
    for dataset in wanted:
        rows = plain(here.gold(dataset).collect())
        assert rows
        assert plain(there.gold(dataset).collect()) == rows


@pytest.mark.skipif(not LONG, reason="`make pipeline-long` kills executors")
@pytest.mark.parametrize("stage", ["silver", "gold"])
@pytest.mark.parametrize("point", ["found", "computed", "checked"])
def test_a_killed_executor_changes_nothing(
    spark: SparkSession, started: Cluster, tmp_path: Path, stage: str, point: str
) -> None:
    rng = random.Random(22)
    found = journals.messages(rng, count=150)
    folder = tmp_path / "journal"
    seal_journal(folder, journals.repeated(rng, found), rng, files=3)
    wanted = [datasets()[name] for name in killed_pipeline.TABLES]
    here = Lake(spark, str(folder), str(tmp_path / "here"), settings=LASTING)
    run(here, wanted)
    there = Lake(spark, str(folder), str(tmp_path / "there"), settings=LASTING)
    program = [sys.executable, "-m", "tests.support.pipeline.killed"]
    subprocess.run([*program, str(folder), there.out, stage, point, started.master], check=True)
    for dataset in wanted:
        assert plain(there.gold(dataset).collect()) == plain(here.gold(dataset).collect())
