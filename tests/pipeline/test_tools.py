"""The commands `report` and `bench`, with the Spark of the tests: what they write, print and refuse."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from blindpost.cli.main import app
from blindpost.pipeline import session
from blindpost.serving.failures import OperatorError

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def _shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def shared(_options: Any = None) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session, "spark_session", shared)


def _invoke(*arguments: object) -> str:
    told = CliRunner().invoke(app, ["pipeline", *map(str, arguments)], catch_exceptions=False)
    assert told.exit_code == 0, told.output
    return told.output


def test_bench_prints_rates_and_writes_everything(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    arguments = (
        "--rows",
        "2e2",
        "--job",
        "meters",
        "--repeat",
        1,
        "--folder",
        tmp_path / "x",
        "--file",
        file,
    )
    said = _invoke("bench", *arguments)
    lines = [line.split() for line in said.splitlines() if line.split()[:1] == ["meters"]]
    assert [line[1:3] for line in lines] == [["200", "spark"], ["200", "duckdb"], ["200", "polars"]]
    assert lines[1][7] == "1.00"
    assert "Starting Spark took" in said
    assert "of DuckDB's rate; the aim is 0.50" in said  # so few rows are no work for Spark
    assert "outside tasks" in said
    assert "Aggregate" in said
    found = json.loads(file.read_text())["results"]
    assert [row["engine"] for row in found] == ["spark", "duckdb", "polars"]
    assert found[0]["plan"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bench", "--rows", "many"), "a number such as 1e6 expected, not 'many'"),
        (("bench", "--rows", "0"), "a number such as 1e6"),
        (("bench", "--job", "dance"), "There is no job dance. There are: once, audit, meters, reconcile."),
    ],
)
def test_mistakes_are_explained(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(OperatorError, match=said):
        _invoke(*arguments)


def test_a_report_needs_published_tables(tmp_path: Path) -> None:
    with pytest.raises(
        OperatorError, match=r"nothing is published here yet\. Run `blindpost pipeline run` first"
    ):
        _invoke("report", "--out", tmp_path / "lake", "--file", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
