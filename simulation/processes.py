"""Processes inside one event loop: each can die between any two of its steps, and then runs nothing more.

Who a step belongs to is a context variable, which tasks and timers inherit. What a dead process still had
to do is dropped, as `kill -9` drops it: no `finally` of it has an effect, since its files and connections
are closed before its coroutines are.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple

from blindpost.testing.clock import NothingWillHappenError, VirtualClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STANDING_MAX = 50_000
"""How many steps may be taken at one time: a few large payloads in small pieces take 17,000."""
AWAITS_MAX = 100
"""How often a coroutine may await something while it ends."""


class CrashedError(BaseException):
    """The process is gone, in the middle of a step: nothing in it may catch this."""


class LivelockError(KeyboardInterrupt):
    """Steps follow each other without end and without a pause; of this kind because no step may catch it."""


class Process:
    """One life of a party."""

    def __init__(self, loop: SimulationLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped = False
        """Whether it takes no step until it goes on."""
        self.steps = 0
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.at_death: list[Callable[[], None]] = []
        """Closes files and connections; called in reverse order."""
        self.on_death: Callable[[], None] | None = None
        self.buried: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._dies_after: int | None = None
        self._put_off: list[tuple[Context, Callable[..., Any], tuple[Any, ...]]] = []
        loop.processes[self] = None

    def die_after(self, steps: int) -> None:
        """Die when so many more steps were taken."""
        self._dies_after = self.steps + steps

    def spare(self) -> None:
        """Do not die after all, unless that has begun."""
        if self.alive:
            self._dies_after = self.on_death = None

    def step(self, callback: Callable[[*Ts], T], *args: *Ts) -> T | None:
        """One step, unless the process is dead; what cannot be done now is done when it goes on."""
        if not self.alive:
            return None
        if self.stopped:
            self._put_off.append((copy_context(), callback, args))
            return None
        self.steps += 1
        self._loop.stood += 1
        if self._loop.stood > STANDING_MAX:
            raise LivelockError(f"{self.name} is busy for ever")
        try:
            outcome = callback(*args)
        except CrashedError:
            return None
        if self._dies_after is not None and self.steps >= self._dies_after:
            self.die()
        return outcome

    def inside(self, callback: Callable[[*Ts], T], *args: *Ts) -> T | None:
        """One step that comes from outside: what it starts belongs to this process."""
        token = PROCESS.set(self)
        try:
            return self.step(callback, *args)
        finally:
            PROCESS.reset(token)

    def go_on(self) -> None:
        """Take steps again, those first that were due meanwhile."""
        self.stopped = False
        put_off, self._put_off = self._put_off, []
        for context, callback, args in put_off:
            self._loop.call_soon(callback, *args, context=context)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of this process, started from outside."""
        token = PROCESS.set(self)
        try:
            return self._loop.create_task(work)
        finally:
            PROCESS.reset(token)

    def die(self) -> None:
        """Now. Its coroutines are closed in the next turn of the loop, since one of them may be running."""
        if not self.alive:
            return
        self.alive = False
        for close in reversed(self.at_death):
            with contextlib.suppress(Exception):
                close()
        self._loop.outside.call_soon(self.bury)

    def bury(self) -> None:
        """End what is left, while everything it could still do has no effect."""
        if self._loop.processes.pop(self, self) is self:
            return
        token = PROCESS.set(self)
        try:
            for task in tuple(self.tasks):
                _end(task)
            self.tasks.clear()
        finally:
            PROCESS.reset(token)
        if self.on_death is not None:
            self.on_death()
        self.buried.set_result(None)


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
"""Whose step is running; None: that of the network, or of the run itself."""


def _end(task: asyncio.Task[Any]) -> None:
    """Let the coroutine of a task end without a step of the loop; what it awaits meanwhile fails too."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it stays pending on purpose
    coroutine = task.get_coro()
    assert isinstance(coroutine, Coroutine)
    for _ in range(AWAITS_MAX):
        try:
            coroutine.throw(CrashedError())
        except BaseException:
            return


class _Handle(asyncio.Handle):
    """What the loop calls soon: as the base class has it, without what is for debugging."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = self._source_traceback = None


class _TimerHandle(asyncio.TimerHandle):
    """What the loop calls at a time."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context,
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = self._scheduled = False
        self._repr = self._source_traceback = None


class _Due(float):
    """The time of a timer, and the timer: it is compared with others as often as anything is done here."""

    __slots__ = ("timer",)
    timer: _TimerHandle


class _Task(asyncio.Task[Any]):
    """Its place in a set does not depend on where it lies in memory."""

    def __init__(self, number: int, coro: Any, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class Outside:
    """The loop for what belongs to no process: the network.

    It does not ask whose step is running, since a step of a process may be what schedules something here.
    """

    def __init__(self, loop: SimulationLoop) -> None:
        self._loop = loop
        self._context = copy_context()
        self._context.run(PROCESS.set, None)
        self.time = loop.time

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts) -> asyncio.Handle:
        return self._loop.soon(callback, args, self._context)

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> asyncio.TimerHandle:
        return self._loop.at(when, callback, args, self._context)


class SimulationLoop(VirtualClock):
    """A virtual clock that knows whose every step is."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[_Due]
    _closed: bool

    def __init__(self) -> None:
        super().__init__()
        self.outside = Outside(self)
        self.processes: dict[Process, None] = {}
        """All that are not buried."""
        self._tasks = 0
        self.stood = 0
        """How many steps were taken since time moved on."""

    def _run_once(self) -> None:
        """What the base class does, without asking the system for events: there are none."""
        ready, timers, jumping = self._ready, self._scheduled, self._jumping
        while timers and timers[0].timer._cancelled:
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise NothingWillHappenError("all tasks wait and no timer is set")
            if timers[0] > jumping.now:
                jumping.now = timers[0].timer._when
                self.stood = 0
        due = jumping.now + self._clock_resolution
        while timers and timers[0] < due:
            ready.append(heapq.heappop(timers).timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def soon(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("the loop is closed")
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def at(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> asyncio.TimerHandle:
        if self._closed:
            raise RuntimeError("the loop is closed")
        due = _Due(when)
        due.timer = timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, due)
        return timer

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = copy_context()
        process = context.get(PROCESS)
        if process is None:
            return self.soon(callback, args, context)
        handle = self.soon(process.step, (callback, *args), context)
        if not process.alive:
            handle.cancel()
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if context is None:
            context = copy_context()
        process = context.get(PROCESS)
        if process is None:
            return self.at(when, callback, args, context)
        handle = self.at(when, process.step, (callback, *args), context)
        if not process.alive:
            handle.cancel()
        return handle

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        named = process.name if process is not None else name
        self._tasks += 1
        task: asyncio.Task[Any] = _Task(self._tasks, coro, loop=self, name=named, context=context)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
            if not process.alive:
                _end(task)
        return task


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a loop of its own; tasks of dead processes are left as they are."""
    loop = SimulationLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        logging.disable()  # what the last processes say at their burial concerns nobody
        asyncio.set_event_loop(loop)  # what they still start then is forgotten with it
        for process in tuple(loop.processes):
            process.on_death = None
            process.die()
            process.bury()
        asyncio.set_event_loop(None)
        logging.disable(logging.NOTSET)
        loop.close()
