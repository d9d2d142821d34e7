"""What takes minutes or hours, in the smallest form that still does everything once. Longer tests are only
collected: their shorter forms are tests of their own.

A measurement or a longer test that a document names for the first time fails here until somebody says how
small it can be.
"""

from __future__ import annotations

import re
import shlex
import subprocess

from tests.support.docs.documents import ROOT

MEASUREMENTS: dict[str, dict[str, str | None]] = {
    "agent": {"--messages": "10", "--connections": "1", "--idle": "20", "--many": "2", "--echoes": "3"},
    "agent_rates": {"--messages": "5", "--connections": "2", "--echoes": "3"},
    "agent_scale": {"--queues": "20", "--subscribed": "20", "--waiting": "5"},
    "bot_scale": {"--contacts": "5"},
    "cores": {"--cycles": "4", "--rounds": "1", "--connections": "4"},
    "ds": {"--stored": "10", "--cycles": "5", "--wakes": "3", "--rounds": "1"},
    "figures": {"--quick": "", "--only": "floor", "--check": ""},
    "floor": {"--rounds": "2"},
    "journal": {"--events": "2000", "--connections": "20", "--rounds": "1"},
    "moving": {"--queues": "200"},
    "ntf": {"--subscriptions": "30", "--notifications": "10", "--pushes": "20"},
    "pipeline": {"--smallest": "", "--fleet": None, "--rows": None, "--ledger": None},
    "push": {"--notifications": "5", "--rounds": "1"},
    "router": {"--smallest": "", "--only": "refusals", "--quick": None, "--full": None},
    "transport": {"--rounds": "2"},
}
"""Options of each benchmark; None takes one away."""

TESTS = {
    "BLINDPOST_AGENT_QUEUES": 300,
    "BLINDPOST_BOT_CONTACTS": 1,
    "BLINDPOST_BOT_KILLS": 1,
    "BLINDPOST_DS_LARGE": 2,
    "BLINDPOST_DS_PRODUCERS": 3,
    "BLINDPOST_DS_READERS": 20,
    "BLINDPOST_DS_RECIPIENTS": 100,
    "BLINDPOST_DS_ROUNDS": 1,
    "BLINDPOST_FRONT_ROUNDS": 1,
    "BLINDPOST_FRONTS": 2,
    "BLINDPOST_NTF_KILLS": 1,
    "BLINDPOST_NTF_ROUTERS": 1,
    "BLINDPOST_NTF_TOKENS": 2,
    "BLINDPOST_PIPELINE_LONG": 1,
    "BLINDPOST_PLANTED": 0,
    "BLINDPOST_SERVICE_SEEDS": 1,
    "BLINDPOST_TAKEOVERS": 1,
}
"""Variables that make a test long."""

ONE_OF_FRONTS = " tests/router/test_fronts.py -k believed"
PART = {
    r" tests/router/test_fronts\.py$": ONE_OF_FRONTS,
    r" tests/serving/test_upgrading\.py .* tests/router$": ONE_OF_FRONTS,
}
"""One test instead of many."""

ONE_FILE = "tests/repository/test_claims_report.py"
"""Instead of all tests."""

_SET = re.compile(r"(BLINDPOST_\w+)=\S+")


def smallest(line: str) -> str:
    """The same command with as little to do as possible."""
    measured = re.search(r"-m benchmarks\.(\w+)", line)
    if measured is not None:
        assert measured[1] in MEASUREMENTS, f"{line}: say in MEASUREMENTS how small it can be"
        return _measurement(line, MEASUREMENTS[measured[1]])
    if "-m simulation" in line:
        return re.sub(r"--(seeds|hours) \d+", r"--\1 1", re.sub(r"--seed \d+", "--seed 0", line))
    line = _SET.sub(_small, line)
    for many, one in PART.items():
        line = re.sub(many, one, line)
    line = re.sub(r"^((?:\S+=\S+ )*)pytest ", r"\1python -m pytest ", line)
    if "-m pytest" not in line or ONE_OF_FRONTS in line:
        return line
    line = re.sub(r" -n [0-9]+", "", line)
    return f"{line} --collect-only" if "tests/" in line else f"{line} {ONE_FILE}"


def _small(found: re.Match[str]) -> str:
    assert found[1] in TESTS, f"{found[0]}: say in TESTS how small it can be"
    return f"{found[1]}={TESTS[found[1]]}"


def _measurement(line: str, sizes: dict[str, str | None]) -> str:
    kept: list[str] = []
    option = ""
    for word in shlex.split(line):
        if word.startswith("--"):
            option = word
        if option not in sizes:
            kept.append(word)
    added = [word for name, value in sizes.items() if value is not None for word in (name, value) if word]
    return shlex.join([*kept, *added])


def recipe(target: str) -> list[str]:
    """What make does for a target and its variables, in an environment that is ready."""
    said = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "--assume-old=.venv/.ready", *target.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    lines = said.stdout.replace("\\\n", " ").splitlines()
    return [" ".join(line.replace(".venv/bin/", "").split()) for line in lines]
