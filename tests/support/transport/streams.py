"""A session for tests that await: blocks wait in a bounded inbox until they are read."""

from __future__ import annotations

import asyncio
from collections import deque

from blindpost.transport import errors
from blindpost.transport.ends import open_session
from blindpost.transport.network import TCP, Network
from blindpost.transport.plan import SessionPlan
from blindpost.transport.session import Handler, Session
from blindpost.wire.primitives import Writer
from blindpost.wire.value import Buffer

INBOX_BLOCKS_MAX = 16
"""How many blocks a stream keeps for its reader before it stops the peer."""


class BlockStream(Handler):
    """A session for code that awaits: blocks wait in a bounded inbox until they are read."""

    def __init__(self) -> None:
        self._inbox: deque[bytes | errors.BlockError] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reason: errors.TransportError | None = None
        self.session: Session

    async def read_block(self) -> bytes:
        """The payload of the next block. `BlockError` is about that block only, anything else is the end."""
        while not self._inbox:
            if self.reason is not None:
                raise self.reason.again()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._inbox.popleft()
        if len(self._inbox) < INBOX_BLOCKS_MAX:
            self.session.resume_reading()
        if isinstance(item, errors.BlockError):
            raise item
        return item

    def send(self, *parts: Buffer) -> None:
        """Send one block whose payload is `parts` joined."""
        self.session.send(*parts)

    def send_payload(self, payload: Writer) -> None:
        self.session.send_payload(payload)

    async def drain(self) -> None:
        """Wait until the peer has caught up."""
        while self.session.congested and self.reason is None:
            self._drained = self._drained or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    async def close(self) -> None:
        """Close and wait until the socket is gone."""
        self.session.close()
        await asyncio.shield(self._over)

    def established(self, session: Session) -> None:
        self.session = session

    def block_received(self, session: Session, payload: bytes) -> None:
        self._put(session, payload)

    def block_failed(self, session: Session, error: errors.BlockError) -> None:
        self._put(session, error)

    def drained(self, session: Session) -> None:
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    def closed(self, session: Session, reason: errors.TransportError) -> None:
        self.reason = reason
        self._over.set_result(None)
        self.drained(session)
        self._wake()

    def _put(self, session: Session, item: bytes | errors.BlockError) -> None:
        self._inbox.append(item)
        if len(self._inbox) >= INBOX_BLOCKS_MAX:
            session.pause_reading()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def connect(plan: SessionPlan, host: str, port: int, network: Network = TCP) -> BlockStream:
    """As `open_session`, for code that awaits."""
    stream = BlockStream()
    await open_session(plan, stream, host, port, network)
    return stream
