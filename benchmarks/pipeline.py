"""The pipeline as a whole and in parts: Spark jobs, processor seconds and rows, beside DuckDB.

python -m benchmarks.pipeline [--rows 1e7 --rows 1e8] [--fleet 1e4] [--ledger 1e6] [--folder FOLDER]

Whole runs, each in a process of its own, from starting Java to the report: a demonstration's size,
`make pipeline`, and one table of many rows, of which silver's share is told; beside it DuckDB writes the same
rows by day. Then the sums beside DuckDB on the same files, a day of a large fleet with a file for each
router, and the ledger when nearly all files are known. Processor seconds are those of Java, of Spark's Python
and of the driver. The clock of a run is an hour after the journal's last day: a run that sets anything aside
as from the future, or loses a row on the way to silver, is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures.rows import Better, Figure, as_json, merged, single
from blindpost.journal.schema import P_COUNTERS
from blindpost.pipeline.bench import data
from blindpost.pipeline.bench.measure import Java, Result, against, run
from blindpost.pipeline.bench.rival import peak_bytes
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.examine import Reason
from blindpost.pipeline.generate.fleet import JOURNAL, generate
from blindpost.pipeline.generate.plan import DAY_S, Plan, start_s
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.report.build import build
from blindpost.pipeline.report.facts import gather
from blindpost.pipeline.runner import Step
from blindpost.pipeline.runner import run as compute
from blindpost.pipeline.session import SparkOptions, spark_session
from blindpost.pipeline.sizing import is_small

DEMO = Plan(routers=2, days=1, scale=0.0005)
MAKE = Plan(routers=3, days=2, scale=0.02)
OVER_S = 3_600
ONE_TABLE = ["displacement_flapping"]
"""Reads counters and little else."""


@dataclass(frozen=True, slots=True)
class Whole:
    """One run with its report."""

    rows: int
    silver_rows: int
    """Of counters."""
    jobs: int
    cpu_s: float
    stages_s: dict[str, float]
    """Of these: starting, bronze, silver, gold, report."""
    clock_s: float
    peak_bytes: int
    """Of Java and of the driver's Python together."""
    again_s: float
    """Processor seconds of a second run, in which nothing is new."""


def child(journal: str, lake_folder: str, now_s: int, tables: list[str]) -> Whole:
    """What the process of its own does."""
    began = time.perf_counter()
    wanted = [one for name, one in datasets().items() if not tables or name in tables]
    with spark_session(SparkOptions(small=is_small(journal))) as spark:
        java = Java(spark)
        stages = {"start": java.cpu_s() + time.process_time()}
        at = stages["start"]

        def count(step: Step) -> None:
            nonlocal at
            now = java.cpu_s() + time.process_time()
            stages[step.stage] = stages.get(step.stage, 0.0) + now - at
            at = now

        lake = Lake(spark, journal, lake_folder, clock=lambda: now_s)
        summary = compute(lake, wanted, None, count)
        build(gather(lake, None, None, now_s))
        count(Step("report", "", ""))
        total, jobs, clock_s = at, java.jobs(), time.perf_counter() - began
        compute(lake, wanted)
        again_s = java.cpu_s() + time.process_time() - at
        peak = java.peak_bytes() + peak_bytes("self")
        if ahead := [entry.path for entry in summary.set_aside if entry.reason == Reason.AHEAD.value]:
            raise ValueError(f"{len(ahead)} files were set aside as from the future: the clock is wrong")
        kept = lake.silver_store(P_COUNTERS).current().partitions.values()
        silver_rows = sum(partition.rows for partition in kept)
        return Whole(summary.rows, silver_rows, jobs, total, stages, clock_s, peak, again_s)


def whole(journal: Path, over_s: int, tables: list[str]) -> dict[str, Any]:
    """A run over a journal whose last day was over then."""
    with tempfile.TemporaryDirectory() as lake:
        now_s = str(over_s + OVER_S)
        command = [sys.executable, "-m", "benchmarks.pipeline", "--child", str(journal), lake, now_s, *tables]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return found


def _told(name: str, found: dict[str, Any]) -> list[Figure]:
    parts = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in found["stages_s"].items())
    print(
        f"{name}: {found['rows']:,} rows, {found['jobs']} jobs, {found['cpu_s']:.1f} CPU s ({parts}), "
        f"{found['clock_s']:.0f} s by the clock, peak {found['peak_bytes'] / 1e6:.0f} MB; "
        f"again with nothing new {found['again_s']:.1f} CPU s",
        flush=True,
    )
    stages = [single(f"{name}: {stage}", "CPU s", seconds) for stage, seconds in found["stages_s"].items()]
    return [
        single(f"{name}: all", "CPU s", found["cpu_s"]),
        *stages,
        single(f"{name}: again with nothing new", "CPU s", found["again_s"]),
        single(f"{name}: jobs", "Spark jobs", found["jobs"]),
        single(f"{name}: peak", "MB", found["peak_bytes"] / 1e6),
    ]


_COPY = """
import sys, time, duckdb
files, target = sys.argv[1:]
connection = duckdb.connect(config={"threads": 2})
connection.execute("SET enable_progress_bar = false")
began = time.process_time()
connection.execute(
    f"COPY (SELECT *, epoch_ms(minute_s * 1000)::DATE AS day FROM "
    f"read_parquet('{files}', hive_partitioning = false)) "
    f"TO '{target}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day))"
)
print(time.process_time() - began)
"""


