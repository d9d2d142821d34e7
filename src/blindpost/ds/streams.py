"""Byte streams to callers: TLS 1.3 over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import socket
import ssl
from pathlib import Path
from typing import Any, cast

from blindpost.ds.connection import DsConnection
from blindpost.ds.server import DeliveryService
from blindpost.transport.guarded import GuardedTls
from blindpost.transport.listening import TcpListener

ALPN = "capnp"
HANDSHAKE_S = 10
WRITE_HIGH = 1 << 20
_KEEPALIVE = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 50_000))
"""A peer that vanished silently is noticed within a minute."""


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols([ALPN])
    return context


def client_context(authorities: Path | None = None, *, pinned: bool = False) -> ssl.SSLContext:
    """Trust these authorities, or the system's; with `pinned` the certificate is compared by the caller.

    Reading the system's authorities takes longer than the rest of a connection.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    if pinned:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif authorities is not None:
        context.load_verify_locations(authorities)
    else:
        context.load_default_certs()
    return context


def is_pinned(certificate: bytes | None, fingerprint: bytes) -> bool:
    """Whether this certificate (DER) has this SHA-256."""
    found = b"" if certificate is None else hashlib.sha256(certificate).digest()
    return hmac.compare_digest(found, fingerprint)


class TlsStream(asyncio.Protocol):
    """One TCP connection, below a `DsConnection`."""

    def __init__(self, service: DeliveryService) -> None:
        self._service = service
        self._transport: asyncio.Transport | None = None
        self._connection: DsConnection | None = None

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes | memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Send what was written before, unless that is too much: then close at once."""
        if self._transport is not None:
            if self.unsent > WRITE_HIGH:
                self._transport.abort()
            else:
                self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = self._transport = cast(asyncio.Transport, transport)
        self._service.limits.established(self)
        stream.set_write_buffer_limits(high=WRITE_HIGH)
        keep_alive(stream.get_extra_info("socket"))
        self._connection = self._service.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.receive(data)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._service.lag(self._connection)

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._service.relieve(self._connection)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._connection is not None:
            self._service.lost(self._connection)


def keep_alive(sock: Any) -> None:
    """Let the system probe a silent peer."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class _Counted(GuardedTls):
    """TLS below a stream, counted by address from its first byte: asyncio reports it after the handshake."""

    max_size = 32 << 10
    """The buffer that asyncio keeps for each connection; its default is eight times that."""

    def __init__(self, service: DeliveryService, context: ssl.SSLContext) -> None:
        self._stream = TlsStream(service)
        self._limits = service.limits
        super().__init__(self._stream, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        peer = stream.get_extra_info("peername")
        host = str(peer[0]) if isinstance(peer, tuple) else None
        if not self._limits.admit_host(self._stream, host, lambda why: stream.abort()):
            stream.abort()
            return
        super().connection_made(transport)

    def _fatal_error(self, exc: BaseException, message: str = "") -> None:
        # A failed handshake's traceback refers to itself, and to this connection with its buffers.
        super()._fatal_error(exc.with_traceback(None), message)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._limits.gone(self._stream)
        super().connection_lost(exc)


class TlsListener:
    """Accepts TCP connections for a service, within its limits."""

    def __init__(self, service: DeliveryService, context: ssl.SSLContext) -> None:
        self._service = service
        self._context = context
        self._listener: TcpListener | None = None

    async def listen(self, host: str | None, port: int) -> int:
        """Returns the port, which the system chooses if it is 0."""
        self._listener = await TcpListener.listen(lambda: _Counted(self._service, self._context), host, port)
        return self._listener.ports[0]

    def close(self) -> None:
        """Accept no more connections; open ones stay."""
        if self._listener is not None:
            self._listener.stop()
