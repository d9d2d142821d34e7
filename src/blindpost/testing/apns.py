"""Apple's push service as far as a notification router sees it: HTTP/2 over TLS, checks, answers, records.

It verifies provider tokens with the public half of the key, refuses what Apple would refuse, and can be told
to answer otherwise: with a reason, with silence, with a broken connection, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self, cast
from uuid import uuid4

from cryptography.hazmat.primitives.asymmetric import ec
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, PingReceived, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError

from blindpost.crypto.webpush import point_of, verify_es256
from blindpost.ds.certificate import make_certificate
from blindpost.ntf.push.apns import PAYLOAD_MAX, TOPIC, Endpoint
from blindpost.ntf.push.http2 import ALPN, tls_context
from blindpost.ntf.push.provider_tokens import SigningKey
from blindpost.transport.listening import stop_accepting
from blindpost.wire.errors import WireError
from blindpost.wire.json_text import JsonObject, json_bytes
from blindpost.wire.ntf.pushes import MessagePush, Push, decode_apns_body
from blindpost.wire.text import unb64

HOST = "localhost"
KEY_ID = "ABCDE12345"
TEAM_ID = "5NN7GUYB6T"
PROVIDER_TOKEN_LIFE_S = 3600
PROVIDER_TOKENS_APART_S = 1200
"""Apple refuses older provider tokens, and a new one on the same connection within so short a time."""

_PATH = re.compile(r"/3/device/([0-9a-f]{2,200})")
_CONFIG = H2Configuration(client_side=False, header_encoding="utf-8", validate_inbound_headers=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a push is answered with."""

    status: int = 200
    reason: str = ""
    retry_after: str = ""


ACCEPTED = Answer()
BAD_DEVICE_TOKEN = Answer(400, "BadDeviceToken")
NOT_FOR_TOPIC = Answer(400, "DeviceTokenNotForTopic")
EXPIRED_TOKEN = Answer(410, "ExpiredToken")
UNREGISTERED = Answer(410, "Unregistered")
TOO_MANY_REQUESTS = Answer(429, "TooManyRequests")
UNAVAILABLE = Answer(503, "ServiceUnavailable")


class Fault(Enum):
    """What happens instead of an answer."""

    SILENCE = "silence"
    CUT = "cut"
    UNTOLD = "untold"
    """It is accepted, and the connection breaks before the answer leaves."""


Reaction = Answer | Fault


@dataclass(frozen=True, slots=True)
class Delivered:
    """A push as it came, with what it was answered."""

    device_token: str
    headers: dict[str, str]
    body: bytes
    reaction: Reaction

    @property
    def push(self) -> Push:
        return decode_apns_body(self.body)

    @property
    def accepted(self) -> bool:
        return self.reaction in (ACCEPTED, Fault.UNTOLD)


@dataclass
class _TokenSeen:
    """The provider token of a connection, and since when it is used there."""

    token: str = ""
    since: float = 0.0


@dataclass
class _Request:
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)


def _new_id() -> str:
    return str(uuid4()).upper()


