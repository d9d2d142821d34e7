"""What strangers see of a server apart from its own protocol: HTTP, first bytes, datagrams, push services."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from h2.exceptions import ProtocolError
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection, QuicConnectionError

from blindpost.ds.quic import QuicListener
from blindpost.ds.streams import ALPN
from blindpost.ntf.push.http1 import Http1Connection
from blindpost.ntf.push.http2 import WATCH, ConnectionFailedError, Http2Connection
from blindpost.web.http import Http1, Http2, Speaker
from blindpost.web.information import Facts
from blindpost.web.site import Site
from blindpost.wire.client_hello import read_client_hello
from blindpost.wire.errors import WireError
from blindpost.wire.proxy_header import read_proxy_header
from fuzz import seeds
from fuzz.sessions import SERVED, STEPS_MAX, Attacked, session
from fuzz.target import One, Source, Target, piece
from tests.support.ds.delivery import running

SAID_MAX = 8 << 20
"""A site says no more than this, whatever it is asked."""


class _Wire(asyncio.Transport):
    """Takes what a client of a push service writes, and forgets it."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Http2Connection | Http1Connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def writelines(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def close(self) -> None:
        self.abort()


class AttackedPush(Attacked):
    """Any bytes as Apple's side of HTTP/2: a push is answered, or its connection has failed."""

    async def start(self, stack: contextlib.AsyncExitStack, folder: Path) -> None:
        pass

    def connection(self) -> Http2Connection | Http1Connection:
        return Http2Connection(WATCH)

    async def attack(self, source: Source) -> None:
        wire, connection = _Wire(), self.connection()
        wire.protocol = connection
        connection.connection_made(wire)
        headers = [(b":method", b"POST"), (b":path", b"/3/device/aa"), (b":scheme", b"https")]
        pushes = [
            asyncio.create_task(connection.post([*headers, (b":authority", b"a")], b"{}" * 700, 0.2))
            for _ in range(2)
        ]
        await asyncio.sleep(0)
        if isinstance(connection, Http2Connection):
            connection.data_received(bytes.fromhex("000000040000000000"))
        for _ in range(STEPS_MAX):
            await asyncio.sleep(0)
            if not source.left:
                break
            connection.data_received(source.piece())
        connection.connection_lost(None)
        for push in pushes:
            with contextlib.suppress(ConnectionFailedError):
                await push

    async def check(self) -> None:
        await asyncio.sleep(0)


class AttackedPush1(AttackedPush):
    """The same with a push service that speaks HTTP/1.1."""

    def connection(self) -> Http2Connection | Http1Connection:
        return Http1Connection()


def _site() -> Callable[[bytes], None]:
    """A visitor's connection, fed in pieces; what it may raise is what its shell handles."""
    site = Site(lambda: Facts("host", "smp://A@host", "1", ()))

    def one(data: bytes) -> None:
        source = Source(data)
        speaker: Speaker = (Http1, Http2)[source.byte() % 2](site.answer)
        said = 0
        with contextlib.suppress(ProtocolError):
            while source.left and not speaker.is_done:
                speaker.received(source.piece())
                while part := speaker.more():
                    said += len(part)
                    assert said < SAID_MAX, "it says too much"

    return one


