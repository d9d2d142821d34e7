"""Moving in: what the import of a reference router's files costs, and that everything arrives.

    python -m benchmarks.moving [--queues N] [--json]

Method: files of a generated router (see `store_logs`: queues with keys, links, notifiers and services, some
secured, changed, blocked or deleted later, some with messages and notifications) are imported into an empty
LMDB store on this machine's temporary folder, with the durability that a router has by default. CPU time is
that of this process, without generating the files. Rows are rows of the store's tables. Memory is the part
of the process that is not a file mapped into it (RssAnon), looked at after every chunk, less what it was
before. The certificate is computed from the files and from the store.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.figures.rows import Better, Figure, as_json, single
from benchmarks.store_logs import Shape, write_files
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.config import RouterRules
from blindpost.router.moving.certificate import certificate_of, differences
from blindpost.router.moving.importing import Importer
from blindpost.router.tables import LmdbTables

QUEUES = 1_000_000


@dataclass(frozen=True)
class Result:
    """What one import came to."""

    queues: int
    lines: int
    rows: int
    file_mb: float
    store_mb: float
    import_cpu_s: float
    rows_per_cpu_s: float
    lines_per_cpu_s: float
    check_source_cpu_s: float
    check_result_cpu_s: float
    peak_memory_mb: float
    equal: bool


def anonymous_mb() -> float:
    """Memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("RssAnon expected")


class Peak:
    """The most memory that was seen."""

    def __init__(self) -> None:
        self._before = anonymous_mb()
        self._most = self._before

    def look(self, part: str, done: int, total: int | None) -> None:
        self._most = max(self._most, anonymous_mb())

    @property
    def mb(self) -> float:
        return self._most - self._before


async def measure(queues: int, folder: Path) -> Result:
    """Generate, import and check, in a folder of its own."""
    now = int(time.time())
    source = write_files(folder, Shape(queues), now)
    peak = Peak()
    tables = LmdbTables(folder / "store")
    bulk = LmdbBulk(tables)
    importer = Importer(
        source, tables, bulk, folder / "report", RouterRules(), now=lambda: now, progress=peak.look
    )
    times = [time.process_time()]
    await importer.run()
    times.append(time.process_time())
    told = await importer.check()
    times.append(time.process_time())
    found = await certificate_of(bulk)
    times.append(time.process_time())
    peak.look("end", 0, None)
    rows = sum(tables.counts().values())
    tables.close()
    importing, checking_source, checking_result = (b - a for a, b in itertools.pairwise(times))
    lines = sum(importer.mark.counts.values())
    return Result(
        queues,
        lines,
        rows,
        sum(path.stat().st_size for _, path in source.parts) / 1e6,
        (folder / "store" / "data.mdb").stat().st_size / 1e6,
        importing,
        rows / importing,
        lines / importing,
        checking_source,
        checking_result,
        peak.mb,
        not differences(told, found),
    )


def figures(result: Result) -> list[Figure]:
    of = f"{result.queues:,} queues"
    return [
        single(f"{of}: rows", "per CPU s", result.rows_per_cpu_s, Better.HIGHER),
        single(f"{of}: lines", "per CPU s", result.lines_per_cpu_s, Better.HIGHER),
        single(f"{of}: import", "CPU s", result.import_cpu_s),
        single(f"{of}: certificate of the files", "CPU s", result.check_source_cpu_s),
        single(f"{of}: certificate of the store", "CPU s", result.check_result_cpu_s),
        single(f"{of}: memory at the most", "MB", result.peak_memory_mb),
        single(f"{of}: store", "MB", result.store_mb),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--queues", type=int, default=QUEUES)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="blindpost-moving-") as folder:
        result = asyncio.run(measure(chosen.queues, Path(folder)))
    if chosen.json:
        print(as_json(figures(result)))
        return
    for name, value in asdict(result).items():
        shown = f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if type(value) is int else value
        print(f"{name.replace('_', ' '):24} {shown}")


if __name__ == "__main__":
    main()
