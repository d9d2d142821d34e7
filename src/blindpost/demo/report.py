"""The pipeline over what the servers of the demonstration recorded, on a real Spark, and its report."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from blindpost.demo.figures import Row, Say
from blindpost.demo.stage import CommandFailedError, command


async def make(journal: Path, folder: Path, say: Say) -> tuple[Path, list[Row]]:
    """Seal the journal, compute every table, write the report."""
    await _seal(journal)
    lake, report = folder / "lake", folder / "report.html"
    say("the Spark pipeline computes what an operator must know from what was recorded")
    started = time.monotonic()
    await command(
        "pipeline", "run", "--journal", journal, "--out", lake, "--set", "spark.sql.shuffle.partitions=2"
    )
    await command("pipeline", "report", "--out", lake, "--file", report)
    taken = time.monotonic() - started
    say(f"the report is written, after {taken:.0f} s")
    return report, [Row("pipeline on Spark, report", f"{taken:.0f} s", report.exists())]


async def _seal(journal: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "blindpost.journal.seal", str(journal), stderr=asyncio.subprocess.PIPE
    )
    _, told = await process.communicate()
    if process.returncode:
        raise CommandFailedError(f"sealing the journal: {told.decode()}")
