"""Runs tests against changed code, inside one pytest process that forks for each change.

A first child notes which lines each test reaches (`mutants.reach`), once for all modules with the same tests.
A change is then shown only to the tests that reach its line, the quickest first and those that caught another
one before them; it is caught when one fails, or takes far longer than before. Forking after collection saves
the imports, which take longer than most tests.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from mutants.changes import Change, changes_of
from mutants.reach import Reach, ended, passes, reached
from mutants.scores import accepted, key

SLOW_TIMES, SLOW_S = 5.0, 5.0
"""A test of a change may take so many times as long as without it, and so much longer."""


@dataclass(slots=True)
class Score:
    """What became of the changes of one module."""

    module: str
    mistakes: int
    caught: int = 0
    accepted: int = 0
    """Known to make no difference, and therefore not tried."""
    alive: list[Change] = field(default_factory=list)
    unreached: list[Change] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return self.caught + self.accepted + len(self.alive) + len(self.unreached)


class Gate:
    """A pytest plugin that runs the collected tests again and again instead of once."""

    def __init__(
        self, modules: Sequence[str], sample: int | None, seed: int, say: Callable[[str], None]
    ) -> None:
        self.scores: list[Score] = []
        self._modules, self._sample, self._seed, self._say = modules, sample, seed, say
        self._catches: Counter[str] = Counter()

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """An example that fails is enough; the smallest one would take minutes to find."""
        from hypothesis import Phase, settings  # not before pytest, which would complain

        settings.register_profile("mutants", settings(), phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        modules = [importlib.import_module(name) for name in self._modules]
        sources = [Path(inspect.getfile(module)).read_text() for module in modules]
        reach = reached(session.items, frozenset(inspect.getfile(module) for module in modules))
        tests = {item.nodeid: item for item in session.items}
        for name in tests:
            if name not in reach.seconds:
                self._say(f"  fails by itself, and is left out: {name}")
        if not reach.seconds:
            raise pytest.UsageError("no test passes without a mistake")
        for module, source in zip(modules, sources, strict=True):
            self._try(module, source, tests, reach)
        return True

    def _try(self, module: ModuleType, source: str, tests: dict[str, pytest.Item], reach: Reach) -> None:
        path = inspect.getfile(module)
        changes = changes_of(source, path)
        score = Score(module.__name__, len(changes))
        if self._sample is not None and self._sample < len(changes):
            changes = sorted(
                random.Random(self._seed).sample(changes, self._sample), key=lambda one: one.line
            )
        self._say(f"{score.module}: {len(changes)} of {score.mistakes} mistakes")
        harmless = accepted(score.module)
        for number, change in enumerate(changes, 1):
            if key(change) in harmless:
                score.accepted += 1
                continue
            names = sorted(reach.by_line[path, change.line], key=lambda name: self._rank(name, reach))
            if not names:
                score.unreached.append(change)
                self._say(f"  not reached  {change.told}")
            elif caught := _caught(change, module, [(tests[name], reach.seconds[name]) for name in names]):
                score.caught += 1
                self._catches[caught] += 1
            else:
                score.alive.append(change)
                self._say(f"  alive        {change.told}")
            if number % 25 == 0:
                self._say(f"  {number} of {len(changes)} tried, {len(score.alive)} alive")
        self.scores.append(score)

    def _rank(self, name: str, reach: Reach) -> float:
        return reach.seconds[name] / (1 + self._catches[name])


def _caught(change: Change, module: ModuleType, tests: Sequence[tuple[pytest.Item, float]]) -> str | None:
    """The test that noticed, if one did."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reading)
        with ended() as end:
            os.setpgid(0, 0)
            _apply(change, module)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            for number, (item, seconds) in enumerate(tests):
                following = tests[number + 1][0] if number + 1 < len(tests) else None
                os.write(writing, b".")
                signal.setitimer(signal.ITIMER_REAL, SLOW_S + SLOW_TIMES * seconds)
                if not passes(item, following):
                    with contextlib.suppress(BaseException):
                        item.session._setupstate.teardown_exact(None)
                    end(1)
            end(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        begun = len(told.read())
    return tests[max(begun, 1) - 1][0].nodeid if status != 0 else None


def _apply(change: Change, module: ModuleType) -> None:
    place: object = module
    *holders, name = change.function.split(".")
    for holder in holders:
        place = vars(place)[holder]
    found = vars(place)[name]
    for inner in ("__func__", "fget", "func", "__wrapped__"):
        found = getattr(found, inner, found)
    assert isinstance(found, FunctionType), change.function
    found.__code__ = change.code
