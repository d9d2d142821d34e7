"""Events on their way to the application: in order, never before it knows the connection they are about."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque

from blindpost.agent.events import ConnEvent, Event, ReceiptsReceived, Received
from blindpost.agent.model import ConnId
from blindpost.agent.work.signals import Signal

log = logging.getLogger(__name__)

LEFT_MAX = 100_000
"""So many events more than are wanted may wait, some twenty megabytes."""

_Kept = tuple[Event, int | None]


def _message_of(event: Event) -> tuple[ConnId, int] | None:
    """Which message an event gives to the program."""
    return (event.conn.id, event.msg.id) if isinstance(event, Received | ReceiptsReceived) else None


class EventStream:
    """Takes events at any time and gives them one by one.

    An event that is kept in the store is settled when the program asks for the next one: a program that is
    killed before that gets it again. Nothing else has to be called for it, and a loop that handles one event
    after the other is correct as it is.
    `pressure` tells when `most` wait, so that nothing more is taken from routers, and when half of them went.
    What is sent is told further on. Where nobody takes events, the oldest that a restart would forget as well
    are dropped in the end.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._drop_at = most + LEFT_MAX
        self._events: deque[_Kept] = deque()
        self._held: dict[ConnId, list[_Kept]] = {}
        self._messages: Counter[tuple[ConnId, int]] = Counter()
        """Which messages wait for the program: one that it has not acknowledged when its router comes back
        arrives a second time."""
        self._again: set[tuple[ConnId, int]] = set()
        """Which messages were shown again before their routers brought them again."""
        self._last: int | None = None
        self._taker: asyncio.Event = asyncio.Event()
        self._closed = False
        self._has_room: asyncio.Event = asyncio.Event()
        self._has_room.set()
        self.pressure: Signal[bool] = Signal()
        self.settled: Signal[int] = Signal()

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
        for kept in self._held.pop(conn_id, ()):
            self._append(kept)

    def put(self, event: Event, row: int | None = None) -> None:
        if isinstance(event, ConnEvent):
            held = self._held.get(event.conn.id)
            if held is not None:
                held.append((event, row))
                return
        self._append((event, row))

    def put_again(self, event: Received | ReceiptsReceived) -> None:
        """A message from the store. Its router may bring it once more: the program has it then."""
        self.put(event)
        self._again.add((event.conn.id, event.msg.id))

    async def has_room(self) -> None:
        """Wait while too many events wait for the program."""
        await self._has_room.wait()

    def acknowledged(self, conn_id: ConnId, msg_id: int) -> None:
        """The program is done with a message: copies that wait are not given to it any more."""
        key = (conn_id, msg_id)
        self._again.discard(key)
        if self._messages[key]:
            waiting, self._events = self._events, deque()
            for event, row in waiting:
                if _message_of(event) != key:
                    self._events.append((event, row))
                elif row is not None:
                    self.settled.tell(row)
            self._relieve()
        del self._messages[key]

    def _append(self, kept: _Kept) -> None:
        message = _message_of(kept[0])
        if message in self._again:
            self._again.discard(message)
            return
        self._events.append(kept)
        if message is not None:
            self._messages[message] += 1
        self._taker.set()
        if len(self._events) >= self._most:
            self._press()

    def _press(self) -> None:
        """Too many wait."""
        if self._has_room.is_set():
            self._has_room.clear()
            self.pressure.tell(True)
        if len(self._events) >= self._drop_at:
            self._drop()

    def _drop(self) -> None:
        """Keep messages, what is stored, and what came last."""
        waited = len(self._events)
        self._events = deque(
            kept
            for number, kept in enumerate(self._events, self._most - waited)
            if number >= 0 or kept[1] is not None or _message_of(kept[0]) is not None
        )
        self._drop_at = len(self._events) + LEFT_MAX
        log.warning("nobody takes events: %d that ask for nothing were dropped", waited - len(self._events))

    def close(self) -> None:
        """No more events: those that wait can still be taken, but not settled."""
        self._closed = True
        self._taker.set()

    def settle(self) -> None:
        """The program is done with the event that it took last."""
        row, self._last = self._last, None
        if row is not None and not self._closed:
            self.settled.tell(row)

    async def take(self) -> Event | None:
        """The next event, which settles the one before; None when the agent is closed and all were taken."""
        self.settle()
        while not self._events:
            if self._closed:
                return None
            self._taker.clear()
            await self._taker.wait()
        event, self._last = self._events.popleft()
        message = _message_of(event)
        if message is not None:
            self._messages[message] -= 1
            if not self._messages[message]:
                del self._messages[message]
        self._relieve()
        return event

    def _relieve(self) -> None:
        if len(self._events) <= self._most // 2 and not self._has_room.is_set():
            self._has_room.set()
            self.pressure.tell(False)
