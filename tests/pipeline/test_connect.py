"""The same rows come out through Spark Connect, from a server that is a process of its own."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from blindpost.pipeline import files
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.runner import run
from blindpost.pipeline.session import SparkOptions, start
from tests.support import journals
from tests.support.commands import COMMAND, ENVIRONMENT
from tests.support.lakes import QUICK, plain, seal_journal
from tests.support.processes import free_port
from tests.support.spark_cluster import connect_server

pytestmark = pytest.mark.timeout(900)


def pipeline(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`blindpost pipeline run`, whose only Spark is the one it is told of."""
    command = [*COMMAND, "pipeline", "run", *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, check=False, capture_output=True, text=True)


def test_the_same_rows_through_spark_connect(spark: SparkSession, tmp_path: Path) -> None:
    """One day first, as an operator would ask for it; what a follower then finds new are the others."""
    rng = random.Random(23)
    folder = tmp_path / "journal"
    seal_journal(folder, journals.repeated(rng, journals.messages(rng, count=60)), rng, files=2)
    wanted = datasets()["delivery_slo"]
    here = Lake(spark, str(folder), str(tmp_path / "here"))
    run(here, [wanted])
    there = Lake(spark, str(folder), str(tmp_path / "there"))
    days = sorted(here.gold_store(wanted).current().partitions)
    with connect_server(tmp_path, QUICK) as address:
        where = ("--journal", folder, "--out", there.out, "--table", wanted.name, "--remote", address)
        done = pipeline("--day", days[0], *where)
        assert done.returncode == 0, done.stderr
        assert sorted(there.gold_store(wanted).current().partitions) == days[:1]
        done = pipeline("--follow", "--json", *where)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["computed"][wanted.name] == days[1:]
    rows = plain(here.gold(wanted).collect())
    assert len(rows) > 1
    assert plain(there.gold(wanted).collect()) == rows


@pytest.mark.parametrize("remote", ["sc://127.0.0.1:{port}", "http://127.0.0.1:{port}", "sc://", "here"])
def test_where_no_server_is_one_is_told_at_once(remote: str) -> None:
    with pytest.raises(PipelineError, match="no Spark Connect server is there"):
        start(SparkOptions(remote=remote.format(port=free_port())))


def test_other_file_systems_are_refused_through_spark_connect(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "is_remote", lambda _: True)
    with pytest.raises(PipelineError, match="only folders can be used"):
        files.open_root(spark, "hdfs://somewhere/journal")
