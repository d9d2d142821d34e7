"""Transactions of one moment as one: a disk takes as long for a hundred changes as for one.

Each part is atomic by itself: where one fails, the others stay. All parts are committed together, and what
follows from them happens then, in the order in which they were made. A part may see what an earlier part of
its group did: whatever it decides from that is committed with it, or not at all.
A commit cannot be taken back and survives the end of the process. A power loss it survives once the disk has
synced it, which happens in a thread while the next group is made; nothing leaves the machine before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import Protocol

from blindpost.agent.store.intake import Came
from blindpost.engine.loop import StoreFailedError

log = logging.getLogger(__name__)

PARTS_MAX = 200
"""So many parts are not kept waiting for more."""
TURNS_MAX = 8
"""For so many turns of the loop at most a group waits for others that are about to join."""
UNSYNCED_MAX = 32
"""So many groups that nobody waits for are not left to a power loss."""
LAZY_S = 0.2
"""After this time a group that nobody waits for is committed by itself."""


class Committer(Protocol):
    """Who makes groups durable: their store."""

    def commit(self) -> None:
        """Make everything durable before this returns."""

    def write(self) -> None:
        """Commit the group that is open, as soon as the disk is free for it."""

    def sync(self) -> None:
        """Make everything that is committed durable, in a while."""


class Group:
    """Parts that are committed together."""

    def __init__(self, store: Committer) -> None:
        self.parts = 0
        self.spare = False
        """Whether it may be taken back: all its parts would be done again, and nobody waits for them."""
        self.names: set[Hashable] = set()
        """What of it must not leave the machine before it is durable, for those who ask for it alone."""
        self.done: list[Came] = []
        """Messages that the program is done with by a part of it."""
        self._store = store
        self._after: list[Callable[[], None]] = []
        self._writing: list[asyncio.Future[None]] = []
        self._syncing: list[asyncio.Future[None]] = []
        self._leaving: list[Callable[[bool], None]] = []
        self._handle: asyncio.Handle | None = None
        self.hurried = False
        """Whether it is to be committed with no further delay than that of the disk."""
        self.awaited = False
        """Whether somebody waits until it is durable, or is about to."""
        self._open = True
        self._done = False
        self._failure: StoreFailedError | None = None

    def follow(self, work: Callable[[], None]) -> None:
        """To be done once it is committed."""
        self._after.append(work)

    def leave(self, work: Callable[[bool], None]) -> None:
        """To be done in the very moment in which it is durable, or turns out not to be: who waits for a turn
        of the loop waits for what all others do in theirs."""
        self.when_ended(work)
        self._hurry_to_disk()

    def when_ended(self, work: Callable[[bool], None]) -> None:
        """The same without any hurry."""
        self._leaving.append(work)

    async def written(self) -> None:
        """Wait until all parts are committed; `StoreFailedError` if nothing of them happened."""
        if self._open:
            self.soon()
            await self._wait(self._writing)
        self._raise()

    async def durable(self) -> None:
        """Wait until all parts survive a power loss; `StoreFailedError` if nothing of them happened.

        Who is cancelled while it waits finds them durable too.
        """
        if not self._done:
            self._hurry_to_disk()
            await self._wait(self._syncing)
        self._raise()

    def _hurry_to_disk(self) -> None:
        self.awaited = True
        if self._open:
            self.soon()
        else:
            self._store.sync()

    async def _wait(self, waiters: list[asyncio.Future[None]]) -> None:
        waiter = asyncio.get_running_loop().create_future()
        waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not self._done:
                with contextlib.suppress(StoreFailedError):
                    self._store.commit()
            raise

    def _raise(self) -> None:
        if self._failure is not None:
            raise StoreFailedError(*self._failure.args)

    def soon(self) -> None:
        """Commit as soon as a turn of the loop has brought nothing more."""
        if self._open and not self.hurried:
            self._disarm()
            self.hurried = True
            self._handle = asyncio.get_running_loop().call_soon(self._turn, TURNS_MAX, self.parts)

    def at_once(self, *, awaited: bool = True) -> None:
        """Commit now and begin to make it durable, without waiting for others that might join: what comes
        next waits for the disk, unless it is not `awaited`. Those who wait are told if that fails."""
        if self._open:
            self.hurried = True
            self.awaited |= awaited
            with contextlib.suppress(StoreFailedError):
                self._store.write()

    def lazily(self, within_s: float = LAZY_S) -> None:
        """Commit with what comes next, or after a while."""
        if self._open and self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(within_s, self._due)

    @property
    def is_committed(self) -> bool:
        """Whether it happened."""
        return not self._open and self._failure is None

    @property
    def failed(self) -> bool:
        """Whether nothing of it happened."""
        return self._failure is not None

    def _turn(self, left: int, seen: int) -> None:
        if left and self.parts > seen:
            self._handle = asyncio.get_running_loop().call_soon(self._turn, left - 1, self.parts)
        else:
            self._due()

    def _due(self) -> None:
        self.hurried = True
        told = bool(self._writing or self._syncing)
        try:
            self._store.write()
        except StoreFailedError as error:
            if not told:
                log.warning("what needed no hurry was not stored, and will be done again: %s", error)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def committed(self) -> None:
        """It happened, and what follows from it happens now."""
        self._open = False
        self._disarm()
        for work in self._after:
            _do(work)
        _wake(self._writing)

    def ended(self, failure: StoreFailedError | None = None) -> None:
        """It is durable, or nothing of it happened."""
        self._open, self._done, self._failure = False, True, failure
        self._disarm()
        for work in self._leaving:
            _do(partial(work, failure is None))
        _wake(self._writing)
        _wake(self._syncing)


def _do(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        log.exception("what follows from a change that was stored failed")


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