class _Datagrams(asyncio.DatagramTransport):
    """Keeps what a server sends."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def sendto(self, data: Any, addr: Any = None) -> None:
        self.sent.append(bytes(data))


class AttackedQuic(Attacked):
    """Steps: datagrams as they are, those of a true client, changed ones, streams with any content."""

    async def start(self, stack: contextlib.AsyncExitStack, folder: Path) -> None:
        self._ds = await stack.enter_async_context(running(folder))
        self._client = await self._ds.client(quic=True)
        stack.push_async_callback(self._client.close)
        await self._client.upload_key_package(b"k" * 32, b"a key package")
        self._listener = QuicListener(self._ds.service, self._ds.pair)
        await self._listener.listen("127.0.0.1", 0)
        stack.callback(self._listener.close)
        self._ports = 1024

    async def attack(self, source: Source) -> None:
        server = self._listener._server
        assert server is not None
        loop, place = asyncio.get_running_loop(), ("127.0.0.1", self._ports)
        self._ports = 1024 + (self._ports + 1) % 60_000
        wire, before = _Datagrams(), server._transport
        server._transport = wire
        configuration = QuicConfiguration(is_client=True, alpn_protocols=[ALPN], server_name="127.0.0.1")
        configuration.verify_mode = ssl.CERT_NONE
        quic = QuicConnection(configuration=configuration)
        quic.connect(place, now=loop.time())
        try:
            for _ in range(STEPS_MAX):
                if not source.left:
                    break
                with contextlib.suppress(QuicConnectionError, ValueError):
                    self._step(source, quic, place, wire)
                await asyncio.sleep(0)
            with contextlib.suppress(QuicConnectionError):
                quic.close()
                self._carry(quic, place, wire)
        finally:
            server._transport = before

    def _step(self, source: Source, quic: QuicConnection, place: tuple[str, int], wire: _Datagrams) -> None:
        server = self._listener._server
        assert server is not None
        loop = asyncio.get_running_loop()
        match source.byte() % 5:
            case 0:
                server.datagram_received(source.piece()[:1500], place)
            case 1:
                self._carry(quic, place, wire)
            case 2:
                change = source.number(), source.byte()
                for data, _ in quic.datagrams_to_send(now=loop.time()):
                    changed = bytearray(data)
                    changed[change[0] % len(changed)] ^= change[1]
                    server.datagram_received(bytes(changed), place)
            case 3:
                quic.send_stream_data(source.byte() % 16, source.piece(), end_stream=bool(source.byte() % 2))
                self._carry(quic, place, wire)
            case _:
                getattr(quic, ("reset_stream", "stop_stream")[source.byte() % 2])(source.byte() % 16, 1)
                self._carry(quic, place, wire)

    def _carry(self, quic: QuicConnection, place: tuple[str, int], wire: _Datagrams) -> None:
        """Let both sides hear each other, for a few round trips."""
        server, loop = self._listener._server, asyncio.get_running_loop()
        assert server is not None
        for _ in range(6):
            out = [data for data, _ in quic.datagrams_to_send(now=loop.time())]
            for data in out:
                server.datagram_received(data, place)
            back = wire.sent[:]
            wire.sent.clear()
            for data in back:
                quic.receive_datagram(data, place, now=loop.time())
            if not out and not back:
                return

    async def check(self) -> None:
        assert await self._client.fetch_key_package(b"n" * 32) is None
        assert not self._ds.service.engine.meters.events_failed


def _quic_seeds() -> list[bytes]:
    call = seeds.ds_seeds()[2]
    whole = b"\1" + bytes([3, 0]) + piece(call[2:]) + b"\0" + b"\1"
    noise = bytes([0]) + piece(b"\xc0\0\0\0\1\x08" + bytes(1194))
    return [b"\1", whole, noise, b"\1" + bytes([2, 0, 9, 1]), whole + bytes([4, 0, 0]), b"\1" + whole * 2]


def _first_bytes(data: bytes) -> None:
    """Of a browser or a proxy, in two pieces."""
    for read in (read_client_hello, read_proxy_header):
        for part in (data[: len(data) // 2], data):
            with contextlib.suppress(WireError):
                read(part)


def _hellos() -> list[bytes]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2", "http/1.1"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="example.org").do_handshake()
    second = b"\r\n\r\n\x00\r\nQUIT\n"
    return [
        outgoing.read(),
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 443\r\nrest",
        b"PROXY TCP6 2001:db8::1 2001:db8::2 1 443\r\n",
        b"PROXY UNKNOWN\r\n",
        second + b"\x21\x11\x00\x0c" + bytes(12) + b"rest",
        second + b"\x21\x21\x00\x24" + bytes(36),
        second + b"\x20\x00\x00\x00",
    ]


def _pure(name: str, promise: str, one: Callable[[], One], good: Callable[[], list[bytes]]) -> Target:
    return Target(name, promise, lambda: contextlib.nullcontext(one()), good)


logging.getLogger("h2").setLevel(logging.CRITICAL)

PUSHED = "a push is answered or ConnectionFailedError"
FACES = (
    session("push-http2", PUSHED, AttackedPush, seeds.answers),
    session("push-http1", PUSHED, AttackedPush1, seeds.answers_1),
    session("quic", SERVED, AttackedQuic, _quic_seeds),
    _pure("web", "pages and refusals", _site, lambda: [*seeds.requests_1(), *seeds.requests_2()]),
    _pure("first-bytes", "a hello, a header or a WireError", lambda: _first_bytes, _hellos),
)
