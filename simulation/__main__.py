"""`python -m simulation`: many short runs, or a long one, and what happened in them.

A run that fails is shrunk to the shortest schedule that fails in the same way, and told as a story.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections import Counter

from simulation.genesis import Genesis, make_genesis
from simulation.run import FailedRunError
from simulation.schedules import Schedule, draw, draw_long
from simulation.shrinking import shrunk
from simulation.simulate import fast_folder, simulate
from simulation.story import story


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation", description="The whole network in one run.")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seeds", type=int, default=1, help="how many (1)")
    parser.add_argument("--hours", type=float, help="one long run of so many virtual hours for each seed")
    parser.add_argument("--story", action="store_true", help="tell what happened, even if nothing failed")
    chosen = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of texts have the same order in every process only then.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    folder = fast_folder()
    try:
        genesis = make_genesis(folder)
        return _all(genesis, chosen)
    finally:
        shutil.rmtree(folder)


def _all(genesis: Genesis, chosen: argparse.Namespace) -> int:
    began, counts, virtual_s, delivered = time.monotonic(), Counter[str](), 0.0, 0
    for seed in range(chosen.seed, chosen.seed + chosen.seeds):
        schedule = draw(seed) if chosen.hours is None else draw_long(seed, chosen.hours)
        try:
            report = simulate(genesis, seed, schedule)
        except FailedRunError as failure:
            _tell(genesis, seed, schedule, failure)
            return 1
        counts += report.counts
        virtual_s += report.virtual_s
        delivered += report.delivered
        if chosen.story:
            print(story(schedule, report))
    took_s = time.monotonic() - began
    print(f"{chosen.seeds} seeds from {chosen.seed}: nothing found")
    print(f"{virtual_s / 3600:.1f} virtual hours, {delivered} messages, {took_s:.0f} seconds, ", end="")
    print(f"{60 * chosen.seeds / took_s:.0f} seeds a minute")
    for kind, count in counts.most_common():
        print(f"  {count:8} {kind}")
    return 0


def _tell(genesis: Genesis, seed: int, schedule: Schedule, failure: FailedRunError) -> None:
    print(f"seed {seed}: {failure.what}\nlooking for a shorter schedule ...", file=sys.stderr)
    shorter, last = shrunk(genesis, seed, schedule, failure)
    print(story(shorter, last.report))


if __name__ == "__main__":
    sys.exit(main())
