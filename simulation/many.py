"""Many seeds in several processes: sums that survive an interruption, and how far it has come."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path

from simulation.genesis import Genesis, make_genesis
from simulation.run import FailedRunError
from simulation.schedules import Schedule, draw, draw_hard, draw_long
from simulation.simulate import fast_folder, simulate
from simulation.tuning import keep_for_good, leave_out_locks

PART = 20
"""So many seeds are given to a process at once; an interruption waits for them."""
TOLD_EVERY_S = 60.0


@dataclass
class Sums:
    """What came out of some seeds."""

    seeds: int = 0
    virtual_s: float = 0.0
    delivered: int = 0
    took_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)
    """What was wrong, by seed."""

    def add(self, other: Sums) -> None:
        self.seeds += other.seeds
        self.virtual_s += other.virtual_s
        self.delivered += other.delivered
        self.counts += other.counts
        self.failed |= other.failed

    @property
    def per_minute(self) -> float:
        return 60 * self.seeds / max(self.took_s, 0.001)

    def told(self) -> str:
        lines = [
            f"{self.virtual_s / 3600:.1f} virtual hours, {self.delivered} messages, "
            f"{self.took_s:.0f} seconds, {self.per_minute:.0f} seeds a minute",
            *(f"  {count:8} {kind}" for kind, count in self.counts.most_common()),
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Manner:
    """What kind of run each seed is: a short one, unless it is long or hard."""

    hours: float | None = None
    hard: bool = False

    def schedule(self, seed: int) -> Schedule:
        if self.hours is not None:
            return draw_long(seed, self.hours)
        return draw_hard(seed) if self.hard else draw(seed)


@dataclass
class Journey:
    """A stretch of seeds and how far it has come; a file keeps it, so that it can be continued."""

    first: int
    seeds: int
    manner: Manner
    done: list[int] = field(default_factory=list)
    """The first seed of each part that is done."""
    sums: Sums = field(default_factory=Sums)

    def parts(self) -> Iterator[range]:
        done, end = set(self.done), self.first + self.seeds
        for start in range(self.first, end, PART):
            if start not in done:
                yield range(start, min(start + PART, end))

    def save(self, path: Path) -> None:
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(json.dumps({**vars(self), "manner": asdict(self.manner), "sums": vars(self.sums)}))
        fresh.replace(path)


def journey(first: int, seeds: int, manner: Manner, path: Path | None) -> Journey:
    """A new one, or the one in the file; `ValueError` if that is another one."""
    if path is None or not path.exists():
        return Journey(first, seeds, manner)
    kept = json.loads(path.read_text())
    if (kept["first"], kept["seeds"], kept.get("manner")) != (first, seeds, asdict(manner)):
        of = f"{kept['seeds']} seeds from {kept['first']}"
        raise ValueError(f"{path} keeps the sums of other runs ({of}): continue those, or take another file")
    sums = kept["sums"]
    sums["counts"] = Counter(sums["counts"])
    sums["failed"] = {int(seed): what for seed, what in sums["failed"].items()}
    return Journey(first, seeds, manner, kept["done"], Sums(**sums))


def run_part(genesis: Genesis, seeds: range, manner: Manner, journals: Path | None = None) -> Sums:
    sums = Sums()
    for seed in seeds:
        sums.seeds += 1
        try:
            report = simulate(genesis, seed, manner.schedule(seed), journals)
        except FailedRunError as failure:
            sums.failed[seed] = failure.what
            continue
        sums.virtual_s += report.virtual_s
        sums.delivered += report.delivered
        sums.counts += report.counts
    return sums


_genesis: Genesis


def _begin(folder: Path) -> None:
    """A process of its own has a world of its own; an interruption is for the one that started it."""
    global _genesis
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    place = folder / str(os.getpid())
    place.mkdir()
    leave_out_locks()
    _genesis = make_genesis(place)
    keep_for_good()


def _part(seeds: range, manner: Manner, journals: Path | None) -> Sums:
    return run_part(_genesis, seeds, manner, journals)


def run_all(chosen: Journey, jobs: int, path: Path | None, journals: Path | None = None) -> bool:
    """All that is left of a journey; False if it was interrupted: its sums tell what was done until then."""
    folder = fast_folder()
    sums, before_s, began, told_at = chosen.sums, chosen.sums.took_s, time.monotonic(), time.monotonic()
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, _begin, (folder,))
    parts, waiting = chosen.parts(), dict[Future[Sums], range]()
    try:
        while True:
            while len(waiting) < 2 * jobs and (part := next(parts, None)) is not None:
                waiting[pool.submit(_part, part, chosen.manner, journals)] = part
            if not waiting:
                return True
            finished, _ = wait(waiting, TOLD_EVERY_S, FIRST_COMPLETED)
            for future in finished:
                chosen.done.append(waiting.pop(future).start)
                sums.add(future.result())
            sums.took_s = before_s + time.monotonic() - began
            if finished and path is not None:
                chosen.save(path)
            if time.monotonic() - told_at >= TOLD_EVERY_S:
                told_at = time.monotonic()
                print(progress(chosen), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        return False
    finally:
        pool.shutdown(cancel_futures=True)
        shutil.rmtree(folder)


def progress(chosen: Journey) -> str:
    sums = chosen.sums
    if not sums.seeds:
        return f"no part of {PART} seeds is done yet"
    left_s = 60 * (chosen.seeds - sums.seeds) / sums.per_minute
    found = f"{len(sums.failed)} failed" if sums.failed else "nothing found"
    return (
        f"{sums.seeds} of {chosen.seeds} seeds, {sums.per_minute:.0f} a minute, "
        f"{left_s / 60:.0f} minutes left, {found}"
    )
