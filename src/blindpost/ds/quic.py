"""Byte streams over QUIC: one bidirectional stream of each connection carries the RPC.

The library reports how much of a stream has not been sent yet, but cannot pause receiving. When a connection
has too much in hand, its datagrams are dropped: the peer's loss recovery resends them, more slowly. While it
waits for its peer to read they are kept, for among them are those that say what the peer has read.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qh3._hazmat import CryptoError
from qh3.asyncio.protocol import QuicConnectionProtocol
from qh3.asyncio.server import QuicServer
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection, QuicConnectionError
from qh3.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StreamDataReceived,
    StreamReset,
)

from blindpost.crypto.pem import Pair, PemError
from blindpost.ds.connection import GREETING_S, DsConnection
from blindpost.ds.retry_tokens import RetryTokens
from blindpost.ds.server import DeliveryService
from blindpost.ds.streams import ALPN
from blindpost.engine.containment import contained

IDLE_S = 30.0
PING_S = 10.0
"""Waiting calls are silent: pings show that the peer is still there, and keep paths open."""
FLUSH_S = 2.0
"""How long a caller that closes waits for the service to hear what it said last."""
CONNECT_S = 10.0
ADDRESSES_MAX = 4
"""How many addresses of a host are tried in this time."""
IN_HAND_MAX = 8 << 20
IN_HAND_LAST = 32 << 20
"""A caller that sends this much, and does not read what it is sent, is disconnected."""
UNSENT_HIGH = 256 << 10
"""The library may turn all it holds into datagrams at once, and nobody else is served meanwhile."""
FIRST_BYTES_MIN = 1200
"""A caller's first datagram is at least so long, so that nothing is amplified at a forged address."""
_LONG_HEADER = b"\x80"
"""From this byte on a datagram says its version."""
_RPC_STREAM = 0


class _Quic(QuicConnectionProtocol, ABC):
    """One connection with pings, which reports its end."""

    def __init__(self, quic: QuicConnection, stream_handler: Any = None) -> None:
        super().__init__(quic, stream_handler)
        self._pings = itertools.count(1)
        self._pinging: asyncio.TimerHandle | None = None
        self._over = False

    @property
    def unsent(self) -> int:
        return 0 if self._over else self._quic.get_send_buffer_size(_RPC_STREAM)

    def write(self, data: bytes | memoryview) -> None:
        """A close by the peer is noticed here first: the library reports it later."""
        if self._over:
            return
        try:
            self._quic.send_stream_data(_RPC_STREAM, bytes(data))
        except QuicConnectionError:
            self._lost()
        else:
            self._transmit_soon()

    def begin_pings(self) -> None:
        self._pinging = self._loop.call_later(PING_S, self._ping)

    def end(self) -> bool:
        """Send nothing more; False if already ended."""
        if self._over:
            return False
        self._over = True
        if self._pinging is not None:
            self._pinging.cancel()
        return True

    def _ping(self) -> None:
        try:
            self._quic.send_ping(next(self._pings))
        except QuicConnectionError:
            self._lost()
        else:
            self.transmit()
            self.begin_pings()

    def _say_goodbye(self) -> None:
        """Send what can be sent at once, then the close."""
        with contextlib.suppress(QuicConnectionError):
            super().transmit()
            self._quic.close()
            super().transmit()

    @abstractmethod
    def _lost(self) -> None:
        """The connection has ended, for whatever reason."""


