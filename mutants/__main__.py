"""`python -m mutants [MODULE ...]`: make small mistakes in decision code and see whether the tests notice.

Without arguments every module of `mutants/plan.py` is tried, each in a process of its own. What stays alive
is printed; it needs a test, or a line in `mutants/accepted.toml` that says why it makes no difference.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from mutants.changes import Change
from mutants.gate import Gate
from mutants.plan import GATES

ACCEPTED = Path(__file__).with_name("accepted.toml")


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
    if len(arguments.modules) == 1:
        return _tried(arguments.modules[0], arguments.sample, arguments.seed)
    options = [f"--seed={arguments.seed}", *([f"--sample={arguments.sample}"] if arguments.sample else [])]
    codes = [
        subprocess.run([sys.executable, "-m", "mutants", module, *options], check=False).returncode
        for module in arguments.modules or GATES
    ]
    return max(codes)


def _tried(module: str, sample: int | None, seed: int) -> int:
    print(module, flush=True)
    began = time.monotonic()
    gate = Gate(module, sample, seed, lambda text: print(text, flush=True))
    code = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *GATES[module]], [gate])
    score = gate.score
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) or score.tried == 0:
        print(f"  no score: the tests of {module} could not be run", file=sys.stderr)
        return 2
    accepted = _accepted(module)
    open_ones = [change for change in score.alive + score.unreached if _key(change) not in accepted]
    print(
        f"{module}: {score.caught} of {score.tried} caught ({100 * score.caught / score.tried:.0f} %), "
        f"{score.tried - score.caught - len(open_ones)} accepted, {len(open_ones)} open, "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    return 1 if open_ones else 0


def _accepted(module: str) -> set[tuple[str, str, str, str]]:
    rows = tomllib.loads(ACCEPTED.read_text()).get("accepted", [])
    return {
        (row["function"], row["kind"], row["before"], row["after"])
        for row in rows
        if row["module"] == module and row["reason"]
    }


def _key(change: Change) -> tuple[str, str, str, str]:
    return change.function, change.kind, change.before, change.after


if __name__ == "__main__":
    sys.exit(main())
