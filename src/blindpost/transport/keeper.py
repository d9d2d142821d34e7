"""The sessions of one owner, and the memory of those that are idle."""

from __future__ import annotations

import asyncio
import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blindpost.transport.session import Session

TRIM_AFTER = 128
"""After this many sessions gave back their buffers, the allocator is asked to return them to the system."""


def _keep(room: int) -> None:
    """Do nothing: this allocator cannot be asked."""


give_back = getattr(ctypes.CDLL(None), "malloc_trim", _keep)
"""Have the allocator return free memory to the system."""


class Keeper:
    """Tracks the sessions of one owner and frees the memory of idle ones."""

    def __init__(self, release_after_s: float) -> None:
        self._release_after_s = release_after_s
        self._warm: dict[Session, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._freed = 0
        self.sessions: dict[Session, None] = {}
        """In the order in which they were opened."""

    def opened(self, session: Session) -> None:
        self.sessions[session] = None

    def closed(self, session: Session) -> None:
        self.sessions.pop(session, None)
        self._warm.pop(session, None)
        self._given_back(1)
        if not self._warm and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.sessions and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def warmed(self, session: Session) -> None:
        self._warm[session] = None
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._release_after_s, self._sweep, loop)

    def _given_back(self, sessions: int) -> None:
        self._freed += sessions
        if self._freed >= TRIM_AFTER:
            self._freed = 0
            give_back(0)

    async def emptied(self) -> None:
        """Wait until no session is left."""
        if self.sessions:
            self._emptied = self._emptied or asyncio.get_running_loop().create_future()
            await self._emptied

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        idle_since = loop.time() - self._release_after_s
        cooled = [warm for warm in self._warm if warm.cool(idle_since)]
        for session in cooled:
            del self._warm[session]
        self._given_back(len(cooled))
        self._timer = loop.call_later(self._release_after_s, self._sweep, loop) if self._warm else None
