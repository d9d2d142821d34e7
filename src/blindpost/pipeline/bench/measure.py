"""Running each job on each engine, and what Spark's own metrics say about its stages."""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str, int, int], None]
"""What is under way, how much of it is done, and of how much."""


@dataclass(frozen=True, slots=True)
class Result:
    """One job on one engine at one size. Times are of single repetitions, each with its own plan."""

    job: str
    engine: str
    rows: int
    cores: int
    first_s: float
    """The repetition that warms up: caches, and Java's compiler."""
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    """Of all threads of the engine's process: Java's compiler and collector are in it."""
    peak_bytes: int
    """Of the process since the first call; Java keeps memory that it once had."""
    shuffle_bytes: int | None = None
    stages: tuple[dict[str, float], ...] = field(default=())
    """Spark's: where the time of the last repetition went."""
    plan: str = ""

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def per_core(self) -> float:
        """Rows per second and assigned core, whatever else ran on it."""
        return self.rows / self.median_s / self.cores

    @property
    def per_cpu_s(self) -> float:
        """Rows per second of processor time: what a busy machine changes least."""
        return self.rows / statistics.median(self.cpu_seconds)


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
    cpu_s = tuple(found["cpu_seconds"][1:])
    return Result(job.name, engine, rows, cores, first, tuple(rest), cpu_s, found["peak_bytes"]), found[
        "digest"
    ]


def _spark(
    spark: SparkSession, job: Job, files: Path, rows: int, cores: int, repeat: int
) -> tuple[Result, str]:
    java = Java(spark)
    java.forget_peak()
    took_s, cpu_s, stages, plan = [], [], [], ""
    with tempfile.TemporaryDirectory() as place:
        for _ in range(repeat + 1):
            before = java.last_stage()
            began, worked = time.perf_counter(), java.cpu_s() + time.process_time()
            frame = job.spark(spark, files)
            frame.write.mode("overwrite").parquet(place)
            took_s.append(time.perf_counter() - began)
            cpu_s.append(java.cpu_s() + time.process_time() - worked)
            stages, plan = java.stages_after(before), java.explained(frame)
        answer = digest(Path(place))
    first, *rest = took_s
    shuffled = int(sum(stage["shuffle_bytes"] for stage in stages))
    result = Result(
        job.name,
        "spark",
        rows,
        cores,
        first,
        tuple(rest),
        tuple(cpu_s[1:]),
        java.peak_bytes(),
        shuffled,
        tuple(stages),
        plan,
    )
    return result, answer


class Java:
    """Spark's metrics and its process. Python's API does not offer them, so Java is called directly."""

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

    def cpu_s(self) -> float:
        """The processor time of the process and of those it started (Spark's Python)."""
        return _cpu_s(self._process.name)

    def jobs(self) -> int:
        """How many Spark has run since it was started."""
        return int(self._spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())

    def explained(self, frame: Any) -> str:
        return str(frame._jdf.queryExecution().executedPlan().toString())

    def forget_peak(self) -> None:
        if os.access(self._process / "clear_refs", os.W_OK):
            (self._process / "clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        return peak_bytes(self._process.name)


def _cpu_s(process: str) -> float:
    """From /proc, to a hundredth of a second; a process that has ended is counted in its parent."""
    place = Path("/proc") / process
    try:
        ticks = sum(map(int, (place / "stat").read_text().rpartition(")")[2].split()[11:15]))
        children = {child for task in (place / "task").iterdir() for child in _children(task)}
    except OSError:  # it has just ended
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK") + sum(map(_cpu_s, children))


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []


def written(results: Sequence[Result], startup_s: float) -> str:
    """Everything that was measured, as JSON."""
    rows = [
        {
            **asdict(result),
            "median_s": result.median_s,
            "rows_per_s_core": result.per_core,
            "rows_per_cpu_s": result.per_cpu_s,
        }
        for result in results
    ]
    return json.dumps({"spark_startup_s": startup_s, "results": rows}, indent=1) + "\n"


def against(results: Sequence[Result], result: Result, engine: str) -> float | None:
    """The rate per core of a result as a share of another engine's at the same job and size.

    By processor time, not wall clock: each engine ran alone, but maybe not on an idle machine.
    """
    other = [one for one in results if (one.job, one.rows, one.engine) == (result.job, result.rows, engine)]
    return result.per_cpu_s / other[0].per_cpu_s if other else None


def growth(results: Sequence[Result], job: str, engine: str) -> list[tuple[int, int, float]]:
    """From each size to the next, the power of the rows with which the processor's time grew: linear is 1."""
    own = sorted((one for one in results if (one.job, one.engine) == (job, engine)), key=lambda one: one.rows)
    return [
        (
            small.rows,
            big.rows,
            1 + math.log(small.per_cpu_s / big.per_cpu_s) / math.log(big.rows / small.rows),
        )
        for small, big in itertools.pairwise(own)
    ]
