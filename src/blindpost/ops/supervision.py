"""Several servers as one: each a separate process, restarted when it dies; all stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence

from blindpost.serving.children import STOP_S_MAX, Child, DidNotStartError
from blindpost.serving.failures import OperatorError

log = logging.getLogger("blindpost.up")

_DELAY_S, _DELAY_S_MAX = 0.2, 60.0
_STEADY_S = 60.0
"""After a run of this length, the pause is the first one again."""


class Supervised:
    """A server whose process, which was started, is kept alive."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.restarts = 0
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Start it again whenever it ends, until `stop`."""
        delay = _DELAY_S
        while True:
            started = time.monotonic()
            code = await asyncio.to_thread(self.child.wait)
            if self._stopping.is_set():
                return
            if time.monotonic() - started > _STEADY_S:
                delay = _DELAY_S
            self.restarts += 1
            log.error("%s ended with code %d; it starts again in %.1f s", self.child.kind, code, delay)
            if await self._told_to_stop_within(delay):
                return
            delay = min(2 * delay, _DELAY_S_MAX)
            try:
                self.child.spawn()
            except OSError as error:  # such as no memory, which may have ended the last one too
                log.error("%s could not be started: %s", self.child.kind, error.strerror)

    async def _told_to_stop_within(self, delay_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        return self._stopping.is_set()

    async def wait_up(self, stop: asyncio.Event) -> None:
        """Until it answers at its control socket; its first start must not fail."""
        try:
            await asyncio.to_thread(self.child.wait_up, stop.is_set)
        except DidNotStartError as error:
            if not stop.is_set():
                raise OperatorError(
                    f"{self.child.kind} did not start; its output above says why. "
                    f"Its settings are in {self.child.folder}."
                ) from error

    async def stop(self) -> None:
        """Let it answer what it accepted; one that does not run is not started again."""
        self._stopping.set()
        if self.child.runs:
            started = time.monotonic()
            await asyncio.to_thread(self.child.end)
            if time.monotonic() - started > STOP_S_MAX:
                log.error("%s did not stop within %.0f s and was killed", self.child.kind, STOP_S_MAX)


@contextlib.asynccontextmanager
async def running(children: Sequence[Child], stop: asyncio.Event) -> AsyncIterator[list[Supervised]]:
    """All of them run while the block lasts, and none after it; `stop` ends the wait for their start too."""
    supervised = [Supervised(child) for child in children]
    tasks = []
    try:
        for one in supervised:
            one.child.spawn()
            tasks.append(asyncio.create_task(one.run()))
        for one in supervised:
            await one.wait_up(stop)
        yield supervised
    finally:
        await asyncio.gather(*(one.stop() for one in supervised))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
