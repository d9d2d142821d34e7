"""A server's memory limit: checked every second, and enforced by closing the largest holders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from blindpost.serving.limits import Limits
from blindpost.serving.logs import log
from blindpost.transport.keeper import TRIM_AFTER, give_back

LOOK_S = 1.0
NEAR = 7 / 8
"""Room is made from this fraction of the limit on."""
CLOSED_AT_ONCE = 256
"""How many connections one check closes at most; the next check sees the effect."""


def anonymous_bytes() -> int:
    """What this process uses, without its store's mapped files: the system reclaims those by itself."""
    pages = Path("/proc/self/statm").read_bytes().split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGESIZE")


class MemoryGuard:
    """Keeps a server below the memory that its limits name."""

    def __init__(self, limits: Limits, used: Callable[[], int] = anonymous_bytes) -> None:
        self._limits = limits
        self._used = used
        self._closed = 0

    async def look(self) -> None:
        limits, memory = self._limits, self._limits.sizes.memory
        if limits.meters.closed - self._closed >= TRIM_AFTER:
            self._closed = limits.meters.closed
            give_back(0)
        used = self._used()
        limits.is_tight = used > memory * NEAR
        if not limits.is_tight:
            return
        closed = 0
        while closed < CLOSED_AT_ONCE and limits.close_largest("the server is short of memory"):
            closed += 1
        log.warning(
            "%d MiB of memory are in use, the limit is %d: closed %d connections of those who hold most",
            used >> 20,
            memory >> 20,
            closed,
        )
