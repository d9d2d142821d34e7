"""Pushes to Web Push services, which strangers choose: by the outgoing policy, without redirects."""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec

from blindpost.client.gate import Gate
from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.webpush import PLAINTEXT_MAX, encrypt, es256, point_of
from blindpost.ntf.ports import Accepted, Failed, PushOutcome, RetryLater, TokenInvalid
from blindpost.ntf.push.http1 import Http1Connection
from blindpost.ntf.push.http2 import ALPN, WATCH, ConnectionFailedError, Header, Http2Connection, Response
from blindpost.ntf.push.outcome import retry_after_s
from blindpost.transport import errors
from blindpost.transport.network import HostRefusedError, Network
from blindpost.wire.errors import WireError
from blindpost.wire.json_text import json_bytes
from blindpost.wire.ntf.pushes import CheckPush, MessagePush, Push, VerificationPush
from blindpost.wire.ntf.status import InvalidReason
from blindpost.wire.ntf.tokens import DeviceToken
from blindpost.wire.ntf.webpush import HTTPS_PORT, Subscription, encode_web_body
from blindpost.wire.text import ub64

TTL_S = 2_592_000
TOKEN_LIFE_S = 3600
RENEWED_BEFORE_S = 60
TOKENS_MAX = 1024
SERVICES_MAX = 256
"""How many push services' connections are kept; the least recently used is closed."""

ALPN_NAMES = (ALPN, "http/1.1")
AnyConnection = Http2Connection | Http1Connection

_TOPICS = {MessagePush: b"messages", VerificationPush: b"verification", CheckPush: b"check"}
"""A push service keeps only the newest of each for an offline device: one wake-up, not a hundred. A push of
messages names the newest of each queue, so an older push has nothing that the newer one lacks."""


def web_tls(ca_file: str | None = None) -> ssl.SSLContext:
    """Verifies push services against these authorities, or against the system's."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(list(ALPN_NAMES))
    return context


class VapidTokens:
    """How a push service knows us (RFC 8292): a signed token for each, used until shortly before its end."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, subject: str, now: Callable[[], float]) -> None:
        self._key = key
        self._subject = subject
        self.now = now
        self.public = ub64(point_of(key))
        """What applications give to their push service."""
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    def header(self, authority: str) -> bytes:
        """The value of `Authorization` for the push service there."""
        now = self.now()
        until, header = self._kept.get(authority, (0.0, b""))
        if not now < until <= now + TOKEN_LIFE_S:
            expires = int(now) + TOKEN_LIFE_S
            header = f"vapid t={self._token(authority, expires)},k={self.public}".encode("ascii")
            self._kept[authority] = (expires - RENEWED_BEFORE_S, header)
        self._kept.move_to_end(authority)
        while len(self._kept) > TOKENS_MAX:
            self._kept.popitem(last=False)
        return header

    def _token(self, authority: str, expires: int) -> str:
        head = json_bytes({"typ": "JWT", "alg": "ES256"})
        claims = json_bytes({"aud": f"https://{authority}", "exp": expires, "sub": self._subject})
        content = f"{ub64(head)}.{ub64(claims)}"
        return f"{content}.{ub64(es256(self._key, content.encode('ascii')))}"


@dataclass(frozen=True, slots=True)
class Way:
    """How push services are reached."""

    network: Network
    gate: Gate
    tls: ssl.SSLContext
    connect_timeout_s: float = 20.0
    response_timeout_s: float = 20.0


