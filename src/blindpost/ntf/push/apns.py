"""Pushes to Apple: one HTTP/2 connection per environment, made when the first push needs it."""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass

from blindpost.ntf.ports import Accepted, Failed, PushOutcome, RetryLater, TokenInvalid
from blindpost.ntf.push.http2 import (
    WATCH,
    ConnectionFailedError,
    Header,
    Http2Connection,
    NotSentError,
    Response,
    Watch,
)
from blindpost.ntf.push.outcome import CHANGED_TOO_OFTEN, EXPIRED_PROVIDER_TOKEN, outcome_of, retry_after_s
from blindpost.ntf.push.provider_tokens import ProviderTokens
from blindpost.wire.errors import WireError
from blindpost.wire.json_text import JsonObject
from blindpost.wire.ntf.pushes import CheckPush, MessagePush, Push, VerificationPush, encode_apns_body
from blindpost.wire.ntf.status import InvalidReason
from blindpost.wire.ntf.tokens import DeviceToken

PRODUCTION_HOST = "api.push.apple.com"
DEVELOPMENT_HOST = "api.sandbox.push.apple.com"
PORT = 443
TOPIC = "chat.simplex.app"
PAYLOAD_MAX = 4096
"""Apple refuses larger bodies."""
CONNECTIONS_TRIED = 2
"""How many connections an unsent push is tried on, one after the other."""

_OUT_OF_ORDER = 503
_DEVICE_TOKEN = re.compile(rb"(?:[0-9a-fA-F]{2}){1,100}")
_ALERT: tuple[Header, ...] = ((b"apns-push-type", b"alert"),)
_BACKGROUND: tuple[Header, ...] = ((b"apns-push-type", b"background"), (b"apns-priority", b"5"))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where Apple, or a server like Apple's, is reached and how it is verified."""

    host: str
    port: int
    tls: ssl.SSLContext
    topic: str = TOPIC
    connect_timeout_s: float = 25.0
    response_timeout_s: float = WATCH.answer_s
    ping_s: float = WATCH.idle_s
    """A connection silent for this long is probed with a PING."""


class Apns:
    """The `PushProvider` of one environment of Apple."""

    def __init__(self, endpoint: Endpoint, tokens: ProviderTokens) -> None:
        self._endpoint = endpoint
        self._tokens = tokens
        self._connection: Http2Connection | None = None
        self._connecting: asyncio.Task[Http2Connection] | None = None
        self._common: tuple[Header, ...] = (
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":authority", f"{endpoint.host}:{endpoint.port}".encode("ascii")),
        )
        self._topic: Header = (b"apns-topic", endpoint.topic.encode("ascii"))

    async def push(self, token: DeviceToken, push: Push) -> PushOutcome:
        """One attempt."""
        if _DEVICE_TOKEN.fullmatch(token.token) is None:
            return TokenInvalid(InvalidReason.BAD)
        body = encode_apns_body(push)
        if len(body) > PAYLOAD_MAX:
            return Failed("the payload is larger than Apple takes")
        bearer = self._tokens.current()
        try:
            response = await self._answered(self._headers(token.token, push, bearer), body)
        except ConnectionFailedError as error:
            return RetryLater(str(error))
        return self._read(response, bearer)

    async def _answered(self, headers: list[Header], body: bytes) -> Response:
        for _ in range(CONNECTIONS_TRIED):
            connection = await self._connected()
            try:
                response = await connection.post(headers, body, self._endpoint.response_timeout_s)
            except NotSentError:
                continue
            if response.status == _OUT_OF_ORDER:
                connection.retire()
            return response
        raise ConnectionFailedError("Apple ends its connections")

    async def close(self) -> None:
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait([connecting])
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _headers(self, device_token: bytes, push: Push, bearer: str) -> list[Header]:
        return [
            *self._common,
            (b":path", b"/3/device/" + device_token),
            self._topic,
            *_kind_headers(push),
            (b"authorization", b"bearer " + bearer.encode("ascii")),
        ]

    async def _connected(self) -> Http2Connection:
        """The open connection; concurrent callers share one connection attempt."""
        connection = self._connection
        if connection is not None and connection.usable:
            return connection
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        try:
            return await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            if self._connecting is None:
                raise ConnectionFailedError("the provider was closed") from None
            raise

    async def _connect(self) -> Http2Connection:
        endpoint = self._endpoint
        try:
            self._connection = await Http2Connection.connect(
                endpoint.host,
                endpoint.port,
                endpoint.tls,
                endpoint.connect_timeout_s,
                Watch(endpoint.ping_s, endpoint.response_timeout_s),
            )
        finally:
            self._connecting = None
        return self._connection

    def _read(self, response: Response, bearer: str) -> PushOutcome:
        reason = _reason(response.body)
        outcome = outcome_of(response.status, reason, retry_after_s(response.retry_after, self._tokens.now()))
        if reason == EXPIRED_PROVIDER_TOKEN:
            self._tokens.refused(bearer)
        elif reason == CHANGED_TOO_OFTEN:
            self._tokens.changed_too_often(bearer)
        elif isinstance(outcome, Accepted):
            self._tokens.accepted(bearer)
        return outcome


def _kind_headers(push: Push) -> tuple[Header, ...]:
    match push:
        case MessagePush():
            return _ALERT
        case VerificationPush() | CheckPush():
            return _BACKGROUND


def _reason(body: bytes) -> str:
    """Empty if the body holds no readable reason."""
    if not body:
        return ""
    try:
        return JsonObject.from_bytes(body).optional_text("reason") or ""
    except WireError:
        return ""
