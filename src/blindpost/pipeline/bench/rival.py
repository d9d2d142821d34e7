"""One job by DuckDB or Polars, in a separate process, so that peak memory is that of the job alone.

python -m blindpost.pipeline.bench.rival ENGINE JOB FOLDER THREADS REPEAT
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from blindpost.pipeline.bench.jobs import JOBS, Job

Ask = Callable[[Path], None]
"""Answers into a Parquet file."""


def digest(answer: Path) -> str:
    """The same for the same rows, whatever their order and however many files they are in."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = pq.ParquetDataset(answer, partitioning=None).read()
    days = [place for place, field in enumerate(found.schema) if pa.types.is_date32(field.type)]
    for place in days:
        found = found.set_column(place, found.schema.names[place], found.column(place).cast(pa.int32()))
    rows = found.select(sorted(found.schema.names)).to_pandas()
    hashes = pd.util.hash_pandas_object(rows, index=False).to_numpy()
    return f"{int(hashes.sum(dtype='uint64')):016x}, {len(rows)} rows"


def peak_bytes(process: str) -> int:
    """The most memory that a process ever had at once, as far as the system says it."""
    status = Path("/proc") / process / "status"
    found = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in found if line.startswith("VmHWM"))


def _duckdb(job: Job, folder: str, threads: int) -> Ask:
    import duckdb

    connection = duckdb.connect(config={"threads": threads})
    query = job.duckdb.replace("source", f"read_parquet('{folder}/*/*.parquet', hive_partitioning = false)")

    def ask(answer: Path) -> None:
        connection.execute(f"COPY ({query}) TO '{answer}' (FORMAT parquet, COMPRESSION zstd)")

    return ask


def _polars(job: Job, folder: str, threads: int) -> Ask:
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    import polars as pl

    def ask(answer: Path) -> None:
        source = pl.scan_parquet(f"{folder}/*/*.parquet", hive_partitioning=False)
        job.polars(source).sink_parquet(answer)

    return ask


ENGINES = {"duckdb": _duckdb, "polars": _polars}


def main(engine: str, job: str, folder: str, threads: str, repeat: str) -> None:
    started = time.perf_counter()
    ask = ENGINES[engine](JOBS[job], folder, int(threads))
    startup_s = time.perf_counter() - started
    took_s, cpu_s = [], []
    with tempfile.TemporaryDirectory() as place:
        answer = Path(place) / "answer.parquet"
        for _ in range(int(repeat) + 1):
            began, worked = time.perf_counter(), time.process_time()
            ask(answer)
            took_s.append(time.perf_counter() - began)
            cpu_s.append(time.process_time() - worked)
        most = peak_bytes("self")
        found = {
            "startup_s": startup_s,
            "seconds": took_s,
            "cpu_seconds": cpu_s,
            "peak_bytes": most,
            "digest": digest(answer),
        }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
