"""Which lines each test reaches and how long it takes: every test is run once, in a child process."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest

Line = tuple[str, int]
"""A file and a number in it."""


@dataclass(slots=True)
class Reach:
    """How long tests take, and which of them run a line, the quickest first."""

    seconds: dict[str, float]
    by_line: dict[Line, list[str]]


def reached(items: Sequence[pytest.Item], paths: frozenset[str]) -> Reach:
    """What the tests that pass do with these files."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reading)
        with ended(), os.fdopen(writing, "w") as told:
            for item, following in zip(items, [*items[1:], None], strict=True):
                began = time.perf_counter()
                with _traced(paths) as lines:
                    is_passed = passes(item, following)
                if is_passed:
                    json.dump([item.nodeid, time.perf_counter() - began, sorted(lines)], told)
                    told.write("\n")
    os.close(writing)
    with os.fdopen(reading) as told:
        rows = sorted(map(json.loads, told), key=lambda row: row[1])
    os.waitpid(child, 0)
    by_line: dict[Line, list[str]] = defaultdict(list)
    for name, _, lines in rows:
        for path, number in lines:
            by_line[path, number].append(name)
    return Reach({name: seconds for name, seconds, _ in rows}, by_line)


def passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run one test, and take down the fixtures that the following one does not share."""
    from _pytest.runner import runtestprotocol

    reports = runtestprotocol(item, log=False, nextitem=following)
    return not any(report.failed for report in reports)


@contextlib.contextmanager
def ended() -> Iterator[Callable[[int], None]]:
    """A child that ends here, whatever happens, without what the parent would do at its end."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        yield os._exit
    except BaseException:
        os._exit(2)
    os._exit(0)


@contextlib.contextmanager
def _traced(paths: frozenset[str]) -> Iterator[set[Line]]:
    """The lines of some files that run meanwhile, in any thread."""
    lines: set[Line] = set()

    def inside(frame: FrameType, event: str, argument: object) -> Any:
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return inside

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in paths:
            return None
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return inside

    threading.settrace(entered)
    sys.settrace(entered)
    try:
        yield lines
    finally:
        sys.settrace(None)
        threading.settrace(None)
