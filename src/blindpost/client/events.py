"""Events on their way to the caller, who takes them when there is time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from blindpost.transport.errors import TransportError

E = TypeVar("E")


class EventQueue(Generic[E]):
    """Events in the order they came; once the connection has ended and all are taken, the reason."""

    def __init__(self) -> None:
        self._events: deque[E] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._reason: TransportError | None = None

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: E) -> None:
        self._events.append(event)
        self._wake_one()

    def end(self, reason: TransportError) -> None:
        self._reason = reason
        while self._takers:
            self._wake_one()

    async def take(self) -> E:
        """The next event, or why there will be none."""
        while not self._events:
            if self._reason is not None:
                raise self._reason.again()
            taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                self._give_up(taker)
                raise
        event = self._events.popleft()
        if self._events:
            self._wake_one()
        return event

    def _give_up(self, taker: asyncio.Future[None]) -> None:
        """A waiter that was woken and cancelled at once passes the wake-up on."""
        if taker in self._takers:
            self._takers.remove(taker)
        elif self._events:
            self._wake_one()

    def _wake_one(self) -> None:
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return