class ApnsServer:
    """Listens on loopback while it is entered.

    async with ApnsServer() as apple:
        provider = Apns(apple.endpoint, ProviderTokens(apple.signing, time.time))
    """

    def __init__(
        self,
        topic: str = TOPIC,
        now: Callable[[], float] = time.time,
        key_id: str = KEY_ID,
        *,
        key: ec.EllipticCurvePrivateKey | None = None,
        new_id: Callable[[], str] = _new_id,
    ) -> None:
        self.signing = SigningKey(key or ec.generate_private_key(ec.SECP256R1()), key_id, TEAM_ID)
        """The key whose provider tokens it accepts."""
        self.received: list[Delivered] = []
        """All requests that came in whole, the oldest first."""
        self.decide: Callable[[str], Reaction] = lambda device_token: ACCEPTED
        """What a push to this device token is answered, once everything else about it is right."""
        self.late_s = 0.0
        """How long it takes to answer."""
        self.connections_made = 0
        self.pings = 0
        self.port = 0
        self.new_id = new_id
        """What each answer is named by."""
        self._topic = topic
        self._now = now
        self._changed = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._listener: asyncio.Server | None = None
        self._certificate, self._private_key = make_certificate(HOST, int(time.time()))

    @property
    def accepted(self) -> list[Delivered]:
        return [delivered for delivered in self.received if delivered.accepted]

    @property
    def endpoint(self) -> Endpoint:
        """How a provider reaches it."""
        context = tls_context()
        context.load_verify_locations(cadata=self._certificate.decode("ascii"))
        return Endpoint(HOST, self.port, context, self._topic)

    @property
    def certificate(self) -> bytes:
        """PEM, for clients that verify it from a file."""
        return self._certificate

    def sent_to(self, device_token: str) -> list[Delivered]:
        """What was accepted for one device."""
        return [delivered for delivered in self.accepted if delivered.device_token == device_token]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until pushes that came make this true."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self.connection, "127.0.0.1", self.port, ssl=self._server_context()
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop, dropping all connections, as in an outage."""
        listener, self._listener = self._listener, None
        if listener is not None:
            stop_accepting(listener)
        self.cut()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """Break all connections."""
        for connection in tuple(self._connections):
            connection.cut()

    def deafen(self) -> None:
        """Ignore everything on the present connections, as if the network lost it."""
        for connection in self._connections:
            connection.deafen()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols([ALPN])
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "apns.pem"
            file.touch(0o600)
            file.write_bytes(self._private_key + self._certificate)
            context.load_cert_chain(file)
        return context

    def connection(self) -> asyncio.Protocol:
        """One more client: for whoever listens by other means than `start`."""
        return _Connection(self)

    # What connections call

    def connected(self, connection: _Connection) -> None:
        self._connections.add(connection)
        self.connections_made += 1

    def disconnected(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    def pinged(self) -> None:
        self.pings += 1
        self._changed.set()

    def react(self, request: _Request, tokens: _TokenSeen) -> Reaction:
        headers, body = request.headers, bytes(request.body)
        found = _PATH.fullmatch(headers.get(":path", ""))
        device_token = "" if found is None else found[1]
        reaction: Reaction | None = self._refusal(headers, body, tokens, found is not None)
        if reaction is None:
            reaction = self.decide(device_token)
        self.keep(Delivered(device_token, headers, body, reaction))
        return reaction

    def keep(self, delivered: Delivered) -> None:
        """Record a push, before it is answered."""
        self.received.append(delivered)
        self._changed.set()

    def _refusal(
        self, headers: dict[str, str], body: bytes, tokens: _TokenSeen, known_path: bool
    ) -> Answer | None:
        if headers.get(":method") != "POST":
            return Answer(405, "MethodNotAllowed")
        refused = self._token_refusal(headers.get("authorization", ""), tokens)
        if refused is not None:
            return refused
        if not known_path:
            return BAD_DEVICE_TOKEN if headers.get(":path", "").startswith("/3/") else Answer(404, "BadPath")
        if "apns-topic" not in headers:
            return Answer(400, "MissingTopic")
        if headers["apns-topic"] != self._topic:
            return Answer(400, "TopicDisallowed")
        return _content_refusal(headers, body)

    def _token_refusal(self, authorization: str, seen: _TokenSeen) -> Answer | None:
        scheme, _, token = authorization.partition(" ")
        if scheme != "bearer" or not token:
            return Answer(403, "MissingProviderToken")
        issued_at = _issued_at(token, self.signing)
        if issued_at is None:
            return Answer(403, "InvalidProviderToken")
        now = self._now()
        if not now - PROVIDER_TOKEN_LIFE_S <= issued_at <= now + PROVIDER_TOKEN_LIFE_S:
            return Answer(403, "ExpiredProviderToken")
        if seen.token and token != seen.token and now - seen.since < PROVIDER_TOKENS_APART_S:
            return Answer(429, "TooManyProviderTokenUpdates")
        if token != seen.token:
            seen.token, seen.since = token, now
        return None


def _content_refusal(headers: dict[str, str], body: bytes) -> Answer | None:
    """What Apple, or the reference's imitation of it, finds wrong with a body and its kind."""
    if not body:
        return Answer(400, "PayloadEmpty")
    if len(body) > PAYLOAD_MAX:
        return Answer(413, "PayloadTooLarge")
    kind, priority = headers.get("apns-push-type"), headers.get("apns-priority", "10")
    if kind not in ("alert", "background"):
        return Answer(400, "InvalidPushType")
    if priority not in ("1", "5", "10") or (kind == "background" and priority == "10"):
        return Answer(400, "BadPriority")
    try:
        push = decode_apns_body(body)
        aps = JsonObject.from_bytes(body).optional_object("aps")
        if aps is None or (kind == "alert") is not isinstance(push, MessagePush):
            return Answer(400, "BadPayload")
        if aps.integer("mutable-content" if kind == "alert" else "content-available") != 1:
            return Answer(400, "BadPayload")
        if kind == "alert":
            aps.text("alert"), aps.text("category")
    except WireError:
        return Answer(400, "BadPayload")
    return None