def _many(rows: int, place: Path) -> list[Figure]:
    """One table of many rows: silver, and DuckDB writing the same rows by day without looking at them."""
    plan = Plan(routers=data.ROUTERS)
    journal = place / f"many-{rows}"
    if not journal.exists():
        data.journal(plan, rows, journal)
    found = whole(journal, data.end_s(plan, rows), ONE_TABLE)
    if found["rows"] != rows or found["silver_rows"] != rows:
        raise ValueError(f"of {rows:,} rows {found['silver_rows']:,} are in silver")
    figures = _told(f"one table of {rows:,} rows", found)
    with tempfile.TemporaryDirectory() as target:
        files = journal / P_COUNTERS.tier.value / P_COUNTERS.name / "*" / "*.parquet"
        command = [sys.executable, "-c", _COPY, str(files), f"{target}/copy"]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    copied = "the same rows written by day by DuckDB, unchecked"
    print(f"{copied}: {float(ended.stdout):.1f} CPU s", flush=True)
    return [*figures, single(f"{rows:,} rows: {copied}", "CPU s", float(ended.stdout), Better.NEITHER)]


def _sums(rows: int, repeat: int, place: Path) -> list[Figure]:
    with spark_session(SparkOptions("local[2]")) as spark:
        results = list(run(spark, place, [rows], ["audit", "meters"], 2, repeat, lambda *_: None))
    for one in results:
        share = against(results, one, "duckdb") or 0.0
        print(
            f"{one.job}, {one.rows:,} rows, {one.engine}: {one.per_cpu_s / 1e6:.1f} M rows/CPU s, "
            f"{share:.2f} of DuckDB",
            flush=True,
        )
    own = [one for one in results if one.engine == "spark"]
    return [
        *(_rates(one) for one in results),
        *(
            single(f"{_named(one)}: of DuckDB", "x", against(results, one, "duckdb") or 0.0, Better.HIGHER)
            for one in own
        ),
    ]


def _named(one: Result) -> str:
    return f"{one.job}, {one.rows:,} rows, {one.engine}"


def _rates(one: Result) -> Figure:
    rates = sorted(one.rows / seconds / 1e6 for seconds in one.cpu_seconds)
    better = Better.HIGHER if one.engine == "spark" else Better.NEITHER
    return Figure(_named(one), "M rows/CPU s", one.per_cpu_s / 1e6, rates[0], rates[-1], better)


def smallest() -> list[Figure]:
    """One table of a small fleet, and a small ledger: everything once, as quickly as can be."""
    with tempfile.TemporaryDirectory() as place:
        generate(DEMO, Path(place), lambda *_: None)
        journal, over_s = Path(place) / JOURNAL, start_s(DEMO.dates[-1]) + DAY_S
        figures = _told("one table of a demonstration's size", whole(journal, over_s, ONE_TABLE))
    return figures + _tell_ledger(20)


def main(sizes: list[int], fleets: list[int], ledger: int, repeat: int, place: Path) -> list[Figure]:
    runs: list[list[Figure]] = []
    for name, plan in (("demonstration's size", DEMO), ("make pipeline", MAKE)):
        with tempfile.TemporaryDirectory() as folder:
            generate(plan, Path(folder), lambda *_: None)
            for _ in range(repeat):
                runs.append(_told(name, whole(Path(folder) / JOURNAL, start_s(plan.dates[-1]) + DAY_S, [])))
    for routers in fleets:
        with tempfile.TemporaryDirectory() as folder:
            plan = Plan()
            journal = data.fleet(plan, routers, Path(folder))
            found = whole(journal, start_s(plan.first) + DAY_S, ONE_TABLE)
            runs.append(_told(f"a day of {routers:,} routers, a file each", found))
    for rows in sizes:
        runs += _many(rows, place), _sums(rows, repeat, place)
    if ledger:
        runs.append(_tell_ledger(ledger))
    return merged(runs)


def _tell_ledger(files: int) -> list[Figure]:
    command = [sys.executable, "-m", "blindpost.pipeline.bench.ledger", str(files), "100"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    stock = json.loads(ended.stdout)
    print(
        f"ledger of {stock['files']:,} files: {stock['known_s']:.1f} CPU s when nothing is new, "
        f"{stock['new_s']:.1f} with {stock['new']} new files, peak {stock['peak_bytes'] / 1e6:.0f} MB"
    )
    of = f"ledger of {stock['files']:,} files"
    return [
        single(f"{of}: nothing new", "CPU s", stock["known_s"]),
        single(f"{of}: {stock['new']} new", "CPU s", stock["new_s"]),
        single(f"{of}: peak", "MB", stock["peak_bytes"] / 1e6),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        journal, lake, now_s, *tables = sys.argv[2:]
        print(json.dumps(asdict(child(journal, lake, int(now_s), tables))))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--rows", type=float, action="append", help="Rows of the large table (1e7).")
        parser.add_argument("--fleet", type=float, action="append", help="Routers of a fleet (none).")
        parser.add_argument("--ledger", type=float, default=1e6, help="Files of the ledger; 0 for none.")
        parser.add_argument("--repeat", type=int, default=2)
        parser.add_argument("--folder", type=Path, help="Where large journals are kept and found again.")
        parser.add_argument(
            "--json", action="store_true", help="Print JSON; the text goes to the error output."
        )
        parser.add_argument("--smallest", action="store_true", help="Everything once, as quickly as can be.")
        given = parser.parse_args()
        with contextlib.redirect_stdout(sys.stderr) if given.json else contextlib.nullcontext():
            if given.smallest:
                figures = smallest()
            else:
                sizes = [int(rows) for rows in given.rows or [1e7] if rows]
                fleets = [int(routers) for routers in given.fleet or [] if routers]
                with tempfile.TemporaryDirectory() as place:
                    figures = main(
                        sizes, fleets, int(given.ledger), given.repeat, given.folder or Path(place)
                    )
        if given.json:
            print(as_json(figures))