class WebPush:
    """The `PushProvider` of all Web Push devices."""

    def __init__(self, way: Way, tokens: VapidTokens, entropy: Entropy = system_entropy) -> None:
        self._way = way
        self._tokens = tokens
        self._entropy = entropy
        self._connections: OrderedDict[tuple[str, int], AnyConnection] = OrderedDict()
        self._opening: dict[tuple[str, int], asyncio.Task[AnyConnection]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def lane(self, token: DeviceToken) -> Hashable:
        """The push service: pushes to one never wait for those to another."""
        try:
            return token.subscription.authority
        except WireError:
            return None

    async def push(self, token: DeviceToken, push: Push) -> PushOutcome:
        """One attempt."""
        body = encode_web_body(push)
        if len(body) > PLAINTEXT_MAX:
            return Failed("the push is longer than push services take")
        try:
            subscription = token.subscription
            sealed = encrypt(body, subscription.p256dh, subscription.auth, self._entropy)
        except (WireError, CryptoError):
            return TokenInvalid(InvalidReason.BAD)
        try:
            connection = await self._connected(subscription)
            headers = self._headers(subscription, push)
            response = await connection.post(headers, sealed, self._way.response_timeout_s)
        except errors.ForbiddenHostError:
            return Failed("the push service is at an address that may not be connected to")
        except (ConnectionFailedError, errors.TransportError) as error:
            return RetryLater(str(error))
        return self._outcome(response)

    async def close(self) -> None:
        for opening in tuple(self._opening.values()):
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for connection in self._connections.values():
            self._start_closing(connection)
        self._connections.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _headers(self, subscription: Subscription, push: Push) -> list[Header]:
        authority = subscription.authority
        return [
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":authority", authority.encode("ascii")),
            (b":path", subscription.path),
            (b"authorization", self._tokens.header(authority)),
            (b"ttl", b"%d" % TTL_S),
            (b"urgency", b"high"),
            (b"topic", _TOPICS[type(push)]),
            (b"content-encoding", b"aes128gcm"),
            (b"content-type", b"application/octet-stream"),
        ]

    def _outcome(self, response: Response) -> PushOutcome:
        status = response.status
        if status in (200, 201, 202, 204):
            return Accepted()
        if status in (404, 410):
            return TokenInvalid(InvalidReason.UNREGISTERED)
        if status == 429 or status >= 500:
            return RetryLater(str(status), retry_after_s(response.retry_after, self._tokens.now()))
        return Failed(f"the push service answered {status}")

    async def _connected(self, subscription: Subscription) -> AnyConnection:
        place = (subscription.host, int(subscription.port or HTTPS_PORT))
        connection = self._connections.get(place)
        if connection is not None and connection.usable:
            self._connections.move_to_end(place)
            return connection
        opening = self._opening.get(place)
        if opening is None:
            opening = self._opening[place] = asyncio.create_task(self._open(place))
            opening.add_done_callback(lambda done: self._opened(place, done))
        return await asyncio.shield(opening)

    def _opened(self, place: tuple[str, int], done: asyncio.Task[AnyConnection]) -> None:
        del self._opening[place]
        if done.cancelled() or done.exception() is not None:
            return
        self._connections[place] = done.result()
        self._connections.move_to_end(place)
        while len(self._connections) > SERVICES_MAX:
            self._start_closing(self._connections.popitem(last=False)[1])

    def _start_closing(self, connection: AnyConnection) -> None:
        closing = asyncio.create_task(connection.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _open(self, place: tuple[str, int]) -> AnyConnection:
        with self._way.gate.attempt(*place, b"webpush"):
            try:
                async with asyncio.timeout(self._way.connect_timeout_s):
                    return await self._dial(*place)
            except HostRefusedError as error:
                raise errors.ForbiddenHostError from error
            except (OSError, TimeoutError, ssl.CertificateError) as error:
                raise errors.ConnectError(
                    f"no connection to a push service: {type(error).__name__}"
                ) from error

    async def _dial(self, host: str, port: int) -> AnyConnection:
        """To an address that the policy allows, with the certificate of the name."""
        plain = await self._way.network.connect(_Held, host, port)
        held = _Held()
        try:
            transport = await asyncio.get_running_loop().start_tls(
                plain.transport, held, self._way.tls, server_hostname=host
            )
        except BaseException:
            plain.transport.abort()
            raise
        assert isinstance(transport, asyncio.Transport)
        agreed = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        connection = Http2Connection(WATCH) if agreed == ALPN else Http1Connection()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if held.received:
            connection.data_received(bytes(held.received))
        if held.is_over:
            connection.connection_lost(None)
        return connection


class _Held(asyncio.Protocol):
    """A connection until it is known what is spoken on it; what comes meanwhile is kept."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
