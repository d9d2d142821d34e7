"""Virtual time: an event loop whose clock jumps to the next thing that is due.

A program that waits an hour for something runs in no time, in the same order on every machine. When
nothing is due and nothing is ready, nothing will ever happen: that is reported instead of waited for.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class NothingWillHappenError(RuntimeError):
    """All tasks wait, and no timer is set that could wake one."""


class _JumpingSelector(selectors.BaseSelector):
    """Never sleeps: where a selector would wait, the clock moves on instead."""

    def __init__(self) -> None:
        self.now = 0.0
        self._real = selectors.DefaultSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if not ready:
            if timeout is None:
                raise NothingWillHappenError("all tasks wait and no timer is set")
            self.now += max(0.0, timeout)
        return ready


class VirtualClock(asyncio.SelectorEventLoop):
    """An event loop on virtual time, which starts at 0. Work for an executor is done at once, in place."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # The base class adds this to the time to see what is due; after a year a nanosecond would vanish.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class LoopClock:
    """A time of day that moves with the running event loop: for a program that takes `now` as a parameter."""

    def __init__(self, start: float) -> None:
        self._start = start

    def now(self) -> float:
        return self._start + asyncio.get_running_loop().time()


def run_virtual(main: Coroutine[object, object, T]) -> T:
    """Run `main` on its own virtual clock, as `asyncio.run` would on the real one."""
    with asyncio.Runner(loop_factory=VirtualClock) as runner:
        return runner.run(main)
