"""Runs one benchmark as a process of its own, and notes what other programs took of the machine meanwhile."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures.plan import Benchmark
from benchmarks.figures.results import Result, this_machine
from benchmarks.figures.rows import FiguresError, merged, parsed

ROOT = Path(__file__).parents[2]
_TICK = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)
"""Fields of /proc/stat in which nobody works: idle, and waiting for a disk."""


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds of all cores in which somebody worked, or our own children did."""

    at: float
    everybody: float
    own: float

    @classmethod
    def now(cls) -> Share:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        everybody = sum(value for place, value in enumerate(fields) if place not in _IDLE) / _TICK
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(time.monotonic(), everybody, used.ru_utime + used.ru_stime)

    def others_since(self, before: Share) -> float:
        """The share of all cores that others had; a virtual machine that was not run counts as them."""
        whole = (self.at - before.at) * (os.cpu_count() or 1)
        worked = self.everybody - before.everybody - (self.own - before.own)
        return min(max(worked / whole, 0.0), 1.0) if whole > 0 else 0.0


def measured(benchmark: Benchmark, is_quick: bool, tell: Callable[[str], None]) -> Result:
    """All its runs, as one result."""
    words = ["-m", f"benchmarks.{benchmark.name}", *benchmark.options(is_quick).split()]
    times = benchmark.times(is_quick)
    before, runs = Share.now(), []
    for number in range(1, times + 1):
        tell(f"{' '.join(words)}" + (f", run {number} of {times}" if times > 1 else ""))
        done = subprocess.run(
            [sys.executable, *words, "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode != 0:
            raise FiguresError(f"it ended with exit code {done.returncode}")
        runs.append(parsed(done.stdout))
    after = Share.now()
    return Result(
        command=" ".join(words[1:]),
        day=commit_day(),
        machine=this_machine(),
        others=round(after.others_since(before), 2),
        runs=times,
        seconds=round(after.at - before.at, 1),
        figures=tuple(merged(runs)),
    )


def commit_day() -> str:
    """The day of what was measured; today if that cannot be told."""
    done = subprocess.run(
        ["git", "log", "-1", "--format=%cs"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or time.strftime("%Y-%m-%d", time.gmtime())