class QuicStream(_Quic):
    """The service's side: below a `DsConnection`."""

    def __init__(self, quic: QuicConnection, service: DeliveryService, **_: Any) -> None:
        super().__init__(quic)
        self._service = service
        self._is_counted = False
        self._greeting: asyncio.TimerHandle | None = None
        self._connection: DsConnection | None = None
        self._paused = False
        self._congested = False

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        if not self._is_counted and not self._count(addr):
            return
        connection = self._connection
        if self._paused and connection is not None and connection.in_hand > IN_HAND_MAX:
            if not connection.congested:
                return
            if connection.in_hand > IN_HAND_LAST:
                connection.cut()
                return
        super().datagram_received(data, addr)
        self._look()

    def _count(self, addr: Any) -> bool:
        """Count the connection under its address at its first datagram; False if the limit is reached."""
        if self._over:
            return False
        limits = self._service.limits
        self._is_counted = limits.admit_host(self, str(addr[0]), lambda why: self.close())
        if not self._is_counted:
            self.close()
        return self._is_counted

    def write(self, data: bytes | memoryview) -> None:
        super().write(data)
        self._look()

    def transmit(self) -> None:
        super().transmit()
        self._look()

    def close(self) -> None:
        if not self._over:
            self._say_goodbye()
            self._lost()

    def abort(self) -> None:
        """Nothing is waited for here in any case."""
        self.close()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False

    def quic_event_received(self, event: QuicEvent) -> None:
        match event:
            case HandshakeCompleted():
                self._service.limits.established(self)
                self._greeting = self._loop.call_later(GREETING_S, self._is_greeted)
                self.begin_pings()
            case StreamDataReceived(data=data, end_stream=end, stream_id=stream):
                self._received(stream, data, end)
            case StreamReset():
                self.close()
            case ConnectionTerminated():
                self._lost()
            case _:
                pass

    def _is_greeted(self) -> None:
        """Do not wait for a peer that completed the handshake but opens no stream."""
        if self._connection is None:
            self.close()

    def _received(self, stream: int, data: bytes, end: bool) -> None:
        if self._connection is None and not self._over and stream == _RPC_STREAM:
            self._connection = self._service.opened(self)
        if stream != _RPC_STREAM or self._connection is None:
            self.close()
            return
        self._connection.receive(data)
        if end:
            self.close()

    def _look(self) -> None:
        """Accept no more calls while answers pile up."""
        if self._connection is None or self._over:
            return
        congested = self.unsent > UNSENT_HIGH
        if congested is not self._congested:
            self._congested = congested
            if congested:
                self._service.lag(self._connection)
            else:
                self._service.relieve(self._connection)

    def _lost(self) -> None:
        if not self.end():
            return
        self._service.limits.gone(self)
        if self._greeting is not None:
            self._greeting.cancel()
        if self._connection is not None:
            self._service.lost(self._connection)


def server_configuration(pair: Pair) -> QuicConfiguration:
    """How a service with this certificate speaks; `PemError` if it cannot."""
    configuration = QuicConfiguration(is_client=False, alpn_protocols=[ALPN], idle_timeout=IDLE_S)
    try:
        configuration.load_cert_chain(pair.chain_pem, pair.key_pem)
    except CryptoError as error:
        raise PemError("QUIC cannot use keys of this kind; one of P-256 will do") from error
    return configuration


