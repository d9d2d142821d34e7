"""Markers of claims, the report that `--claims` prints, the time limit, and what every process of a test
inherits."""

from __future__ import annotations

import gc
import os
import re
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["blindpost.testing.plugin"]

MEMORY, ROOM = Path("/dev/shm"), 4 * 2**30  # noqa: S108 (folders below are pytest's and of random names)


def keep_files_in_memory() -> None:
    """Stores wait for the disk at every commit, but no machine loses its power during a test.

    Whoever sets TMPDIR has chosen; where programs cannot be started or there is little room, it is the disk.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return
    found = os.statvfs(MEMORY)
    if found.f_bavail * found.f_frsize >= ROOM and not found.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


keep_files_in_memory()

# A router with default settings has as many fronts as the machine has a use for: in tests, always none.
os.environ.setdefault("PYTHON_CPU_COUNT", "2")

settings.register_profile(
    "blindpost", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("blindpost")

CLAIMS_FILE = Path(__file__).parent / "claims.md"
SECTIONS = ("SVC", "SUB", "DLV", "CON", "NTF")


def known_claims() -> tuple[str, ...]:
    """The ids of `claims.md`, each once (amended claims stand there twice), in order."""
    rows = re.findall(r"^\| ((?:SVC|SUB|DLV|CON|NTF)-\d{2}) \|", CLAIMS_FILE.read_text(), re.MULTILINE)
    return tuple(sorted(set(rows), key=lambda claim: (SECTIONS.index(claim[:3]), claim)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--claims", action="store_true", help="report which claims have a passing test")


def pytest_configure() -> None:
    """A shell starts what runs in its background with Ctrl-C ignored, and every process inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: to look at it again and again for garbage takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = set(known_claims())
    for item in items:
        for marker in item.iter_markers("claim"):
            for claim in marker.args:
                if claim not in known:
                    raise pytest.UsageError(f"{item.nodeid}: no claim {claim!r} in {CLAIMS_FILE.name}")
                item.user_properties.append(("claim", claim))


def _limit_s(item: pytest.Item) -> float:
    """As pytest-timeout has it: a test's own, or that of the command, environment, settings; 0 is none."""
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0])
    chosen = item.config.getoption("timeout")
    if chosen is None:
        chosen = os.environ.get("PYTEST_TIMEOUT") or item.config.getini("timeout") or 0
    return float(chosen)


BEGAN = pytest.StashKey[float]()
FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    item.stash[BEGAN] = time.monotonic()
    item.stash[FAILED] = False
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A time limit that strikes in a task is an exception of that task, which nobody may look at.

    The limit is for fixtures and test together, so the test alone may have taken less.
    """
    report = yield
    limit_s = _limit_s(item)
    took_s = time.monotonic() - item.stash[BEGAN]
    item.stash[FAILED] |= report.failed
    if not item.stash[FAILED] and limit_s and took_s >= limit_s:
        item.stash[FAILED] = True
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: took {took_s:.0f} s, and its limit is {limit_s:.0f} s"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption("--claims"):
        return
    passed: set[str] = set()
    failed: set[str] = set()
    for outcome, found in (("passed", passed), ("failed", failed), ("error", failed), ("skipped", failed)):
        for report in terminalreporter.stats.get(outcome, []):
            found.update(str(value) for name, value in report.user_properties if name == "claim")
    shown = passed - failed
    by_section: dict[str, list[str]] = defaultdict(list)
    for claim in known_claims():
        by_section[claim[:3]].append(claim)
    write = terminalreporter.write_line
    terminalreporter.section("claims")
    for section in SECTIONS:
        claims = by_section[section]
        missing = [claim for claim in claims if claim not in shown]
        write(f"{section}: {len(claims) - len(missing)} of {len(claims)} have a passing test")
        if missing:
            write(f"  missing: {' '.join(missing)}")
    total = sum(len(claims) for claims in by_section.values())
    write(f"all: {len(shown)} of {total}")
