"""A time of day for decisions that run under a virtual event loop."""

from __future__ import annotations

import asyncio


class LoopClock:
    """Moves with the running event loop: under a virtual loop it is virtual too."""

    def __init__(self, start: float) -> None:
        self._start = start

    def now(self) -> float:
        return self._start + asyncio.get_running_loop().time()
