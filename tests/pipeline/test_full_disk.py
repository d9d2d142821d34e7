"""A disk that fills inside a job: one message, and readers see what was published before, whole."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from blindpost.cli.pipeline import app
from blindpost.pipeline import session
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.lake import Lake
from blindpost.serving.failures import OperatorError
from tests.support.pipeline import journals, oracles
from tests.support.pipeline.lakes import AS_OF, LASTING, Journal, Row, in_order, plain, seal_journal

pytestmark = pytest.mark.timeout(900)
TABLE = "delivery_slo"
DISK_BYTES = 4 << 20
LEFT = (0, 48 << 10)
"""Free bytes when a run begins: too few for our own files, and for those of a job."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(autouse=True)
def _shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def shared(_options: Any = None) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session, "spark_session", shared)


def _fill(disk: Path, left: int) -> None:
    """Fill the disk except for this many bytes."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    free = shutil.disk_usage(disk).free
    with filler.open("wb") as file:
        file.write(bytes(free - left))


def _run(journal: Path, lake: Path) -> None:
    places = ["--journal", str(journal), "--out", str(lake), "--table", TABLE, "--as-of", AS_OF]
    done = CliRunner().invoke(app, ["run", *places], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def _rows(spark: SparkSession, lake: Path) -> list[Row]:
    """By the manifest; a glob must see as many."""
    found = plain(Lake(spark, str(lake), str(lake), settings=LASTING).gold(datasets()[TABLE]).collect())
    assert len(duckdb.read_parquet(f"{lake}/gold/{TABLE}/*.parquet").fetchall()) == len(found)
    return found


def test_a_disk_that_fills_inside_a_job(spark: SparkSession, disk: Path, tmp_path: Path) -> None:
    rng = random.Random(31)
    whole: Journal = journals.messages(rng, count=300)
    half = {name: rows[: len(rows) // 2] for name, rows in whole.items()}
    lake, journal, late = disk / "lake", tmp_path / "journal", tmp_path / "late"
    seal_journal(journal, half, rng, files=1)
    seal_journal(late, {name: rows[len(rows) // 2 :] for name, rows in whole.items()}, rng, files=1)
    _run(journal, lake)
    before = _rows(spark, lake)
    assert before == in_order(oracles.delivery_slo(half))
    shutil.copytree(late, journal, dirs_exist_ok=True)
    for left in LEFT:
        _fill(disk, left)
        with pytest.raises(OperatorError, match=f"The disk is full. Make room for {lake}, or for Spark's"):
            _run(journal, lake)
        assert _rows(spark, lake) == before, left
    (disk / "filler").unlink()
    _run(journal, lake)
    assert _rows(spark, lake) == in_order(oracles.delivery_slo(whole))
