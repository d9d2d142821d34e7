"""`python -m mutants [MODULE ...]`: make small mistakes in decision code and see whether the tests notice.

Without arguments every module of `mutants/plan.py` is tried; modules with the same tests share a process.
What stays alive is printed; it needs a test, or a line in `mutants/accepted.toml` that says why it makes no
difference.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence

import pytest

from mutants.gate import Gate, Score
from mutants.plan import ALIKE, GATES
from mutants.scores import Scored, store


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mutants", description="Make small mistakes in decision code; tests must notice."
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="e.g. blindpost.router.delivery (all)")
    parser.add_argument(
        "--sample", type=int, help="try so many mistakes of each module, chosen by --seed (all)"
    )
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--list", action="store_true", help="list the modules and their tests")
    parser.add_argument("--write", action="store_true", help="renew the scores in docs/mutants.md")
    arguments = parser.parse_args()
    if arguments.list:
        for module, tests in GATES.items():
            print(f"{module}: {' '.join(tests)}")
        return 0
    if unknown := [module for module in arguments.modules if module not in GATES]:
        print(
            f"{unknown[0]} is not in mutants/plan.py. `python -m mutants --list` lists the modules.",
            file=sys.stderr,
        )
        return 2
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for module in arguments.modules or GATES:
        groups[GATES[module]].append(module)
    if len(groups) == 1:
        ((tests, modules),) = groups.items()
        return _tried(modules, tests, arguments)
    options = [f"--seed={arguments.seed}", *([f"--sample={arguments.sample}"] if arguments.sample else [])]
    options += ["--write"] if arguments.write else []
    codes = [
        subprocess.run([sys.executable, "-m", "mutants", *modules, *options], check=False).returncode
        for modules in groups.values()
    ]
    return max(codes)


def _tried(modules: Sequence[str], tests: Sequence[str], chosen: argparse.Namespace) -> int:
    began = time.monotonic()
    gate = Gate(modules, chosen.sample, chosen.seed, lambda text: print(text, flush=True))
    options = ["-q", "-o", "timeout=0", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", ALIKE]
    code = pytest.main([*options, *tests], [gate])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) or not gate.scores:
        print(f"  no score: the tests of {', '.join(modules)} could not be run", file=sys.stderr)
        return 2
    scores = {score.module: _scored(score) for score in gate.scores}
    for module, one in scores.items():
        still_open = one.tried - one.caught - one.accepted
        print(
            f"{module}: {one.caught} of {one.tried} caught, {one.accepted} accepted, {still_open} open: "
            f"{100 * one.score:.1f} %",
            flush=True,
        )
    print(f"{time.monotonic() - began:.0f} s")
    if chosen.write:
        store(scores, GATES)
    return 1 if any(one.score < 1 for one in scores.values()) else 0


def _scored(score: Score) -> Scored:
    return Scored(score.mistakes, score.tried, score.caught, score.accepted)


if __name__ == "__main__":
    sys.exit(main())