class _Known(dict[bytes, QuicConnectionProtocol]):
    """Connections by their ids, of which each has several, and the ids of each."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: dict[QuicConnectionProtocol, set[bytes]] = {}

    def __setitem__(self, one: bytes, connection: QuicConnectionProtocol) -> None:
        super().__setitem__(one, connection)
        self._ids.setdefault(connection, set()).add(one)

    def __delitem__(self, one: bytes) -> None:
        self._ids[self[one]].discard(one)
        super().__delitem__(one)

    def forget(self, connection: QuicConnectionProtocol) -> None:
        for one in self._ids.pop(connection, ()):
            self.pop(one, None)


class _Entrance(QuicServer):
    """Where the datagrams of everybody arrive, until they are known to belong to a connection."""

    def __init__(self, configuration: QuicConfiguration, create_protocol: Callable[..., QuicStream]) -> None:
        super().__init__(configuration=configuration, create_protocol=create_protocol)
        self._protocols: _Known = _Known()
        # The library's own tokens take an RSA operation for each datagram of a stranger: two milliseconds.
        self._retry = RetryTokens()  # type: ignore[assignment]  # as much of a handler as is used

    def _connection_terminated(self, protocol: QuicConnectionProtocol) -> None:
        """The library looks through the ids of all connections: milliseconds of them when there are many."""
        self._protocols.forget(protocol)

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        """What makes the library fail ends nothing else, and is logged as all repeated lines are."""
        if isinstance(data, bytes) and not self._would_amplify(data):
            contained("taking a datagram", super().datagram_received, data, addr)

    def _would_amplify(self, data: bytes) -> bool:
        """Whoever names an unknown version is told which are known, maybe at somebody else's address: the
        question must be longer than the answer."""
        if len(data) >= FIRST_BYTES_MIN or data[:1] < _LONG_HEADER:
            return False
        return int.from_bytes(data[1:5], "big") not in self._configuration.supported_versions


class QuicListener:
    """Accepts QUIC connections for a service, within its limits."""

    def __init__(self, service: DeliveryService, pair: Pair) -> None:
        self._service = service
        self._configuration = server_configuration(pair)
        self._server: _Entrance | None = None

    def renew(self, pair: Pair) -> None:
        """Show this certificate to those who connect from now on."""
        fresh, used = server_configuration(pair), self._configuration
        used.certificate, used.certificate_chain = fresh.certificate, fresh.certificate_chain
        used.private_key = fresh.private_key

    async def listen(self, host: str | None, port: int) -> int:
        """Returns the port, which the system chooses if it is 0."""

        def protocol(quic: QuicConnection, **options: Any) -> QuicStream:
            return QuicStream(quic, self._service, **options)

        transport, self._server = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Entrance(self._configuration, protocol),
            **({"sock": _everywhere(port)} if host is None else {"local_addr": (host, port)}),
        )
        bound: int = transport.get_extra_info("sockname")[1]
        return bound

    def close(self) -> None:
        if self._server is not None:
            self._server.close()  # type: ignore[no-untyped-call]  # as the library has it
            self._server = None


def _everywhere(port: int) -> socket.socket:
    """A socket at all addresses: of both kinds, or of IPv4 on a machine without IPv6."""
    try:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    except OSError as error:
        if error.errno != errno.EAFNOSUPPORT:
            raise
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        if sock.family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setblocking(False)
        sock.bind(("", port))
    except BaseException:
        sock.close()
        raise
    return sock


class QuicDialed(_Quic):
    """The client's side: a transport for an asyncio protocol, once it is connected."""

    def __init__(self, quic: QuicConnection, protocol: asyncio.Protocol) -> None:
        super().__init__(quic)
        self._protocol = protocol
        self._is_made = False
        self._all_sent = asyncio.Event()

    def made(self) -> None:
        """It is connected: the protocol may use it, and is told of its end."""
        if self._over:
            raise ConnectionResetError("the connection ended at once")
        self._is_made = True
        self.begin_pings()
        self._protocol.connection_made(self)  # type: ignore[arg-type]  # as much of a transport as is used here

    def is_closing(self) -> bool:
        return self._over

    def transmit(self) -> None:
        super().transmit()
        if self.unsent:
            self._all_sent.clear()
        else:
            self._all_sent.set()

    async def flushed(self) -> None:
        """Until the service has heard what was written last: a close overtakes what is still on its way."""
        if self._over:
            return
        with contextlib.suppress(TimeoutError, ConnectionError, QuicConnectionError):
            async with asyncio.timeout(FLUSH_S):
                self.transmit()
                await self._all_sent.wait()
                if not self._over:
                    await self.ping()

    def get_extra_info(self, name: str) -> None:
        """The connection has no socket of its own."""

    def close(self) -> None:
        if not self._over:
            self._say_goodbye()
            self._lost()

    def abort(self) -> None:
        """Go silent, like a machine that lost its network."""
        self._lost()

    def quic_event_received(self, event: QuicEvent) -> None:
        match event:
            case StreamDataReceived(data=data) if not self._over:
                self._protocol.data_received(data)
            case ConnectionTerminated():
                self._lost()
            case _:
                pass

    def _lost(self) -> None:
        if self.end():
            self._all_sent.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._transport is not None:
                self._transport.close()
            if self._is_made:
                self._protocol.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()


async def dial(
    protocol: asyncio.Protocol, host: str, port: int, *, authorities: Path | None, pinned: bytes | None
) -> None:
    """Connect `protocol` over QUIC; `pinned` is the SHA-256 that the service's certificate must have. The
    addresses of the host are tried in turn."""
    loop = asyncio.get_running_loop()
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=[ALPN], idle_timeout=IDLE_S, server_name=host
    )
    if pinned is not None:
        configuration.verify_mode = ssl.CERT_NONE
        configuration.assert_fingerprint = pinned.hex()
    elif authorities is not None:
        configuration.load_verify_locations(cafile=str(authorities))
    infos = (await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM))[:ADDRESSES_MAX]
    for number, (family, _, _, _, address) in enumerate(infos, 1):
        local = "::" if family is socket.AF_INET6 else "0.0.0.0"  # noqa: S104 - where a client sends from
        try:
            _, dialed = await loop.create_datagram_endpoint(
                lambda: QuicDialed(QuicConnection(configuration=configuration), protocol),
                local_addr=(local, 0),
            )
            await _connected(dialed, address, CONNECT_S / len(infos))
        except (OSError, TimeoutError):
            if number == len(infos):
                raise
        else:
            dialed.made()
            return


async def _connected(dialed: QuicDialed, address: Any, patience_s: float) -> None:
    try:
        dialed.connect(address)
        async with asyncio.timeout(patience_s):
            await dialed.wait_connected()
    except BaseException:
        dialed.abort()
        raise
