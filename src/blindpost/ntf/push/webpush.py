"""Pushes to Web Push services, which strangers choose: by the outgoing policy, without redirects."""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import cast

from blindpost.client.gate import Gate
from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.webpush import PLAINTEXT_MAX, encrypt
from blindpost.ntf.ports import Accepted, Failed, PushOutcome, RetryLater, TokenInvalid
from blindpost.ntf.push.http1 import Http1Connection
from blindpost.ntf.push.http2 import (
    ALPN,
    WATCH,
    ConnectionFailedError,
    Header,
    Http2Connection,
    NotSentError,
    Response,
)
from blindpost.ntf.push.outcome import retry_after_s
from blindpost.ntf.push.rests import Rests
from blindpost.ntf.push.vapid import VapidKey, VapidTokens
from blindpost.transport import errors
from blindpost.transport.guarded import start_guarded
from blindpost.transport.network import HostRefusedError, Network
from blindpost.wire.errors import WireError
from blindpost.wire.ntf.pushes import CheckPush, MessagePush, Push, VerificationPush
from blindpost.wire.ntf.status import InvalidReason
from blindpost.wire.ntf.tokens import DeviceToken
from blindpost.wire.ntf.webpush import Subscription, encode_web_body

TTL_S = 2_592_000
SERVICES_MAX = 256
"""How many push services' connections are kept; the least recently used is closed."""

CONNECTIONS_TRIED = 8
"""How many connections an unsent push is tried on, one after the other."""
ALPN_NAMES = (ALPN, "http/1.1")
AnyConnection = Http2Connection | Http1Connection

_WRONG_KEY = (401, 403)
"""What push services answer to a token that is not signed with the key of the subscription."""

_TOPICS = {MessagePush: b"messages", VerificationPush: b"verification", CheckPush: b"check"}
"""A push service keeps only the newest of each for an offline device: one wake-up, not a hundred. A push of
messages names the newest of each queue, so an older push has nothing that the newer one lacks."""


def web_tls(ca_file: str | None = None) -> ssl.SSLContext:
    """Verifies push services against these authorities, or against the system's."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(list(ALPN_NAMES))
    return context


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
        self._rests = Rests()

    def lane(self, token: DeviceToken) -> Hashable:
        """The push service: pushes to one never wait for those to another."""
        try:
            return token.subscription.place
        except WireError:
            return None

    async def push(self, token: DeviceToken, push: Push) -> PushOutcome:
        return await self.push_as(token, push, b"")

    async def push_as(self, token: DeviceToken, push: Push, key_name: bytes) -> PushOutcome:
        """One attempt; at once a second one if the subscription may be to another of our keys."""
        body = encode_web_body(push)
        if len(body) > PLAINTEXT_MAX:
            return Failed("the push is longer than push services take")
        try:
            subscription = token.subscription
            sealed = encrypt(body, subscription.p256dh, subscription.auth, self._entropy)
        except (WireError, CryptoError):
            return TokenInvalid(InvalidReason.BAD)
        keys = self._tokens.to_try(key_name)
        try:
            for key in keys:
                headers = self._headers(subscription, push, key)
                response = await self._answered(subscription, headers, sealed)
                if response.status not in _WRONG_KEY:
                    break
        except errors.ForbiddenHostError:
            return Failed("the push service is at an address that may not be connected to")
        except (ConnectionFailedError, errors.TransportError) as error:
            return RetryLater(str(error))
        if response.status in _WRONG_KEY and key_name and all(each.name != key_name for each in keys):
            return TokenInvalid(InvalidReason.EXPIRED)  # it is subscribed to a key that is no longer used
        return self._outcome(response, key)

    async def _answered(self, subscription: Subscription, headers: list[Header], body: bytes) -> Response:
        place = subscription.place
        for _ in range(CONNECTIONS_TRIED):
            connection = await self._connected(subscription)
            try:
                response = await connection.post(headers, body, self._way.response_timeout_s)
            except NotSentError:
                continue  # it waited behind the last request that this connection takes
            except ConnectionFailedError:
                self._rests.failed(place)
                raise
            self._rests.answered(place)
            return response
        self._rests.failed(place)
        raise ConnectionFailedError("the push service ends its connections")

    async def close(self) -> None:
        for opening in tuple(self._opening.values()):
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for connection in self._connections.values():
            self._start_closing(connection)
        self._connections.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _headers(self, subscription: Subscription, push: Push, key: VapidKey) -> list[Header]:
        authority = subscription.authority
        return [
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":authority", authority.encode("ascii")),
            (b":path", subscription.path),
            (b"authorization", self._tokens.header(authority, key)),
            (b"ttl", b"%d" % TTL_S),
            (b"urgency", b"high"),
            (b"topic", _TOPICS[type(push)]),
            (b"content-encoding", b"aes128gcm"),
            (b"content-type", b"application/octet-stream"),
        ]

    def _outcome(self, response: Response, key: VapidKey) -> PushOutcome:
        status = response.status
        if status in (200, 201, 202, 204):
            return Accepted(key.name)
        if status in (404, 410):
            return TokenInvalid(InvalidReason.UNREGISTERED)
        if status == 429 or status >= 500:
            return RetryLater(str(status), retry_after_s(response.retry_after, self._tokens.now()))
        return Failed(f"the push service answered {status}")

    async def _connected(self, subscription: Subscription) -> AnyConnection:
        place = subscription.place
        connection = self._connections.get(place)
        if connection is not None and connection.usable:
            self._connections.move_to_end(place)
            return connection
        if self._rests.is_resting(place):
            raise ConnectionFailedError("the push service failed a moment ago")
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
            idle = (known for known, open_one in self._connections.items() if not open_one.busy)
            self._start_closing(self._connections.pop(next(idle, next(iter(self._connections)))))

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
        """Connect to an address that the policy allows, verifying the certificate against the name."""
        plain = await self._way.network.connect(_Held, host, port)
        held = _Held()
        try:
            transport = await start_guarded(plain.transport, held, self._way.tls, host)
        except BaseException:
            plain.transport.abort()
            raise
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
    """A connection until its protocol is known; data that arrives meanwhile is kept."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
