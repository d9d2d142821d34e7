"""Where time comes from: the event loop for durations, an offset to it for the time of day."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """The time of day in Unix seconds. Durations come from the event loop's own time."""

    def now(self) -> float: ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()


class LoopClock:
    """A time of day that moves with the running event loop: under a virtual loop it is virtual too."""

    def __init__(self, start: float) -> None:
        self._start = start

    def now(self) -> float:
        return self._start + asyncio.get_running_loop().time()
