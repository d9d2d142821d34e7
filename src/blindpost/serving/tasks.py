"""Background work of a server: a failure is logged once, counted and retried; nothing else stops."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from blindpost.engine.loop import StoreFailedError
from blindpost.serving.failures import OperatorError
from blindpost.serving.logs import log

Work = Callable[[], Awaitable[None]]
Seconds = float | Callable[[], float]
"""A pause, or a function that returns it."""

FIRST_S, MOST_S = 1.0, 60.0
"""The first and the longest pause after a failure."""
STEADY_S = 60.0
"""After work that ran this long, pauses start from the first again."""


class Tasks:
    """Tasks by name, each kept alive until `finish` or `cancel` ends it."""

    def __init__(self, first_s: float = FIRST_S) -> None:
        self.failures: Counter[str] = Counter()
        """How often each of them has failed."""
        self._first_s = first_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._finishing: set[str] = set()
        self._changed = asyncio.Event()

    def start(self, name: str, work: Work) -> None:
        """Do `work`, and again after a pause whenever it fails, until it returns."""
        self.failures[name] += 0
        self._tasks[name] = asyncio.create_task(self._keep(name, work), name=name)

    def repeat(self, name: str, every_s: Seconds, work: Work, *, at_start: bool = False) -> None:
        """Do `work` periodically; if the period is a function, it may change."""

        async def again() -> None:
            if not at_start:
                await self._pause(every_s)
            while True:
                await work()
                await self._pause(every_s)

        self.start(name, again)

    def reconsider(self) -> None:
        """The pauses may have changed, including those in progress."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _pause(self, every_s: Seconds) -> None:
        if isinstance(every_s, int | float):
            await asyncio.sleep(every_s)
            return
        started = time.monotonic()
        await asyncio.sleep(0)
        while (left := started + every_s() - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()

    async def finish(self, name: str) -> None:
        """Wait until a task that was told to stop has ended; one that fails now is not restarted."""
        task = self._tasks.pop(name, None)
        if task is not None:
            self._finishing.add(name)
            await task

    async def cancel(self, *, keep: str) -> None:
        """End all but this one."""
        left = {name: task for name, task in self._tasks.items() if name != keep}
        self._tasks = {name: task for name, task in self._tasks.items() if name == keep}
        for task in left.values():
            task.cancel()
        await asyncio.gather(*left.values(), return_exceptions=True)

    async def _keep(self, name: str, work: Work) -> None:
        delay_s = self._first_s
        while True:
            started = time.monotonic()
            try:
                await work()
                return
            except asyncio.CancelledError as error:
                own = asyncio.current_task()
                if own is None or own.cancelling():
                    raise
                self._failed(name, error, delay_s)
            except Exception as error:
                self._failed(name, error, delay_s)
            if name in self._finishing:
                return
            if time.monotonic() - started > STEADY_S:
                delay_s = self._first_s
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, MOST_S)

    def _failed(self, name: str, error: BaseException, delay_s: float) -> None:
        """Our own messages are for people; the text of any other exception may hold a user's data."""
        self.failures[name] += 1
        if isinstance(error, StoreFailedError | OperatorError):
            log.error("%s: %s; retrying in %.0f s", name, str(error).rstrip("."), delay_s)
        else:
            info = (type(error), error, error.__traceback__)
            log.error("%s failed; restarting in %.0f s", name, delay_s, exc_info=info)
