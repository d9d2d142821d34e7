"""Runs tests against changed code, inside one pytest process that forks for each change.

A first child runs every test and notes which lines of the module each of them reaches, and how long it takes.
A change is then shown only to the tests that reach its line, the quickest first; it is caught when one fails,
or when they take far longer than before. Forking after collection saves the imports, which take longer than
most tests.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest

from mutants.changes import Change, changes_of

SLOW_TIMES, SLOW_S = 5.0, 20.0
"""Tests of a change may take so many times as long as without it, and so much longer."""


@dataclass(slots=True)
class Reached:
    """What a test costs and which lines it runs."""

    seconds: float
    lines: set[int]


@dataclass(slots=True)
class Score:
    """What became of the changes of one module."""

    module: str
    caught: int = 0
    alive: list[Change] = field(default_factory=list)
    unreached: list[Change] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return self.caught + len(self.alive) + len(self.unreached)


class Gate:
    """A pytest plugin that runs the collected tests again and again instead of once."""

    def __init__(self, module: str, sample: int | None, seed: int, say: Callable[[str], None]) -> None:
        self.score = Score(module)
        self._sample, self._seed, self._say = sample, seed, say

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        module = importlib.import_module(self.score.module)
        path = Path(inspect.getfile(module))
        changes = changes_of(path.read_text(), str(path))
        if self._sample is not None and self._sample < len(changes):
            changes = sorted(
                random.Random(self._seed).sample(changes, self._sample), key=lambda one: one.line
            )
        reached = _reached(session.items, str(path))
        tests = {item.nodeid: item for item in session.items}
        by_line: dict[int, list[str]] = defaultdict(list)
        for name in sorted(reached, key=lambda name: reached[name].seconds):
            for line in reached[name].lines:
                by_line[line].append(name)
        for number, change in enumerate(changes, 1):
            names = by_line[change.line]
            if not names:
                self.score.unreached.append(change)
                self._say(f"  not reached  {change.told}")
                continue
            allowed = SLOW_S + SLOW_TIMES * sum(reached[name].seconds for name in names)
            if _fails(change, module, [tests[name] for name in names], allowed):
                self.score.caught += 1
            else:
                self.score.alive.append(change)
                self._say(f"  alive        {change.told}")
            if number % 25 == 0:
                self._say(f"  {number} of {len(changes)} tried, {len(self.score.alive)} alive")
        return True


def _reached(items: list[pytest.Item], path: str) -> Mapping[str, Reached]:
    """Run every test once, in a child of its own, and note what it reaches."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reading)
        with _ended(), os.fdopen(writing, "w") as told:
            for item in items:
                with _traced(path) as lines:
                    began = time.perf_counter()
                    passed = _passes(item)
                    seconds = time.perf_counter() - began
                if passed:
                    json.dump([item.nodeid, seconds, sorted(lines)], told)
                    told.write("\n")
    os.close(writing)
    with os.fdopen(reading) as told:
        found = {name: Reached(seconds, set(lines)) for name, seconds, lines in map(json.loads, told)}
    os.waitpid(child, 0)
    return found


@contextlib.contextmanager
def _traced(path: str) -> Iterator[set[int]]:
    """The lines of a file that run meanwhile, in any thread."""
    lines: set[int] = set()

    def inside(frame: FrameType, event: str, argument: object) -> Any:
        lines.add(frame.f_lineno)
        return inside

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != path:
            return None
        lines.add(frame.f_lineno)
        return inside

    threading.settrace(entered)
    sys.settrace(entered)
    try:
        yield lines
    finally:
        sys.settrace(None)
        threading.settrace(None)


def _fails(change: Change, module: object, items: list[pytest.Item], allowed_s: float) -> bool:
    if (child := os.fork()) == 0:
        with _ended() as end:
            os.setpgid(0, 0)
            _apply(change, module)
            for item in items:
                if not _passes(item):
                    end(1)
            end(0)
    deadline = time.monotonic() + allowed_s
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status != 0
            time.sleep(0.005)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return True


@contextlib.contextmanager
def _ended() -> Iterator[Callable[[int], None]]:
    """A child that ends here, whatever happens, without what the parent would do at its end."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        yield os._exit
    except BaseException:
        os._exit(2)
    os._exit(0)


def _apply(change: Change, module: object) -> None:
    place: object = module
    *holders, name = change.function.split(".")
    for holder in holders:
        place = vars(place)[holder]
    found = vars(place)[name]
    for inner in ("__func__", "fget", "func", "__wrapped__"):
        found = getattr(found, inner, found)
    assert isinstance(found, FunctionType), change.function
    found.__code__ = change.code


def _passes(item: pytest.Item) -> bool:
    """Run one test, with its fixtures taken down, and see whether each phase passed or was skipped."""
    from _pytest.runner import runtestprotocol

    reports = runtestprotocol(item, log=False, nextitem=None)
    return not any(report.failed for report in reports)