def _issued_at(token: str, signing: SigningKey) -> int | None:
    """When a provider token was issued, if it is one of this key."""
    try:
        content, _, signature_text = token.rpartition(".")
        header_text, _, claims_text = content.partition(".")
        signature = unb64(signature_text)
        header, claims = JsonObject.from_bytes(unb64(header_text)), JsonObject.from_bytes(unb64(claims_text))
        right = header.text("alg") == "ES256" and header.text("kid") == signing.key_id
        if not right or claims.text("iss") != signing.team_id:
            return None
        is_ours = verify_es256(point_of(signing.key), content.encode("ascii"), signature)
        return claims.integer("iat") if is_ours else None
    except (WireError, UnicodeEncodeError):
        return None


class _Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: ApnsServer) -> None:
        self._server = server
        self._h2 = H2Connection(_CONFIG)
        self._requests: dict[int, _Request] = {}
        self._token = _TokenSeen()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self._server.connected(self)
        self._h2.initiate_connection()
        transport.write(self._h2.data_to_send())

    def connection_lost(self, error: Exception | None) -> None:
        self._server.disconnected(self)

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._h2.receive_data(data):
                self._received(event)
        except ProtocolError:
            self.cut()
            return
        self._transport.write(self._h2.data_to_send())

    def cut(self) -> None:
        self._transport.abort()

    def deafen(self) -> None:
        self._transport.pause_reading()

    def _received(self, event: Event) -> None:
        match event:
            case RequestReceived(stream_id=stream_id, headers=headers):
                self._requests[stream_id] = _Request({str(name): str(value) for name, value in headers})
            case DataReceived(stream_id=stream_id, data=data):
                self._h2.acknowledge_received_data(event.flow_controlled_length, stream_id)
                if stream_id in self._requests:
                    self._requests[stream_id].body += data
            case PingReceived():
                self._server.pinged()
            case StreamReset(stream_id=stream_id):
                self._requests.pop(stream_id, None)
            case StreamEnded(stream_id=stream_id):
                self._react(stream_id, self._requests.pop(stream_id))

    def _react(self, stream_id: int, request: _Request) -> None:
        reaction = self._server.react(request, self._token)
        if self._server.late_s:
            asyncio.get_running_loop().call_later(self._server.late_s, self._late, stream_id, reaction)
        else:
            self._answer(stream_id, reaction)

    def _late(self, stream_id: int, reaction: Reaction) -> None:
        if self._transport.is_closing():
            return
        with contextlib.suppress(ProtocolError):  # nobody waits for it any more
            self._answer(stream_id, reaction)
        self._transport.write(self._h2.data_to_send())

    def _answer(self, stream_id: int, reaction: Reaction) -> None:
        match reaction:
            case Fault.SILENCE:
                return
            case Fault.CUT | Fault.UNTOLD:
                self.cut()
            case Answer(status, reason, retry_after):
                headers = [(":status", str(status)), ("apns-id", self._server.new_id())]
                if retry_after:
                    headers.append(("retry-after", retry_after))
                self._h2.send_headers(stream_id, headers, end_stream=not reason)
                if reason:
                    self._h2.send_data(stream_id, json_bytes({"reason": reason}), end_stream=True)
