"""Several servers as one: each a process of its own, started again when it dies, stopped together.

They do not outlive us: each holds the other end of a pipe, and stops in order when we are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from blindpost.serving import ending
from blindpost.serving.control import NotRunningError, ask
from blindpost.serving.failures import OperatorError

log = logging.getLogger("blindpost.up")

COMMAND = (sys.executable, "-m", "blindpost.cli")
_POLL_S = 0.05
_START_S_MAX = 60.0
_STOP_S_MAX = 60.0
_DELAY_S, _DELAY_S_MAX = 1.0, 60.0
_STEADY_S = 60.0
"""After who ran so long the pause is the first one again."""


@dataclass(frozen=True, slots=True)
class Part:
    """One server: the word after `blindpost`, and its folder."""

    kind: str
    folder: Path


class Supervised:
    """A part whose process is kept alive."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.restarts = 0
        self.process: asyncio.subprocess.Process | None = None
        self._stopping = False

    async def run(self) -> None:
        """Start it, and again whenever it ends, until `stop`."""
        delay = _DELAY_S
        while not self._stopping:
            started = time.monotonic()
            self.process = await asyncio.create_subprocess_exec(
                *(*COMMAND, ending.OPTION, self.part.kind, "start", "-c", str(self.part.folder)),
                stdin=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            code = await self.process.wait()
            if self._stopping:
                return
            if time.monotonic() - started > _STEADY_S:
                delay = _DELAY_S
            self.restarts += 1
            log.error("%s ended with code %d; it starts again in %.0f s", self.part.kind, code, delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _DELAY_S_MAX)

    async def wait_up(self, stop: asyncio.Event) -> None:
        """Until it answers at its control socket; its first start must not fail."""
        end = time.monotonic() + _START_S_MAX
        while not stop.is_set():
            try:
                await asyncio.to_thread(ask, self.part.folder / "control.sock", "status")
                return
            except NotRunningError as error:
                if self.restarts or time.monotonic() > end:
                    raise OperatorError(
                        f"{self.part.kind} did not start; what it said above tells why. "
                        f"Its settings are in {self.part.folder}."
                    ) from error
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Let it answer what it accepted."""
        self._stopping = True
        process = self.process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_S_MAX):
                await process.wait()
        except TimeoutError:
            log.error("%s did not stop within %.0f s and is killed", self.part.kind, _STOP_S_MAX)
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def running(parts: Sequence[Part], stop: asyncio.Event) -> AsyncIterator[list[Supervised]]:
    """All parts run while the block lasts, and none after it; `stop` ends the wait for their start too."""
    supervised = [Supervised(part) for part in parts]
    tasks = [asyncio.create_task(one.run()) for one in supervised]
    try:
        for one in supervised:
            await one.wait_up(stop)
        yield supervised
    finally:
        await asyncio.gather(*(one.stop() for one in supervised))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
