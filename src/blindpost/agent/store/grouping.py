"""Transactions of one moment as one: a disk takes as long for a hundred changes as for one.

Each part is atomic by itself: where one fails, the others stay. All parts become durable together, and what
follows from them happens then, in the order in which they were made. A part may see what an earlier part of
its group did: whatever it decides from that is durable with it, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from blindpost.engine.loop import StoreFailedError

log = logging.getLogger(__name__)

PARTS_MAX = 200
"""So many parts are not kept waiting for more."""
TURNS_MAX = 8
"""For so many turns of the loop at most a group waits for others that are about to join."""
LAZY_S = 0.2
"""After this time a group that nobody waits for becomes durable by itself."""


class Group:
    """Parts that become durable together."""

    def __init__(self, commit: Callable[[], None]) -> None:
        self.parts = 0
        self._commit = commit
        self._after: list[Callable[[], None]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._handle: asyncio.Handle | None = None
        self._hurried = False
        self._seen = 0
        self._open = True
        self._failure: StoreFailedError | None = None

    def follow(self, work: Callable[[], None]) -> None:
        """To be done once it is durable."""
        self._after.append(work)

    async def durable(self) -> None:
        """Wait until all parts are durable; `StoreFailedError` if nothing of them happened.

        Who is cancelled while it waits finds them durable too.
        """
        if self._open:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            self.soon()
            try:
                await waiter
            except asyncio.CancelledError:
                if self._open:
                    with contextlib.suppress(StoreFailedError):
                        self._commit()
                raise
        if self._failure is not None:
            raise StoreFailedError(*self._failure.args)

    def soon(self) -> None:
        """Commit as soon as a turn of the loop has brought nothing more."""
        if self._open and not self._hurried:
            self._hurried = True
            self._disarm()
            self._handle = asyncio.get_running_loop().call_soon(self._turn, TURNS_MAX)

    def lazily(self) -> None:
        """Commit with what comes next, or after a while."""
        if self._open and self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(LAZY_S, self._due)

    def _turn(self, left: int) -> None:
        if left and self.parts > self._seen:
            self._seen = self.parts
            self._handle = asyncio.get_running_loop().call_soon(self._turn, left - 1)
        else:
            self._due()

    def _due(self) -> None:
        try:
            self._commit()
        except StoreFailedError as error:
            if not self._waiters:
                log.warning("what needed no hurry was not stored, and will be done again: %s", error)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def ended(self, failure: StoreFailedError | None = None) -> None:
        """It is durable, or nothing of it happened."""
        self._open, self._failure = False, failure
        self._disarm()
        if failure is None:
            for work in self._after:
                try:
                    work()
                except Exception:
                    log.exception("what follows from a change that was stored failed")
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
