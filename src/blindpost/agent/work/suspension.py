"""Putting an agent to rest: what is under way is counted by kind, and kinds end in an order.

Receiving ends first, so that no new work comes in; then delivery of messages; then everything else that is
sent, which receiving and delivery needed until now; the database last. Work that does not end in time is
left where it is: all of it continues after `resume`, or after a restart.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from enum import Enum


class Operation(Enum):
    """A kind of work, in the order in which suspension ends them."""

    RECEIVING = "receiving"
    DELIVERY = "delivery"
    SENDING = "sending"
    DATABASE = "database"


class _Kind(AbstractAsyncContextManager[None]):
    """How many pieces of work of one kind are under way, and whether new ones may start."""

    def __init__(self) -> None:
        self.count = 0
        self.open = asyncio.Event()
        self.idle = asyncio.Event()
        self.open.set()
        self.idle.set()

    async def __aenter__(self) -> None:
        while not self.open.is_set():  # it may be closed again before who waits goes on
            await self.open.wait()
        self.count += 1
        self.idle.clear()

    async def __aexit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count:
            self.idle.set()


class Operations:
    """All work of an agent that suspension must wait for or hold back."""

    def __init__(self) -> None:
        self._kinds = {operation: _Kind() for operation in Operation}
        self._suspending: asyncio.Lock = asyncio.Lock()
        self._resumed = 0
        self._limit: asyncio.Timeout | None = None

    def under_way(self, operation: Operation) -> AbstractAsyncContextManager[None]:
        """A piece of work; it starts when its kind is open."""
        return self._kinds[operation]

    def is_open(self, operation: Operation) -> bool:
        return self._kinds[operation].open.is_set()

    @property
    def suspended(self) -> bool:
        return not self.is_open(Operation.DATABASE)

    async def suspend(self, max_delay_s: float) -> bool:
        """Close every kind in order, each when the one before has ended; whether all did so in time. If
        `resume` is called meanwhile this ends too, and all stay open."""
        asked = self._resumed
        async with self._suspending:
            try:
                async with asyncio.timeout(max_delay_s) as self._limit:
                    for kind in self._kinds.values():
                        if self._resumed != asked:
                            return False
                        kind.open.clear()
                        await kind.idle.wait()
            except TimeoutError:
                if self._resumed == asked:
                    for kind in self._kinds.values():
                        kind.open.clear()
            finally:
                self._limit = None
            return self._resumed == asked and all(kind.idle.is_set() for kind in self._kinds.values())

    def resume(self) -> None:
        """Open all kinds again, the last closed first."""
        self._resumed += 1
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())
        for kind in reversed(self._kinds.values()):
            kind.open.set()
