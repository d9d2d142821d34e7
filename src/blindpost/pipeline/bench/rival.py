"""One job by DuckDB or Polars, in a process of its own: its peak of memory is then its own.

python -m blindpost.pipeline.bench.rival ENGINE JOB FOLDER THREADS REPEAT
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blindpost.pipeline.bench.jobs import JOBS, Job, plain

Rows = list[tuple[Any, ...]]


def digest(rows: Rows) -> str:
    """The same for the same rows."""
    return hashlib.sha256(repr(plain(rows)).encode()).hexdigest()[:16]


def peak_bytes(process: str) -> int:
    """The most memory that a process ever had at once, as far as the system says it."""
    status = Path("/proc") / process / "status"
    found = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in found if line.startswith("VmHWM"))


def _duckdb(job: Job, folder: str, threads: int) -> Callable[[], Rows]:
    import duckdb

    connection = duckdb.connect(config={"threads": threads})
    query = job.duckdb.replace("source", f"read_parquet('{folder}/*/*.parquet', hive_partitioning = false)")

    def ask() -> Rows:
        return [tuple(row) for row in connection.execute(query).fetchall()]

    return ask


def _polars(job: Job, folder: str, threads: int) -> Callable[[], Rows]:
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    import polars as pl

    def ask() -> Rows:
        source = pl.scan_parquet(f"{folder}/*/*.parquet", hive_partitioning=False)
        return job.polars(source).collect(engine="streaming").rows()

    return ask


ENGINES = {"duckdb": _duckdb, "polars": _polars}


def main(engine: str, job: str, folder: str, threads: str, repeat: str) -> None:
    started = time.perf_counter()
    ask = ENGINES[engine](JOBS[job], folder, int(threads))
    startup_s = time.perf_counter() - started
    took_s, rows = [], []
    for _ in range(int(repeat) + 1):
        began = time.perf_counter()
        rows = ask()
        took_s.append(time.perf_counter() - began)
    found = {
        "startup_s": startup_s,
        "seconds": took_s,
        "peak_bytes": peak_bytes("self"),
        "digest": digest(rows),
        "rows": len(rows),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
