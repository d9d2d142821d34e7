"""The benchmark: all engines answer the same, each repetition plans again, and the numbers are complete."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from blindpost.pipeline.bench import data, measure
from blindpost.pipeline.bench.jobs import JOBS
from blindpost.pipeline.bench.measure import Result, against, growth, run, written
from blindpost.pipeline.bench.rival import digest
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.generate.plan import Plan

pytestmark = pytest.mark.timeout(600)
ROWS = 3_000


@pytest.fixture(scope="module")
def results(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    folder = tmp_path_factory.mktemp("bench")
    return list(run(spark, folder, [ROWS], list(JOBS), 2, 1, lambda what, done, total: None))


def test_every_engine_does_every_job(results: list[Result]) -> None:
    """The run itself checks that they agree."""
    assert [(one.job, one.engine) for one in results] == [
        (job, engine) for job in JOBS for engine in ("spark", "duckdb", "polars")
    ]
    for one in results:
        assert (one.rows, one.cores, len(one.seconds)) == (ROWS, 2, 1)
        assert one.per_core == pytest.approx(ROWS / one.seconds[0] / 2)
        assert one.per_cpu_s == pytest.approx(ROWS / one.cpu_seconds[0])
        assert one.peak_bytes > 10_000_000
        assert against(results, one, one.engine) == 1


def test_sparks_own_metrics_are_read(results: list[Result]) -> None:
    for one in results:
        if one.engine == "spark":
            by_spark = ROWS if one.job in ("once", "reconcile") else 0  # the others read files in Python
            assert sum(stage["read_rows"] for stage in one.stages) == by_spark
            assert one.shuffle_bytes is not None
            assert one.shuffle_bytes > 0
            assert "HashAggregate" in one.plan or "SortAggregate" in one.plan
        else:
            assert (one.stages, one.shuffle_bytes) == ((), None)


def test_results_are_written_as_json(results: list[Result]) -> None:
    found = json.loads(written(results, 1.5))
    assert found["spark_startup_s"] == 1.5
    assert [row["rows_per_s_core"] for row in found["results"]] == [one.per_core for one in results]
    assert [row["rows_per_cpu_s"] for row in found["results"]] == [one.per_cpu_s for one in results]


def test_engines_that_disagree_are_reported(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Result("meters", "x", ROWS, 2, 1.0, (1.0,), (1.0,), 1)
    monkeypatch.setattr(measure, "_spark", lambda *_: (good, "one"))
    monkeypatch.setattr(measure, "_rival", lambda *_: (good, "other"))
    with pytest.raises(PipelineError, match="do not agree"):
        list(run(spark, tmp_path, [10], ["meters"], 2, 1, lambda what, done, total: None))


@pytest.mark.parametrize("name", JOBS)
def test_files_have_exactly_the_requested_rows_and_are_reused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "FILE_ROWS", 400)
    table, seen = JOBS[name].table, []
    for _ in range(2):
        folder = data.write(
            Plan(routers=data.ROUTERS), table, 1_000, tmp_path, lambda done, total: seen.append((done, total))
        )
    files = sorted(folder.rglob("*.parquet"))
    assert [pq.ParquetFile(path).metadata.num_rows for path in files] == [400, 400, 200]
    assert seen == [(400, 1_000), (800, 1_000), (1_000, 1_000), (1_000, 1_000)]
    rows = [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]
    assert len({tuple(row[column] for column in table.key) for row in rows}) == 1_000


def test_answers_compare_equal_in_any_order_and_number_of_files(tmp_path: Path) -> None:
    rows = {"b": [b"x", b"y", None], "a": [date(2031, 5, 1), date(2031, 5, 2), None], "n": [1, 2, 3]}
    whole = pa.table(rows)
    for name, parts in {
        "one": [whole],
        "parts": [whole.slice(1), whole.slice(0, 1).select(["n", "a", "b"])],
        "other": [whole.set_column(2, "n", pa.array([1, 2, 4]))],
        "less": [whole.slice(1)],
    }.items():
        (tmp_path / name).mkdir()
        for number, part in enumerate(parts):
            pq.write_table(part, tmp_path / name / f"{number}.parquet")
    one, parts_of_it, other, less = (digest(tmp_path / name) for name in ("one", "parts", "other", "less"))
    assert one == parts_of_it
    assert len({one, other, less}) == 3


def test_growth_is_the_exponent_of_the_row_count() -> None:
    """100 times the rows in 100 times the time is 1; in 10,000 times the time it is 2."""
    sizes = ((100, 1.0), (10_000, 100.0), (100_000, 10_000.0))
    results = [Result("audit", "spark", rows, 2, 0.0, (9.0,), (cpu_s,), 1) for rows, cpu_s in sizes]
    other = Result("meters", "spark", 7, 2, 0.0, (1.0,), (1.0,), 1)
    found = growth([results[2], other, *results[:2]], "audit", "spark")
    assert [(small, big) for small, big, _ in found] == [(100, 10_000), (10_000, 100_000)]
    assert [power for *_, power in found] == pytest.approx([1.0, 2.0])
