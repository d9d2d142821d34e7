"""A server's memory limit: checked every second, and enforced by closing the largest holders."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

from blindpost.serving.limits import Limits
from blindpost.serving.logs import log
from blindpost.transport.keeper import TRIM_AFTER, give_back

LOOK_S = 1.0
NEAR = 7 / 8
"""Room is made from this fraction of the limit on."""
QUIET_S = 5.0
"""How long to wait for more closed connections before freeing the memory of a few."""
CLOSED_AT_ONCE = 256
"""How many connections one check closes at most; the next check sees the effect."""


def anonymous_bytes(pid: int | str = "self") -> int:
    """What a process uses, without its store's mapped files: the system reclaims those by itself.

    Nothing if it has ended.
    """
    try:
        pages = Path(f"/proc/{pid}/statm").read_bytes().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGESIZE")


class GivingBack:
    """Frees what ended connections held: even a few can have held much.

    A failed handshake leaves a cycle behind, and collections are rare; the young ones are enough here.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen = 0
        self._at = now()

    def look(self, closed: int) -> None:
        """So many connections have ended since the start."""
        fresh = closed - self._seen
        if fresh >= TRIM_AFTER or (fresh and self._now() - self._at >= QUIET_S):
            self._seen = closed
            self._at = self._now()
            gc.collect(1)
            give_back(0)


class MemoryGuard:
    """Keeps a server below the memory that its limits name."""

    def __init__(
        self,
        limits: Limits,
        used: Callable[[], int] = anonymous_bytes,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._used = used
        self._giving_back = GivingBack(now)

    async def look(self) -> None:
        limits, memory = self._limits, self._limits.sizes.memory
        self._giving_back.look(limits.meters.closed)
        used = self._used()
        limits.is_tight = used > memory * NEAR
        if not limits.is_tight:
            return
        closed = 0
        while closed < CLOSED_AT_ONCE and limits.close_largest("the server is short of memory"):
            closed += 1
        log.warning(
            "%d MiB of memory are in use, the limit is %d: closed %d connections of the largest holders",
            used >> 20,
            memory >> 20,
            closed,
        )
