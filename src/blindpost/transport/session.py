"""A session that carries blocks: TLS, handshake, blocks in both directions, over any asyncio transport.

Nothing here awaits: a session is driven by the event loop's callbacks and drives a `Handler` in turn, so
that a server holds tens of thousands of them without a task for each. What a session buffers is bounded:
one socket read and one partial block inwards, `Limits.outbox_max` outwards.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, cast

from blindpost.crypto.block_chain import BlockChains
from blindpost.transport import errors
from blindpost.transport.blocks import Blocks
from blindpost.transport.handshake import (
    Agreement,
    Effect,
    Established,
    Failed,
    FindService,
    Handshake,
    Peer,
    Send,
)
from blindpost.transport.keeper import Keeper
from blindpost.transport.plan import SessionPlan
from blindpost.transport.tls import Tls, scratch
from blindpost.wire.primitives import Writer
from blindpost.wire.value import Buffer

log = logging.getLogger(__name__)

KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 15
KEEPALIVE_PROBES = 4
RECORD_OVERHEAD = 22


class Stage(Enum):
    """Where a session is in its life."""

    CONNECTING = auto()
    TLS = auto()
    HANDSHAKE = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


class Handler:
    """What a session tells its owner. Each method may call the session back at once."""

    __slots__ = ()

    def established(self, session: Session) -> None:
        """The handshake is complete: `session.agreement` says what was agreed."""

    def service_requested(self, session: Session, request: FindService) -> None:
        """A client presents a service certificate: answer with `service_found` or `service_refused`."""
        session.service_refused()

    def block_received(self, session: Session, payload: bytes) -> None:
        """One block arrived, with this payload."""

    def block_failed(self, session: Session, error: errors.BlockError) -> None:
        """One block arrived and could not be opened; the session continues."""

    def drained(self, session: Session) -> None:
        """The session was congested and is not any more."""

    def closed(self, session: Session, reason: errors.TransportError) -> None:
        """The session has ended and its socket is gone. Called once for each session that was connected."""


class Session(asyncio.BufferedProtocol):
    """One connection, from TCP to the last block."""

    __slots__ = (
        "_blocks",
        "_congested",
        "_flushing",
        "_handshake",
        "_hears",
        "_keeper",
        "_loop",
        "_paused_reading",
        "_paused_writing",
        "_plan",
        "_reason",
        "_timer",
        "_tls",
        "_transport",
        "_unsent",
        "_waiting",
        "_warm",
        "account",
        "agreement",
        "handler",
        "last_received",
        "last_sent",
        "stage",
    )

    def __init__(self, plan: SessionPlan, handler: Handler, keeper: Keeper) -> None:
        self._plan = plan
        self._keeper = keeper
        self._tls = Tls(plan.context, plan.check, server=plan.server)
        self._blocks = Blocks(self._tls, plan.block_size)
        self._handshake: Handshake | None = None
        self._loop: asyncio.AbstractEventLoop
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._reason: errors.TransportError | None = None
        self._unsent = 0
        self._flushing = False
        self._congested = False
        self._paused_writing = False
        self._paused_reading = False
        self._waiting = False
        self._warm = False
        self._hears = False
        self.handler = handler
        self.agreement: Agreement | None = None
        self.stage = Stage.CONNECTING
        self.last_received = 0.0
        self.last_sent = 0.0

    # What the owner calls

    @property
    def agreed(self) -> Agreement:
        """What the handshake agreed on; only for an established session."""
        assert self.agreement is not None, "the handshake is not complete"
        return self.agreement

    @property
    def reason(self) -> errors.TransportError | None:
        """Why the session closes or closed."""
        return self._reason

    @property
    def peer_host(self) -> str | None:
        """The address of the other end, for limits; it must not be written anywhere."""
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else None

    @property
    def own_port(self) -> int:
        """The port of this end; 0 where there are no ports."""
        own = self._transport.get_extra_info("sockname")
        return int(own[1]) if isinstance(own, tuple) else 0

    @property
    def payload_max(self) -> int:
        """How many bytes fit into a block."""
        return self._blocks.payload_max

    @property
    def congested(self) -> bool:
        """Whether the peer lags behind: hold back until `Handler.drained`."""
        return self._congested

    @property
    def outbox_size(self) -> int:
        """How many bytes wait to be taken by the network."""
        return self._unsent + self._transport.get_write_buffer_size()

    def send(self, *parts: Buffer) -> None:
        """Send one block whose payload is `parts` joined."""
        self._send(list(parts), sum(map(len, parts)))

    def send_payload(self, payload: Writer) -> None:
        """Send one block whose payload was collected in a writer."""
        self._send(payload.parts, payload.size)

    def send_now(self, payloads: Sequence[Writer]) -> None:
        """Send a block for each payload and hand all of them to the network at once.

        For callers that have nothing more to send in this turn of the loop.
        """
        for payload in payloads:
            self._put(payload.parts, payload.size)
        self._flush()

    def pause_reading(self) -> None:
        """Deliver no more blocks; the peer stalls once the network's buffers are full."""
        if not self._paused_reading and self.stage is not Stage.CLOSED:
            self._paused_reading = True
            if self.stage is not Stage.CLOSING or self._hears:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Deliver blocks again from the next turn of the loop, those already received first."""
        if self._paused_reading:
            self._paused_reading = False
            if self.stage is not Stage.CLOSED:
                self._loop.call_soon(self._resume)

    def service_found(self, service_id: bytes) -> None:
        """The service that a client asked for has this id."""
        if self._handshake is not None and self.stage is Stage.HANDSHAKE:
            self._waiting = False
            self._guarded(self._apply, self._handshake.service_found(service_id))
            self._loop.call_soon(self._resume)

    def service_refused(self) -> None:
        """The service that a client asked for is known in another role, or may not be created."""
        if self._handshake is not None and self.stage is Stage.HANDSHAKE:
            self._waiting = False
            self._guarded(self._apply, self._handshake.service_refused())

    def close(self) -> None:
        """Send what is queued, notify the peer, and close; `Handler.closed` follows within the time limit."""
        self._close(errors.ClosedHereError())

    def leave(self) -> None:
        """As `close`, but what the peer says until it has heard of it is still delivered."""
        self._hears = self.stage is Stage.OPEN
        self.close()

    def abort(self, reason: errors.TransportError | None = None) -> None:
        """Drop the connection now, with all that is queued."""
        if self.stage in {Stage.CONNECTING, Stage.CLOSED}:
            return
        self._reason = self._reason or reason or errors.ClosedHereError()
        self._hears = False
        self.stage = Stage.CLOSING
        self._transport.abort()

    def divert(self) -> None:
        """Hand the connection over as it is to another owner: nothing was sent on it yet."""
        self._reason = errors.DivertedError()
        self.connection_lost(None)

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        limits = self._plan.limits
        transport.set_write_buffer_limits(limits.outbox_high, limits.outbox_low)
        _tune(transport.get_extra_info("socket"))
        self.last_received = self.last_sent = self._loop.time()
        self.stage = Stage.TLS
        self._timer = self._loop.call_later(limits.tls_timeout_s, self._time_out, errors.TlsTimeoutError)
        self._keeper.opened(self)
        if not self._plan.server:
            self._guarded(self._pump)

    def get_buffer(self, sizehint: int) -> bytearray:
        return scratch.received

    def buffer_updated(self, nbytes: int) -> None:
        self.last_received = self._loop.time()
        if self.stage is Stage.CLOSING and not self._hears:
            return
        if not self._warm:
            self._keep_warm()
        try:
            self._tls.received(nbytes)
            self._pump()
        except errors.TransportError as error:
            self._fail(error)

    def eof_received(self) -> bool:
        if self._reason is None:
            self._reason = errors.ConnectionCutError(
                {
                    Stage.TLS: "the peer hung up during the TLS handshake",
                    Stage.HANDSHAKE: "the peer hung up during the protocol handshake",
                }.get(self.stage)
                or ("the connection broke inside a block" if self._blocks.inside else None)
            )
            self.stage = Stage.CLOSING
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        reason = self._reason or errors.ConnectionCutError(f"the connection broke: {type(exc).__name__}")
        self._reason = untraced(reason)
        self.stage = Stage.CLOSED
        self._hears = False
        self._handshake = None
        self._tls.forget()
        self._keeper.closed(self)
        self.handler.closed(self, reason)

    def pause_writing(self) -> None:
        self._paused_writing = True
        self._congested = True

    def resume_writing(self) -> None:
        self._paused_writing = False
        self._relieved()

    # Inside

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """A session's failure, including a bug in its handler, ends that session and nothing else."""
        try:
            work(*arguments)
        except errors.TransportError as error:
            self._fail(error)
        except Exception:
            log.exception("a session failed; it is dropped")
            self.abort()

    def _resume(self) -> None:
        if self._paused_reading or self._waiting:
            return
        if self.stage is Stage.CLOSED or (self.stage is Stage.CLOSING and not self._hears):
            return
        self._guarded(self._pump)
        if not self._paused_reading:
            self._transport.resume_reading()

    def _pump(self) -> None:
        """Process the received bytes as far as possible."""
        if self.stage is Stage.TLS and not self._shake_tls():
            return
        read = self._blocks.read
        while self.stage is Stage.HANDSHAKE and not (self._paused_reading or self._waiting):
            try:
                payload = read()
            except errors.BlockError as error:
                raise errors.HandshakeParseError from error
            if payload is None:
                return
            assert self._handshake is not None
            self._apply(self._handshake.received(payload))
        deliver = self.handler.block_received
        while (self.stage is Stage.OPEN or self._hears) and not self._paused_reading:
            try:
                payload = read()
            except errors.BlockError as error:
                self.handler.block_failed(self, error)
                continue
            if payload is None:
                return
            deliver(self, payload)
            if not self._blocks.received:
                return

    def _shake_tls(self) -> bool:
        done = self._tls.handshake()
        self._write_out()
        if done:
            self._handshake = self._plan.handshake(
                Peer(self._tls.session_id, self._tls.alpn, self._tls.peer_chain, self._tls.certificate_sent)
            )
            self.stage = Stage.HANDSHAKE
            self._set_timer(self._plan.limits.handshake_timeout_s, errors.HandshakeTimeoutError)
            self._apply(self._handshake.start())
        return done

    def _apply(self, effects: list[Effect]) -> None:
        """Execute what the handshake asks for."""
        for effect in effects:
            match effect:
                case Send(payload):
                    self._blocks.write([payload], len(payload))
                    self._write_out()
                case FindService():
                    self._waiting = True
                    self._transport.pause_reading()
                    self.handler.service_requested(self, effect)
                case Established(agreement, chains):
                    self._establish(agreement, chains)
                case Failed(error):
                    self._fail(error)

    def _establish(self, agreement: Agreement, chains: BlockChains | None) -> None:
        self.agreement = agreement
        if chains is not None:
            self._blocks.encrypt(chains)
        self._handshake = None
        self.stage = Stage.OPEN
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.handler.established(self)

    def _send(self, parts: list[Buffer], count: int) -> None:
        self._put(parts, count)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_later)

    def _put(self, parts: list[Buffer], count: int) -> None:
        if self.stage is not Stage.OPEN:
            raise (
                errors.ClosedError("the session is not established")
                if self._reason is None
                else self._reason.again()
            )
        self._blocks.write(parts, count)
        self._unsent += self._blocks.size + RECORD_OVERHEAD
        limits = self._plan.limits
        if self._unsent >= limits.outbox_high or self._paused_writing:
            self._congested = True
            if self.outbox_size > limits.outbox_max:
                self.abort(errors.OutboxFullError())

    def _flush_later(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        if self.stage is Stage.CLOSED or self._unsent == 0:
            return
        self._write_out()
        self._relieved()

    def _write_out(self) -> None:
        """Hand everything that TLS produced to the network in one write."""
        self._unsent = 0
        data = self._tls.outgoing()
        if data:
            self.last_sent = self._loop.time()
            if not self._warm:
                self._keep_warm()
            self._transport.write(data)

    def _relieved(self) -> None:
        if self._congested and not self._paused_writing and self._unsent < self._plan.limits.outbox_high:
            self._congested = False
            if self.stage is Stage.OPEN:
                self.handler.drained(self)

    def _fail(self, error: errors.TransportError) -> None:
        """End the session for `error`; what must still reach the peer, such as an alert, does."""
        self._close(error)

    def _close(self, reason: errors.TransportError) -> None:
        """Flush, notify, end our direction; the socket closes when the peer ends its own.

        Closing at once would reset the connection when anything is unread here, and the peer could lose
        what was sent last.
        """
        if self.stage in {Stage.CONNECTING, Stage.CLOSING, Stage.CLOSED}:
            return
        self._reason = reason
        self._waiting = False
        if self.stage is not Stage.TLS:
            self._tls.shutdown()
        self.stage = Stage.CLOSING
        self._write_out()
        transport = self._transport
        if isinstance(reason, errors.PeerClosedError) or transport.is_closing():
            transport.close()
        else:
            try:
                transport.write_eof()
            except OSError:
                # The peer is gone already, and the event loop has not noticed.
                transport.abort()
                return
            if not (self._hears and self._paused_reading):
                transport.resume_reading()
        self._set_timer(self._plan.limits.close_timeout_s, None)

    def _set_timer(self, delay_s: float, error: type[errors.StageTimeoutError] | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._time_out, error)

    def _time_out(self, error: type[errors.StageTimeoutError] | None) -> None:
        self.abort(error() if error is not None else None)

    def _keep_warm(self) -> None:
        self._warm = True
        self._keeper.warmed(self)

    def cool(self, idle_since: float) -> bool:
        """Free buffers if there was no traffic since then; returns whether they were freed."""
        if max(self.last_received, self.last_sent) > idle_since:
            return False
        self._warm = not self._tls.release()
        return not self._warm


def untraced(reason: errors.TransportError) -> errors.TransportError:
    """Without tracebacks: their frames refer to the session, which would outlive its end as a cycle."""
    error: BaseException | None = reason
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
    return reason


def _tune(sock: Any) -> None:
    """Small blocks must not wait for each other, and a dead peer must be noticed."""
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
