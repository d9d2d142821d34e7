"""Events on their way to the application: in order, never before it knows the connection they are about."""

from __future__ import annotations

import asyncio
from collections import deque

from blindpost.agent.events import ConnEvent, Event
from blindpost.agent.model import ConnId
from blindpost.agent.work.signals import Signal


class EventStream:
    """Takes events at any time and gives them one by one.

    `pressure` tells when `most` wait, so that nothing more is taken from routers, and when half of them went.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._events: deque[Event] = deque()
        self._held: dict[ConnId, list[Event]] = {}
        self._taker: asyncio.Event = asyncio.Event()
        self._closed = False
        self._is_full = False
        self.pressure: Signal[bool] = Signal()

    def hold(self, conn_id: ConnId) -> None:
        """The application has not been given this connection yet: keep what is about it."""
        self._held.setdefault(conn_id, [])

    def give(self, conn_id: ConnId) -> None:
        """The call that made the connection returns now: what was kept comes after that."""
        asyncio.get_running_loop().call_soon(self._release, conn_id)

    def forget(self, conn_id: ConnId) -> None:
        """The connection was not made after all."""
        self._held.pop(conn_id, None)

    def _release(self, conn_id: ConnId) -> None:
        for event in self._held.pop(conn_id, ()):
            self._append(event)

    def put(self, event: Event) -> None:
        if isinstance(event, ConnEvent):
            held = self._held.get(event.conn.id)
            if held is not None:
                held.append(event)
                return
        self._append(event)

    def _append(self, event: Event) -> None:
        self._events.append(event)
        self._taker.set()
        if len(self._events) >= self._most and not self._is_full:
            self._is_full = True
            self.pressure.tell(True)

    def close(self) -> None:
        """No more events: those that wait can still be taken."""
        self._closed = True
        self._taker.set()

    async def take(self) -> Event | None:
        """The next event; None when the agent is closed and all were taken."""
        while not self._events:
            if self._closed:
                return None
            self._taker.clear()
            await self._taker.wait()
        event = self._events.popleft()
        if self._is_full and len(self._events) <= self._most // 2:
            self._is_full = False
            self.pressure.tell(False)
        return event
