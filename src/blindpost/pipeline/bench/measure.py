"""Running each job on each engine, and what Spark's own books say about its stages."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindpost.pipeline.bench import data
from blindpost.pipeline.bench.jobs import JOBS, Job
from blindpost.pipeline.bench.rival import ENGINES, digest, peak_bytes
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.generate.plan import Plan
from blindpost.pipeline.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str, int, int], None]
"""What is under way, how much of it is done, and of how much."""


@dataclass(frozen=True, slots=True)
class Result:
    """One job on one engine at one size. Times are of single repetitions, each with a plan of its own."""

    job: str
    engine: str
    rows: int
    cores: int
    first_s: float
    """The repetition that warms up: caches, and Java's compiler."""
    seconds: tuple[float, ...]
    peak_bytes: int
    """Of the process since it was asked first; Java keeps memory that it had once."""
    shuffle_bytes: int | None = None
    stages: tuple[dict[str, float], ...] = field(default=())
    """Spark's: where the time of the last repetition went."""
    plan: str = ""

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def per_core(self) -> float:
        """Rows per second and core."""
        return self.rows / self.median_s / self.cores


def run(
    spark: SparkSession,
    folder: Path,
    sizes: Sequence[int],
    names: Sequence[str],
    cores: int,
    repeat: int,
    say: Say,
) -> Iterator[Result]:
    """Every job at every size: the files first, then the engines one after another."""
    plan = Plan(routers=data.ROUTERS)
    for rows in sizes:
        for name in names:
            job = JOBS[name]
            files = data.write(plan, job.table, rows, folder, partial(say, f"files for {name}"))
            answers: dict[str, str] = {}
            for engine in ("spark", *ENGINES):
                say(f"{name}, {rows:,} rows, {engine}", 0, 1)
                result, answer = (
                    _spark(spark, job, files, rows, cores, repeat)
                    if engine == "spark"
                    else _rival(engine, job, files, rows, cores, repeat)
                )
                answers[engine] = answer
                say(f"{name}, {rows:,} rows, {engine}", 1, 1)
                yield result
            if len(set(answers.values())) > 1:
                raise PipelineError(f"{name}: the engines do not agree on {rows:,} rows: {answers}.")


def _rival(engine: str, job: Job, files: Path, rows: int, cores: int, repeat: int) -> tuple[Result, str]:
    command = [
        sys.executable,
        "-m",
        "blindpost.pipeline.bench.rival",
        engine,
        job.name,
        str(files),
        str(cores),
        str(repeat),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own module)
    if ended.returncode:
        why = ended.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise PipelineError(f"{engine} could not do the job {job.name}: {why[0]}. Is it installed?")
    found = json.loads(ended.stdout)
    first, *rest = found["seconds"]
    return Result(job.name, engine, rows, cores, first, tuple(rest), found["peak_bytes"]), found["digest"]


def _spark(
    spark: SparkSession, job: Job, files: Path, rows: int, cores: int, repeat: int
) -> tuple[Result, str]:
    java = _Java(spark)
    java.forget_peak()
    took_s, answer, stages, plan = [], "", [], ""
    for _ in range(repeat + 1):
        before = java.last_stage()
        began = time.perf_counter()
        frame = job.spark(spark.read.schema(spark_schema(job.table)).parquet(str(files)))
        found = [tuple(row) for row in frame.collect()]
        took_s.append(time.perf_counter() - began)
        answer, stages = digest(found), java.stages_after(before)
        plan = java.explained(frame)
    first, *rest = took_s
    shuffled = int(sum(stage["shuffle_bytes"] for stage in stages))
    result = Result(
        job.name, "spark", rows, cores, first, tuple(rest), java.peak_bytes(), shuffled, tuple(stages), plan
    )
    return result, answer


class _Java:
    """Spark's books and its process. Python's API has no way to them, so these are Java's own calls."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark: Any = spark
        context: Any = spark.sparkContext
        self._jvm: Any = context._jvm
        self._store: Any = context._jsc.sc().statusStore()
        self._quantiles: Any = context._gateway.new_array(self._jvm.double, 0)
        self._process = Path("/proc") / str(self._jvm.java.lang.ProcessHandle.current().pid())

    def _all(self) -> list[Any]:
        found = self._store.stageList(None, False, False, self._quantiles, None)
        return [found.apply(place) for place in range(found.size())]

    def last_stage(self) -> int:
        return max((stage.stageId() for stage in self._all()), default=-1)

    def stages_after(self, number: int) -> list[dict[str, float]]:
        """Where the time went: seconds over all tasks."""
        return [
            {
                "stage": stage.stageId(),
                "tasks": stage.numTasks(),
                "run_s": stage.executorRunTime() / 1e3,
                "cpu_s": stage.executorCpuTime() / 1e9,
                "gc_s": stage.jvmGcTime() / 1e3,
                "read_rows": stage.inputRecords(),
                "shuffle_bytes": stage.shuffleWriteBytes(),
                "spilled_bytes": stage.diskBytesSpilled(),
                "peak_bytes": stage.peakExecutionMemory(),
            }
            for stage in sorted(self._all(), key=lambda stage: int(stage.stageId()))
            if stage.stageId() > number and stage.executorRunTime()
        ]

    def explained(self, frame: Any) -> str:
        return str(frame._jdf.queryExecution().executedPlan().toString())

    def forget_peak(self) -> None:
        if os.access(self._process / "clear_refs", os.W_OK):
            (self._process / "clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        return peak_bytes(self._process.name)


def written(results: Sequence[Result], startup_s: float) -> str:
    """Everything that was measured, as JSON."""
    rows = [
        {**asdict(result), "median_s": result.median_s, "rows_per_s_core": result.per_core}
        for result in results
    ]
    return json.dumps({"spark_startup_s": startup_s, "results": rows}, indent=1) + "\n"


def against(results: Sequence[Result], result: Result, engine: str) -> float | None:
    """The rate of a result as a share of another engine's at the same job and size."""
    other = [one for one in results if (one.job, one.rows, one.engine) == (result.job, result.rows, engine)]
    return result.per_core / other[0].per_core if other else None
