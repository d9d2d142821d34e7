"""A session whose connection is in a front: what the engine's process sees of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, cast

from blindpost.router.fronts import frames
from blindpost.router.server import Router
from blindpost.transport import errors
from blindpost.transport.keeper import Keeper
from blindpost.transport.plan import SessionLimits
from blindpost.transport.session import Handler, Session, Stage, log, untraced
from blindpost.transport.tls import scratch
from blindpost.wire.keys import PublicKey
from blindpost.wire.value import Buffer

if TYPE_CHECKING:
    from blindpost.router.fronts.fleet import Front, Fronts


HELD_MAX = 128 << 10
"""What may come on a connection that waits for a front."""


class FarSession(Session):
    """The owner of a connection calls it like any other session; a front does what it says.

    It begins here, where the system accepts connections: limits are applied, and browsers are told from SMP
    clients. Then a front gets the socket, with the bytes that came before.
    """

    __slots__ = (
        "_fleet",
        "_front",
        "_lags",
        "_over",
        "_paused",
        "_peer_host",
        "_port",
        "_said",
        "_unread",
        "_unseen",
        "_wait_s",
        "_window",
        "lane",
        "number",
    )

    def __init__(self, fleet: Fronts, handler: Handler, keeper: Keeper, limits: SessionLimits) -> None:
        # Not Session's own: there is no TLS on this side.
        self._fleet = fleet
        self._front: Front | None = None
        self._keeper = keeper
        self._wait_s = limits.tls_timeout_s
        self._timer = None
        self._reason = None
        self._paused = False
        self._lags = False
        self._unread = 0
        """What waited in the front for the peer to read, as last heard."""
        self._window = limits.outbox_high
        self._said = 0
        """What was said since the front was last asked how far it has come."""
        self._unseen = 0
        """What was said before, and the front has not come to."""
        self._over = False
        """The front is so far behind that we cannot know whether the peer reads: nothing more is pushed."""
        self._peer_host: str | None = None
        self._port = 0
        self.handler = handler
        self.agreement = None
        self.stage = Stage.CONNECTING
        self.last_received = self.last_sent = 0.0
        self.number = next(fleet.numbers)
        self.lane: Hashable = self.number
        """Whose turns it shares if its front is behind."""

    # --- before a front has it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self._peer_host = str(peer[0]) if isinstance(peer, tuple) else None
        self._port = int(own[1]) if isinstance(own, tuple) else 0
        self.last_received = self.last_sent = self._loop.time()
        self.stage = Stage.TLS
        self._keeper.opened(self)
        if self.stage is not Stage.TLS:
            return
        self._timer = self._loop.call_later(self._wait_s, self.abort, errors.TlsTimeoutError())
        if transport.get_protocol() is self:
            self.hand_over(b"")

    def buffer_updated(self, nbytes: int) -> None:
        """The bytes by which it was decided that this is an SMP client; more, if there is no front."""
        if self.stage is Stage.TLS and self._front is None:
            held = self._fleet.waiting.get(self, b"") + bytes(scratch.received[:nbytes])
            if len(held) > HELD_MAX:
                self.abort(errors.RefusedError("no front takes connections now"))
            else:
                self.hand_over(held)

    def hand_over(self, held: bytes) -> None:
        """Give it to a front, with what came on it; if none takes it now, it waits until one does."""
        transport, front = self._transport, self._fleet.least()
        if self.stage is not Stage.TLS or transport.is_closing():
            return  # it ends, and has not heard of it yet
        if front is None:
            self._fleet.waiting[self] = held
            transport.pause_reading()
            return
        try:
            descriptor = front.channel.line.copy(transport)
        except OSError:
            self.abort(errors.RefusedError("no more files can be opened"))
            return
        self._cancel_timer()
        self._fleet.waiting.pop(self, None)
        self._front = front
        front.accept(self, descriptor, held)
        transport.set_protocol(asyncio.Protocol())
        transport.abort()

    def eof_received(self) -> bool:
        self._reason = self._reason or errors.ConnectionCutError("the peer hung up before it said anything")
        return False

    def pause_writing(self) -> None:
        """Nothing is written here."""

    def resume_writing(self) -> None:
        """Nothing is written here."""

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over, here or in the front; repeated calls do nothing."""
        if self.stage is Stage.CLOSED:
            return
        self._cancel_timer()
        reason = self._reason = untraced(self._reason or errors.ConnectionCutError())
        self.stage = Stage.CLOSED
        self._fleet.waiting.pop(self, None)
        if self._front is not None:
            self._front.forget(self)
        self._keeper.closed(self)
        self.handler.closed(self, reason)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- what its owner calls

    @property
    def peer_host(self) -> str | None:
        return self._peer_host

    @property
    def own_port(self) -> int:
        return self._port

    @property
    def congested(self) -> bool:
        if self._lags or self._over:
            return True
        front = self._front
        return front is not None and front.channel.stalls(self.lane, self.relieved)

    @property
    def outbox_size(self) -> int:
        """As last heard, and what was said that the front is not known to have come to."""
        return self._unread + self._unseen + self._said

    def say(self, parts: list[Buffer], size: int) -> bool:
        """Have the front send these answers; whether the peer is congested now."""
        front = self._front
        if self.stage is not Stage.OPEN or front is None:
            return self.congested
        channel = front.channel
        self.last_sent = channel.heard_at
        channel.put(frames.SAY, self.number, parts, size, self.lane)
        self._said += size
        if 2 * self._said > self._window:
            channel.tell(frames.MARK, self.number, self._said.to_bytes(8, "little"), self.lane)
            self._unseen += self._said
            self._said = 0
            self._over = self._unseen > self._window
        return (self._lags or self._over or channel.lags) and self.congested

    def learn(self, entity_id: bytes, key: PublicKey) -> None:
        """Tell the front with which key to verify what comes about a queue."""
        self._tell(frames.LEARN, frames.write_learnt(entity_id, key))

    def pause_reading(self) -> None:
        if not self._paused:
            self._paused = True
            self._tell(frames.PAUSE)

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._tell(frames.RESUME)

    def service_found(self, service_id: bytes) -> None:
        self._tell(frames.FOUND, service_id)

    def service_refused(self) -> None:
        self._tell(frames.REFUSED)

    def close(self) -> None:
        if self.stage in {Stage.CONNECTING, Stage.CLOSING, Stage.CLOSED}:
            return
        if self._front is None:
            self.abort()
            return
        self._reason = errors.ClosedHereError()
        self._front.channel.tell(frames.CLOSE, self.number, lane=self.lane)
        self.stage = Stage.CLOSING

    def abort(self, reason: errors.TransportError | None = None) -> None:
        """It is over here at once, whether or not the front hears of it."""
        if self.stage in {Stage.CONNECTING, Stage.CLOSED}:
            return
        self._reason = self._reason or reason or errors.ClosedHereError()
        if self._front is None:
            self.stage = Stage.CLOSING
            self._transport.abort()
            return
        self._tell(frames.ABORT)
        self.stage = Stage.CLOSING
        self._loop.call_soon(self.connection_lost, None)

    def cool(self, idle_since: float) -> bool:
        return True

    def _tell(self, kind: int, body: bytes = b"") -> None:
        if self._front is not None and self.stage is not Stage.CLOSED:
            self._front.channel.tell(kind, self.number, body)

    # --- what the front says

    def block(self, keys: Sequence[bytes], payload: bytes) -> None:
        """Nearly everything that a front says: a block, with the keys that verified its transmissions."""
        if self.stage is Stage.OPEN and self._front is not None:
            self.last_received = self._front.channel.heard_at
            # Not asserted: to ask a class that is abstract costs more than all else here.
            room = cast(Router, self.handler)
            try:
                room.block_received(self, payload, keys)
            except Exception:
                self._failed()

    def heard(self, kind: int, view: memoryview) -> None:
        """One frame. What cannot be read is raised; a bug in its handler ends this connection only."""
        match kind:
            case frames.BAD_BLOCK:
                if self.stage is Stage.OPEN:
                    self._contained(self.handler.block_failed, self, errors.BlockError())
            case frames.ESTABLISHED:
                agreement = frames.read_agreement(bytes(view))
                if self.stage is Stage.TLS:
                    self.agreement = agreement
                    self.stage = Stage.OPEN
                    self._contained(self.handler.established, self)
            case frames.SERVICE:
                request = frames.read_request(bytes(view))
                if self.stage is Stage.TLS:
                    self._contained(self.handler.service_requested, self, request)
            case frames.LAGS:
                self._unread = int.from_bytes(view, "little")
                if not self._lags:
                    self._lags = True
                    self._contained(self._fleet.lags, self)
            case frames.DRAINED:
                self._lags, self._unread = False, 0
                self.relieved()
            case frames.MARKED:
                self._unseen -= int.from_bytes(view, "little")
                if self._over and self._unseen <= self._window // 2:
                    self._over = False
                    self.relieved()
            case frames.UNWRITTEN:
                self._fleet.unwritten()
            case frames.CLOSED:
                self._reason = self._reason or _reason(bytes(view).decode("ascii", "replace"))
                self._contained(self.connection_lost, None)
            case _:
                raise ValueError("a frame of an unknown kind")

    def relieved(self) -> None:
        """The front, or the peer, takes answers again."""
        if self.stage is Stage.OPEN and not self.congested:
            self._contained(self.handler.drained, self)

    def _contained(self, work: Callable[..., object], *arguments: object) -> None:
        try:
            work(*arguments)
        except Exception:
            self._failed()

    def _failed(self) -> None:
        log.exception("a session failed; it is dropped")
        self.abort()


def _reason(name: str) -> errors.TransportError:
    """The error of this name, as the front had it."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.TransportError):
        return kind()
    return errors.ConnectionCutError()
