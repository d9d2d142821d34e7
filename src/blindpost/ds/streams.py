"""Byte streams to callers: TLS 1.3 over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import socket
import ssl
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, cast

from blindpost.ds.connection import Connection
from blindpost.ds.server import DeliveryService

ALPN = "capnp"
HANDSHAKE_S = 10.0
WRITE_HIGH = 1 << 20
_KEEPALIVE = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 50_000))
"""A peer that has gone without a word is noticed within a minute."""


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols([ALPN])
    return context


def client_context(authorities: Path | None = None, *, pinned: bool = False) -> ssl.SSLContext:
    """Trust these authorities, or the system's; with `pinned` the certificate is compared by the caller.

    To read the system's authorities takes longer than the rest of a connection.
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
    """One TCP connection, below a `Connection` of the service."""

    def __init__(self, service: DeliveryService, may_open: Callable[[], bool]) -> None:
        self._service = service
        self._may_open = may_open
        self.account: Hashable = None
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes | memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """What was written before still leaves, unless it is too much: then at once."""
        if self._transport is not None:
            if self.unsent > WRITE_HIGH:
                self._transport.abort()
            else:
                self._transport.close()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        if not self._may_open():
            stream.abort()
            return
        self._transport = stream
        stream.set_write_buffer_limits(high=WRITE_HIGH)
        keep_alive(stream.get_extra_info("socket"))
        self._connection = self._service.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.receive(data)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.hold("outbox")

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.let_go("outbox")

    def connection_lost(self, error: Exception | None) -> None:
        if self._connection is not None:
            self._service.lost(self._connection)


def keep_alive(sock: Any) -> None:
    """Have the system look after a peer that says nothing."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class TlsListener:
    """Takes TCP connections for a service, up to a number."""

    def __init__(self, service: DeliveryService, context: ssl.SSLContext, connections: int = 10_000) -> None:
        self._service = service
        self._context = context
        self._connections = connections
        self._server: asyncio.Server | None = None

    async def listen(self, host: str | None, port: int) -> int:
        """Returns the port, which the system chooses if it is 0."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: TlsStream(self._service, self._may_open),
            host,
            port,
            ssl=self._context,
            ssl_handshake_timeout=HANDSHAKE_S,
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _may_open(self) -> bool:
        return len(self._service.connections) < self._connections

    def close(self) -> None:
        """Take no more connections; those that are open stay."""
        if self._server is not None:
            self._server.close()
