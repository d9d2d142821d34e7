"""What taking stock costs when nearly all files are known; a separate process, so that the peak is its own.

python -m blindpost.pipeline.bench.ledger FILES NEW
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, cast

from blindpost.journal.schema import P_COUNTERS
from blindpost.pipeline.bench import data
from blindpost.pipeline.bench.rival import peak_bytes
from blindpost.pipeline.bronze import take_stock
from blindpost.pipeline.files import FileInfo, LocalFiles
from blindpost.pipeline.generate.plan import Plan
from blindpost.pipeline.ledger import Entry, Ledger, listing, summed

IN_FOLDER, AT_ONCE = 2_000, 20
"""Files of a table and a day, and how many of these are filled at once."""
NO_SPARK = cast("Any", None)
"""So few new files are examined without Spark."""


@dataclass(frozen=True, slots=True)
class Stock:
    """Seconds of processor time."""

    files: int
    new: int
    known_s: float
    """When nothing is new."""
    new_s: float
    """When some files are; what they are is looked at."""
    peak_bytes: int


def _fill(journal: Path, ledger: Ledger, files: int) -> None:
    """Empty files that the ledger takes for good ones: only their names and times are looked at."""
    folders = {}
    for number in range(0, files, IN_FOLDER):
        day = date(2031, 1, 1) + timedelta(days=number // IN_FOLDER)
        folder = f"P/p_gauges/date={day}"
        (journal / folder).mkdir(parents=True)
        found, entries = [], {}
        for name, place in _names(folder, min(IN_FOLDER, files - number)):
            (journal / name).touch()
            os.utime(journal / name, ns=(place * 1_000, place * 1_000))
            entries[name] = Entry(
                name, 0, place, f"{number + place:064x}", "p_gauges", 1, 900, (str(day),), "", ""
            )
            found.append(FileInfo(str(journal / name), 0, place))
        folders[folder] = (summed(listing(found), entries), entries)
        if len(folders) == AT_ONCE:
            ledger.write(folders)
            folders.clear()
    ledger.write(folders)


def _names(folder: str, count: int) -> Iterator[tuple[str, int]]:
    for place in range(count):
        yield f"{folder}/smp-{place:05d}-smp-{place:016x}-000000000000-000000001439.parquet", place


def measure(files: int, new: int) -> Stock:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        journal = root / "journal"
        ledger = Ledger(LocalFiles(), str(root / "lake"))
        _fill(journal, ledger, files)
        known_s = _took(journal, ledger)
        table = data.write(Plan(routers=2), P_COUNTERS, 100, root / "made", lambda *_: None)
        content = next(table.glob("*/*.parquet")).read_bytes()
        folder = journal / "P" / "p_counters" / "date=2031-01-01"
        folder.mkdir(parents=True)
        for number in range(new):
            (folder / f"{number:06d}.parquet").write_bytes(content)
        return Stock(files, new, known_s, _took(journal, ledger), peak_bytes("self"))


def _took(journal: Path, ledger: Ledger) -> float:
    began = time.process_time()
    take_stock(NO_SPARK, LocalFiles(), str(journal), ledger, time.time())
    return time.process_time() - began


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(measure(int(sys.argv[1]), int(sys.argv[2])))) + "\n")
