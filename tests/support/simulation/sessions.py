"""A session without TLS: blocks in memory, a reader that may be slow, a cable that may be cut.

It behaves as a transport session does towards its handler: nothing is delivered while reading is paused,
it is congested while too much waits, it says so once when it has drained, and it closes once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from blindpost.transport import errors
from blindpost.transport.handshake import Agreement
from blindpost.transport.session import Handler, Session
from blindpost.wire.primitives import Writer

OUTBOX_HIGH = 2
OUTBOX_LOW = 0
"""In blocks: at how many a session is congested, and at how many it has drained."""


class MemorySession(Session):
    """The router's end of one connection; `arrive`, `reads`, `cut` and `die` are for the other end."""

    __slots__ = (
        "_closed",
        "_delay_s",
        "_found",
        "_hear",
        "_inbox",
        "_outbox",
        "_reads",
        "_sent",
        "_transit",
    )

    def __init__(
        self,
        handler: Handler,
        hear: Callable[[bytes], None],
        found: Callable[[bytes | None], None],
        sent: Callable[[], None],
        delay_s: float,
    ) -> None:
        self.handler = handler
        self.agreement: Agreement | None = None
        self.last_received = self.last_sent = 0.0
        self._hear = hear
        self._found = found
        self._sent = sent
        self._delay_s = delay_s
        self._congested = False
        self._paused_reading = False
        self._closed = False
        self._reads = True
        self._inbox: deque[bytes] = deque()
        self._transit: deque[bytes] = deque()
        self._outbox: deque[bytes] = deque()

    # What the router calls

    @property
    def congested(self) -> bool:
        return self._congested

    @property
    def outbox_size(self) -> int:
        return sum(map(len, self._outbox))

    def send_now(self, payloads: Sequence[Writer]) -> None:
        for payload in payloads:
            self.send_payload(payload)

    def send_payload(self, payload: Writer) -> None:
        self._sent()
        if self._closed:
            return
        self._outbox.append(payload.done())
        if len(self._outbox) >= OUTBOX_HIGH:
            self._congested = True
        asyncio.get_running_loop().call_later(self._delay_s, self._flush)

    def pause_reading(self) -> None:
        self._paused_reading = True

    def resume_reading(self) -> None:
        if self._paused_reading:
            self._paused_reading = False
            asyncio.get_running_loop().call_soon(self._pump)

    def service_found(self, service_id: bytes) -> None:
        if not self._closed:
            self._found(service_id)

    def service_refused(self) -> None:
        if not self._closed:
            self._found(None)

    # What the other end does

    def arrive(self, payload: bytes) -> None:
        """A block on its way to the router; blocks do not overtake each other."""
        self._transit.append(payload)
        asyncio.get_running_loop().call_later(self._delay_s, self._land)

    @property
    def reads(self) -> bool:
        return self._reads

    @reads.setter
    def reads(self, reads: bool) -> None:
        self._reads = reads
        if reads:
            asyncio.get_running_loop().call_soon(self._flush)

    def cut(self, after_s: float) -> None:
        """Nothing passes any more; the router hears of it after some time."""
        if not self._closed:
            self.die()
            asyncio.get_running_loop().call_later(after_s, self._lost, self.handler)

    def die(self) -> None:
        """The router is gone: nothing passes and nobody hears of it."""
        self._closed = True
        for waiting in (self._inbox, self._transit, self._outbox):
            waiting.clear()

    # Inside

    def _lost(self, handler: Handler) -> None:
        handler.closed(self, errors.ConnectionCutError())

    def _land(self) -> None:
        if self._transit:
            self._inbox.append(self._transit.popleft())
            self._pump()

    def _pump(self) -> None:
        while self._inbox and not self._paused_reading and not self._closed:
            self.handler.block_received(self, self._inbox.popleft())

    def _flush(self) -> None:
        while self._outbox and self._reads and not self._closed:
            self._hear(self._outbox.popleft())
        if self._congested and len(self._outbox) <= OUTBOX_LOW and not self._closed:
            self._congested = False
            self.handler.drained(self)
