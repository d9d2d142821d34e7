"""The pipeline over what the servers of the demonstration recorded, on a real Spark, and its report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from blindpost.demo.figures import Row, Say
from blindpost.demo.stage import command

_LOOK_S = 2.0


async def make(journal: Path, folder: Path, tables: Sequence[str], say: Say) -> tuple[Path, list[Row]]:
    """Seal the journal, compute every table or those that are named, write the report."""
    lake, report = folder / "lake", folder / "report.html"
    say("the Spark pipeline computes what an operator must know from what was recorded")
    started = time.monotonic()
    seal, compute = commands(journal, lake, report, tables)
    await command(*seal)
    await follow(asyncio.create_task(command(*compute)), lake, say)
    taken = time.monotonic() - started
    say(f"the report is written, after {taken:.0f} s")
    return report, [Row("pipeline on Spark, report", f"{taken:.0f} s", report.exists())]


def commands(journal: Path, lake: Path, report: Path, tables: Sequence[str]) -> tuple[list[str], ...]:
    """What an operator would type after `blindpost`: for the journal, then for tables and report."""
    only = [word for table in tables for word in ("--table", table)]
    return (
        ["pipeline", "seal", str(journal)],
        ["pipeline", "run", "--journal", str(journal), "--out", str(lake), "--report", str(report), *only],
    )


def _published(lake: Path) -> set[str]:
    return {file.parent.name for file in lake.glob("gold/*/_CURRENT")}


async def follow(running: asyncio.Task[str], lake: Path, say: Say, look_s: float = _LOOK_S) -> None:
    """Tell of each table when it is published, which is what takes the time."""
    told: set[str] = set()
    done = False
    while not done:
        done = bool((await asyncio.wait([running], timeout=look_s))[0])
        found = _published(lake)
        if new := sorted(found - told):
            told |= found
            say(f"{len(told)} tables so far; new: {', '.join(new).replace('_', ' ')}")
    await running
