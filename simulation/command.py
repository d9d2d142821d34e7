"""`python -m simulation`: many short runs, or a long one, and what happened in them.

A run that fails is shrunk to the shortest schedule that fails in the same way, and told as a story.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from pathlib import Path

from simulation.genesis import Genesis, make_genesis
from simulation.journals import TRUTH
from simulation.many import Manner, journey, run_all
from simulation.run import FailedRunError
from simulation.schedules import Schedule
from simulation.shrinking import shrunk
from simulation.simulate import fast_folder, simulate
from simulation.story import story


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation", description="The whole network in one run.")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seeds", type=int, default=1, help="how many (1)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--hours", type=float, help="one long run of so many virtual hours for each seed")
    kind.add_argument(
        "--hard", action="store_true", help="short runs with more in them, and more of the rare"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many processes (1)")
    parser.add_argument("--sums", type=Path, help="a file that keeps sums, to continue after an interruption")
    parser.add_argument(
        "--journals", type=Path, help="a folder for journals: the pipeline's tables are compared"
    )
    parser.add_argument("--story", action="store_true", help="tell what happened, even if nothing failed")
    chosen = parser.parse_args()
    journals = chosen.journals
    if journals is not None and journals.exists() and not (journals / TRUTH).exists():
        print(f"{journals} exists and has no journals of runs: name a new folder", file=sys.stderr)
        return 2
    if chosen.story or chosen.seeds == 1:
        failed = _alone(chosen.seed, Manner(chosen.hours, chosen.hard), journals, always=chosen.story)
    else:
        failed = _many(chosen)
    return failed or (0 if journals is None else _compare(journals))


def _many(chosen: argparse.Namespace) -> int:
    try:
        stretch = journey(chosen.seed, chosen.seeds, Manner(chosen.hours, chosen.hard), chosen.sums)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or its processes would outlive it
    complete = run_all(stretch, chosen.jobs, chosen.sums, chosen.journals)
    sums = stretch.sums
    print(f"{'' if complete else 'interrupted: '}{sums.seeds} seeds from {chosen.seed}: ", end="")
    print(f"{len(sums.failed)} failed" if sums.failed else "nothing found")
    print(sums.told())
    for seed, what in sorted(sums.failed.items()):
        print(f"seed {seed}: {what}")
    if sums.failed:
        _alone(min(sums.failed), stretch.manner, None, always=False)
    return 1 if sums.failed or not complete else 0


def _alone(seed: int, manner: Manner, journals: Path | None, *, always: bool) -> int:
    """One seed in this process, and its story if it fails or is wanted."""
    folder = fast_folder()
    try:
        genesis, schedule = make_genesis(folder), manner.schedule(seed)
        try:
            report = simulate(genesis, seed, schedule, journals)
        except FailedRunError as failure:
            _tell(genesis, seed, schedule, failure)
            return 1
        if always:
            print(story(schedule, report))
        print(f"seed {seed}: nothing found in {report.virtual_s / 3600:.1f} virtual hours, ", end="")
        print(f"{report.delivered} messages")
        for kind, count in report.counts.most_common():
            print(f"  {count:8} {kind}")
        return 0
    finally:
        shutil.rmtree(folder)


def _compare(journals: Path) -> int:
    """The journals through the pipeline, and its tables beside what the stores took."""
    from simulation.tables import put_through, truth

    if not (servers := len(truth(journals))):
        print("no server of these runs wrote a journal")
        return 0
    wrong = put_through(journals)
    print(f"the tables of {servers} servers: ", end="")
    print(f"{len(wrong)} differences" if wrong else "all as their stores have it")
    for difference in wrong:
        print(f"  {difference}")
    return 1 if wrong else 0


def _tell(genesis: Genesis, seed: int, schedule: Schedule, failure: FailedRunError) -> None:
    print(f"seed {seed}: {failure.what}\nlooking for a shorter schedule ...", file=sys.stderr)
    shorter, last = shrunk(genesis, seed, schedule, failure)
    print(story(shorter, last.report))
