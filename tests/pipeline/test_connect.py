"""The same rows come out through Spark Connect, from a server in a separate process."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from blindpost.pipeline import files
from blindpost.pipeline import follow as module
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.follow import follow
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.runner import run
from blindpost.pipeline.session import SparkOptions, start
from blindpost.serving.children import COMMAND, free_port
from tests.support.pipeline import journals
from tests.support.pipeline.lakes import AS_OF, LASTING, QUICK, plain, seal_journal
from tests.support.pipeline.spark_cluster import connect_server
from tests.support.serving.commands import ENVIRONMENT

pytestmark = pytest.mark.timeout(900)


def test_the_same_rows_through_spark_connect(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One day by the command, whose only Spark is the server; then the new days a follower finds."""
    rng = random.Random(23)
    folder = tmp_path / "journal"
    seal_journal(folder, journals.repeated(rng, journals.messages(rng, count=60)), rng, files=2)
    wanted = datasets()["delivery_slo"]
    here = Lake(spark, str(folder), str(tmp_path / "here"), settings=LASTING)
    run(here, [wanted])
    there = Lake(spark, str(folder), str(tmp_path / "there"), settings=LASTING)
    days = sorted(here.gold_store(wanted).current().partitions)
    with connect_server(tmp_path, QUICK) as address:
        where = ("--journal", str(folder), "--out", there.out, "--table", wanted.name, "--remote", address)
        command = [*COMMAND, "pipeline", "run", "--day", days[0], "--as-of", AS_OF, *where]
        done = subprocess.run(command, env=ENVIRONMENT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = plain(here.gold(wanted).collect())
    first = [row for row in rows if row["day"].isoformat() == days[0]]
    assert 0 < len(first) < len(rows)
    assert plain(there.gold(wanted).collect()) == first
    monkeypatch.setattr(module, "is_remote", lambda _: True)  # so does a follower of such a server
    (summary,) = follow(there, [wanted])
    assert summary.computed[wanted.name] == days[1:]
    assert follow(there, [wanted]) == []
    assert plain(there.gold(wanted).collect()) == rows


@pytest.mark.parametrize("remote", ["sc://127.0.0.1:{port}", "http://127.0.0.1:{port}", "sc://", "here"])
def test_a_missing_server_is_reported_at_once(remote: str) -> None:
    with pytest.raises(PipelineError, match="no Spark Connect server is there"):
        start(SparkOptions(remote=remote.format(port=free_port())))


def test_other_file_systems_are_refused_through_spark_connect(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "is_remote", lambda _: True)
    with pytest.raises(PipelineError, match="only folders can be used"):
        files.open_root(spark, "hdfs://somewhere/journal")
