"""The pipeline as a whole and in parts: Spark jobs, processor seconds and rows.

python -m benchmarks.pipeline [--rows 1e7 [--rows 1e8]] [--fleet 1e4] [--ledger 1e6]

Whole runs, each in a process of its own, from starting Java to the report: a demonstration's size,
`make pipeline`, and one table of many rows, of which silver's share is told. Then the sums beside DuckDB on
the same files, a day of a large fleet with a file for each router, and the ledger when nearly all files are
known. Processor seconds are those of Java, of Spark's Python and of the driver.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blindpost.pipeline.bench import data
from blindpost.pipeline.bench.measure import Java, against, run
from blindpost.pipeline.bench.rival import peak_bytes
from blindpost.pipeline.dataset import datasets
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
NOW_S = start_s(MAKE.dates[-1]) + DAY_S + 3_600
"""The fleets are of the past; a lake keeps events for some days only."""
ONE_TABLE = ["displacement_flapping"]
"""Reads counters and little else."""


@dataclass(frozen=True, slots=True)
class Whole:
    """One run with its report."""

    rows: int
    jobs: int
    cpu_s: float
    stages_s: dict[str, float]
    """Of these: starting, bronze, silver, gold, report."""
    clock_s: float
    peak_bytes: int
    """Of Java and of the driver's Python together."""
    again_s: float
    """Processor seconds of a second run, in which nothing is new."""


def child(journal: str, lake_folder: str, tables: list[str]) -> Whole:
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

        lake = Lake(spark, journal, lake_folder, clock=lambda: NOW_S)
        compute(lake, wanted, None, count)
        build(gather(lake, None, None, NOW_S))
        count(Step("report", "", ""))
        rows = sum(folder.rows for folder in lake.ledger.folders().values())
        total, jobs, clock_s = at, java.jobs(), time.perf_counter() - began
        compute(lake, wanted)
        again_s = java.cpu_s() + time.process_time() - at
        peak = java.peak_bytes() + peak_bytes("self")
        return Whole(rows, jobs, total, stages, clock_s, peak, again_s)


def whole(journal: Path, tables: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as lake:
        command = [sys.executable, "-m", "benchmarks.pipeline", "--child", str(journal), lake, *tables]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return found


def _told(name: str, found: dict[str, Any]) -> None:
    parts = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in found["stages_s"].items())
    print(
        f"{name}: {found['rows']:,} rows, {found['jobs']} jobs, {found['cpu_s']:.1f} CPU s ({parts}), "
        f"{found['clock_s']:.0f} s by the clock, peak {found['peak_bytes'] / 1e6:.0f} MB; "
        f"again with nothing new {found['again_s']:.1f} CPU s",
        flush=True,
    )


def smallest() -> None:
    """One table of a small fleet, and a small ledger: everything once, as quickly as can be."""
    with tempfile.TemporaryDirectory() as place:
        generate(DEMO, Path(place), lambda *_: None)
        _told("one table of a demonstration's size", whole(Path(place) / JOURNAL, ONE_TABLE))
    _tell_ledger(20)


def main(sizes: list[int], fleets: list[int], ledger: int, repeat: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        for name, plan in (("demonstration's size", DEMO), ("make pipeline", MAKE)):
            folder = Path(place, name)
            generate(plan, folder, lambda *_: None)
            for _ in range(repeat):
                _told(name, whole(folder / JOURNAL, []))
        for routers in fleets:
            journal = data.fleet(Plan(), routers, Path(place, f"fleet-{routers}"))
            _told(f"a day of {routers:,} routers, a file each", whole(journal, ONE_TABLE))
        for rows in sizes:
            journal = data.journal(Plan(routers=data.ROUTERS), rows, Path(place, f"many-{rows}"))
            _told(f"one table of {rows:,} rows", whole(journal, ONE_TABLE))
            shutil.rmtree(journal)
            with spark_session(SparkOptions("local[2]")) as spark:
                results = list(
                    run(spark, Path(place), [rows], ["audit", "meters"], 2, repeat, lambda *_: None)
                )
            for one in results:
                share = against(results, one, "duckdb") or 0.0
                rate = one.per_cpu_s / 1e6
                print(
                    f"{one.job}, {one.rows:,} rows, {one.engine}: {rate:.1f} M rows/CPU s, "
                    f"{share:.2f} of DuckDB"
                )
    if ledger:
        _tell_ledger(ledger)


def _tell_ledger(files: int) -> None:
    command = [sys.executable, "-m", "blindpost.pipeline.bench.ledger", str(files), "100"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    stock = json.loads(ended.stdout)
    print(
        f"ledger of {stock['files']:,} files: {stock['known_s']:.1f} CPU s when nothing is new, "
        f"{stock['new_s']:.1f} with {stock['new']} new files, peak {stock['peak_bytes'] / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(asdict(child(sys.argv[2], sys.argv[3], sys.argv[4:]))))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--rows", type=float, action="append", help="Rows of the large table (1e7).")
        parser.add_argument("--fleet", type=float, action="append", help="Routers of a fleet (1e3, 1e4).")
        parser.add_argument("--ledger", type=float, default=1e6, help="Files of the ledger; 0 for none.")
        parser.add_argument("--repeat", type=int, default=2)
        parser.add_argument("--smallest", action="store_true", help="Everything once, as quickly as can be.")
        given = parser.parse_args()
        if given.smallest:
            smallest()
        else:
            sizes = [int(rows) for rows in given.rows or [1e7] if rows]
            fleets = [int(routers) for routers in given.fleet or [1e3, 1e4] if routers]
            main(sizes, fleets, int(given.ledger), given.repeat)
