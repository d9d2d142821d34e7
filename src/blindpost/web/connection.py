"""One visitor of the site, over TLS or in plain: bounded in time, in memory and in number."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import cast

import h2.exceptions

from blindpost.transport.guarded import Overhead
from blindpost.web.challenges import PROTOCOL
from blindpost.web.http import Answer, Http1, Http2, Silent, Speaker

VISITORS_MAX = 500
VISITORS_PER_ADDRESS_MAX = 32
QUIET_S = 20.0
"""A visitor silent for this long is disconnected, even during a handshake."""
STAY_S = 300.0
"""No connection lasts longer."""
_CHUNK = 65_536
_UNSENT_MAX = 64 * 1024
_STEP = 64
"""How much of what a visitor said is heard in one turn of the loop: two requests, if many come at once."""
_SPEAKERS: Mapping[str | None, Callable[[Answer], Speaker]] = {"h2": Http2, PROTOCOL.decode(): Silent}
"""By the protocol that TLS agreed on; HTTP/1.1 for every other."""


class Visitors:
    """Everybody who is on the site now, counted by account in memory only. Who has most makes room."""

    def __init__(self, account: Callable[[str], Hashable] = str) -> None:
        """`account` tells under what an address is counted."""
        self.here: set[Visitor] = set()
        self.refused = 0
        self._account = account
        self._held: dict[Hashable, dict[Visitor, None]] = {}

    def admit(self, visitor: Visitor) -> bool:
        own = self._held.get(self._account(visitor.address), {})
        if len(own) >= VISITORS_PER_ADDRESS_MAX or (
            len(self.here) >= VISITORS_MAX and not self._make_room(len(own))
        ):
            self.refused += 1
            return False
        self.here.add(visitor)
        self._held.setdefault(self._account(visitor.address), {})[visitor] = None
        return True

    def _make_room(self, own: int) -> bool:
        most = max(self._held.values(), key=len)
        if len(most) <= own + 1:
            return False
        oldest = next(iter(most))
        self.leave(oldest)
        oldest.abort()
        return True

    def leave(self, visitor: Visitor) -> None:
        if visitor in self.here:
            self.here.discard(visitor)
            account = self._account(visitor.address)
            held = self._held[account]
            del held[visitor]
            if not held:
                del self._held[account]

    def close(self) -> None:
        for visitor in tuple(self.here):
            visitor.abort()


class Visitor(asyncio.Protocol):
    """A connection that asks for pages."""

    def __init__(self, answer: Answer, visitors: Visitors, context: ssl.SSLContext | None) -> None:
        """`context` is for visitors who come by TLS."""
        self._answer = answer
        self._visitors = visitors
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = (
            None if context is None else context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        )
        self._overhead = Overhead()
        self._speaker: Speaker | None = None
        self._unheard: deque[memoryview] = deque()
        """What came, until the speaker is given it in steps; nothing more is read meanwhile."""
        self._again: asyncio.Handle | None = None
        self._paused = False
        self._over = False
        self._transport: asyncio.Transport
        self._quiet: asyncio.TimerHandle
        self._stay: asyncio.TimerHandle
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        transport.set_write_buffer_limits(_UNSENT_MAX)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        loop = asyncio.get_running_loop()
        self._quiet = loop.call_later(QUIET_S, self.abort)
        self._stay = loop.call_later(STAY_S, self.abort)
        if not self._visitors.admit(self):
            self.abort()
        elif self._tls is None:
            self._speaker = Http1(self._answer)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._quiet.cancel()
        self._quiet = asyncio.get_running_loop().call_later(QUIET_S, self.abort)
        try:
            found = (data,) if self._tls is None else self._opened(self._tls, data)
        except ssl.SSLError:
            self._write_out()
            self._transport.close()
            return
        self._unheard.extend(map(memoryview, found))
        if self._again is None:
            self._turn()

    def _turn(self) -> None:
        """Hear a step of what came and answer it; the rest comes after everybody else's turn."""
        self._again = None
        if self._unheard and self._speaker is not None and not (self._paused or self._over):
            said = self._unheard.popleft()
            if len(said) > _STEP:
                self._unheard.appendleft(said[_STEP:])
            self._speaker.received(bytes(said[:_STEP]))
        self._talk()
        if self._over or self._paused:
            return
        if self._unheard and self._speaker is not None:
            self._transport.pause_reading()
            self._again = asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        if self._again is not None:
            self._again.cancel()
        self._quiet.cancel()
        self._stay.cancel()
        self._visitors.leave(self)

    def pause_writing(self) -> None:
        """Stop reading from a visitor who does not read."""
        self._paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if self._again is None:
            self._turn()

    def abort(self) -> None:
        self._over = True
        self._transport.abort()

    def _opened(self, tls: ssl.SSLObject, data: bytes) -> list[bytes]:
        """What TLS lets through; the handshake comes first."""
        self._incoming.write(data)
        found: list[bytes] = []
        try:
            if self._speaker is None:
                tls.do_handshake()
                self._speaker = _SPEAKERS.get(tls.selected_alpn_protocol(), Http1)(self._answer)
            while part := tls.read(_CHUNK):
                found.append(part)
            found.append(b"")
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            found.append(b"")
        if not self._overhead.is_bearable(len(data), sum(map(len, found))):
            self.abort()
        return found

    def _talk(self) -> None:
        """Send what there is to send while the visitor takes it."""
        speaker = self._speaker
        try:
            while speaker is not None and not (self._paused or self._over):
                plain = speaker.more()
                if not plain:
                    self._over = speaker.is_done
                    break
                self._say(plain)
        except (ssl.SSLError, h2.exceptions.ProtocolError):
            self._over = True
        self._write_out()
        if self._over:
            self._transport.close()

    def _say(self, plain: bytes) -> None:
        if self._tls is None:
            self._transport.write(plain)
        else:
            self._tls.write(plain)
            self._write_out()

    def _write_out(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())
