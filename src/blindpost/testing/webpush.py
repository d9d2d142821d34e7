"""A Web Push service: it hands out subscriptions, checks who pushes and how, and keeps what came for devices.

It speaks HTTP/2 or HTTP/1.1 over TLS, verifies VAPID tokens and the headers that RFC 8030 and RFC 8188 ask
for, and can be told to answer otherwise: with a status, late, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography.hazmat.primitives.asymmetric import ec
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.webpush import decrypt, new_private_key, point_of, verify_es256
from blindpost.ds.certificate import make_certificate
from blindpost.transport.listening import stop_accepting
from blindpost.wire.errors import WireError
from blindpost.wire.json_text import JsonObject
from blindpost.wire.ntf.pushes import Push
from blindpost.wire.ntf.webpush import Subscription, decode_web_body
from blindpost.wire.text import unb64

HOST = "localhost"
BODY_MAX = 4096
_VAPID = re.compile(r"vapid t=([\w.=-]+), ?k=([\w=-]+)", re.ASCII)
_TOKEN_LIFE_MAX_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class WebAnswer:
    """What a push is answered with; without a status it is not answered."""

    status: int | None = 201
    retry_after: str = ""
    location: str = ""
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Browser:
    """What a device keeps of its subscription, and what opens pushes to it."""

    subscription: Subscription
    key: ec.EllipticCurvePrivateKey

    def opened(self, body: bytes) -> Push:
        return decode_web_body(decrypt(body, self.key, self.subscription.auth))


@dataclass(frozen=True, slots=True)
class Arrived:
    """A push that was accepted."""

    path: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(slots=True)
class _RefusedError(Exception):
    status: int
    why: str = field(default="")


class PushService:
    """Listens on loopback; `answer` decides about every push that is in order."""

    def __init__(self, *, http2: bool = True, port: int = 0, certificate: Path | None = None) -> None:
        """`certificate`: a file with its key and certificate, made if it is not there and used again."""
        self.port = port
        self.answer: Callable[[str], WebAnswer] = lambda _path: WebAnswer()
        self.arrived: list[Arrived] = []
        self.refused: list[str] = []
        """Why pushes that were not in order were refused."""
        self.connections = 0
        self._http2 = http2
        self._paths: dict[str, str] = {}
        """Of each subscription the VAPID key that may push to it; empty for any."""
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self.certificate, self._private_key = _credentials(certificate)

    def subscribe(self, vapid_public_key: str = "") -> Browser:
        """A subscription of a new device; with a key, only its owner may push to it (RFC 8292, section 4)."""
        key, path = new_private_key(system_entropy), f"/push/{system_entropy(12).hex()}"
        self._paths[path] = vapid_public_key
        auth = system_entropy(16)
        subscription = Subscription(HOST, str(self.port), path.encode(), auth, point_of(key))
        return Browser(subscription, key)

    def expire(self, browser: Browser) -> None:
        """The device is gone: pushes to it are answered 410."""
        self._paths.pop(browser.subscription.path.decode(), None)

    def tls(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """A client's context that trusts this service."""
        context.load_verify_locations(cadata=self.certificate.decode("ascii"))
        return context

    def waiting(self, browser: Browser) -> list[Arrived]:
        """What a device that was off gets: of each topic the newest (RFC 8030, section 5.4)."""
        path, kept = browser.subscription.path.decode(), list[Arrived]()
        for arrived in self.arrived:
            if arrived.path != path or arrived.headers["ttl"] == "0":
                continue
            topic = arrived.headers.get("topic")
            kept = [each for each in kept if topic is None or each.headers.get("topic") != topic]
            kept.append(arrived)
        return kept

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until pushes that came make this true."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def __aenter__(self) -> Self:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["h2"] if self._http2 else ["http/1.1"])
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "push.pem"
            file.write_bytes(self._private_key + self.certificate)
            context.load_cert_chain(file)
        self._listener = await asyncio.start_server(self._accepted, "127.0.0.1", self.port, ssl=context)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listener is not None
        stop_accepting(self._listener)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            if self._http2:
                await self._serve_http2(reader, writer)
            else:
                await self._serve_http1(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve_http1(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("ascii").strip().split("\r\n")
            fields = dict(map(_field, lines))
            body = await reader.readexactly(int(fields.get("content-length", "0")))
            answer = self._judged(first.split(" ")[1], fields, body)
            await asyncio.sleep(answer.after_s)
            if answer.status is None:
                await asyncio.Event().wait()
            extra = "".join(f"{name}: {value}\r\n" for name, value in _extra(answer))
            writer.write(f"HTTP/1.1 {answer.status} x\r\n{extra}content-length: 0\r\n\r\n".encode("ascii"))
            await writer.drain()

    async def _serve_http2(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        h2.initiate_connection()
        requests: dict[int, dict[str, str]] = {}
        bodies: dict[int, bytearray] = {}
        while True:
            writer.write(h2.data_to_send())
            data = await reader.read(65_536)
            if not data:
                return
            for event in h2.receive_data(data):
                if isinstance(event, RequestReceived):
                    requests[event.stream_id] = {str(name): str(value) for name, value in event.headers}
                    bodies[event.stream_id] = bytearray()
                elif isinstance(event, DataReceived):
                    bodies[event.stream_id] += event.data
                    h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, StreamEnded):
                    fields = requests.pop(event.stream_id)
                    body = bytes(bodies.pop(event.stream_id))
                    answer = self._judged(fields[":path"], fields, body)
                    answering = asyncio.create_task(_answer_http2(h2, writer, event.stream_id, answer))
                    self._tasks.add(answering)
                    answering.add_done_callback(self._tasks.discard)

    def _judged(self, path: str, fields: Mapping[str, str], body: bytes) -> WebAnswer:
        try:
            self._check(path, fields, body)
        except _RefusedError as refused:
            self.refused.append(refused.why)
            self._changed.set()
            return WebAnswer(refused.status)
        answer = self.answer(path)
        if answer.status is not None and 200 <= answer.status < 300:
            self.keep(Arrived(path, body, fields))
        self._changed.set()
        return answer

    def keep(self, arrived: Arrived) -> None:
        """Record a push that is accepted, before it is answered."""
        self.arrived.append(arrived)

    def knows(self, path: str, key: str) -> bool | None:
        """Whether pushes signed with this key go to this subscription; None if there is no such."""
        wanted = self._paths.get(path)
        return None if wanted is None else wanted in ("", key)

    def _check(self, path: str, fields: Mapping[str, str], body: bytes) -> None:
        if self.knows(path, "") is None:
            raise _RefusedError(410, "no such subscription")
        if len(body) > BODY_MAX:
            raise _RefusedError(413, "too long")
        if fields.get("content-encoding") != "aes128gcm" or not fields.get("ttl", "").isdecimal():
            raise _RefusedError(400, "TTL and content-encoding expected")
        if fields.get("urgency", "normal") not in ("very-low", "low", "normal", "high"):
            raise _RefusedError(400, "an urgency expected")
        if re.fullmatch(r"[\w-]{1,32}", fields.get("topic", "t"), re.ASCII) is None:
            raise _RefusedError(400, "a topic of 1 to 32 characters expected")
        found = _VAPID.fullmatch(fields.get("authorization", ""))
        if found is None or not self._is_known(found[1], found[2]):
            raise _RefusedError(403, "the VAPID token is not valid")
        if not self.knows(path, found[2]):
            raise _RefusedError(403, "the subscription is to another key")

    def _is_known(self, token: str, key: str) -> bool:
        content, _, signature = token.rpartition(".")
        head, _, claims = content.partition(".")
        try:
            header, claimed = JsonObject.from_bytes(unb64(head)), JsonObject.from_bytes(unb64(claims))
            is_signed = verify_es256(unb64(key), content.encode("ascii"), unb64(signature))
            lasts_s = claimed.integer("exp") - time.time()
            is_ours = claimed.text("aud") == f"https://{HOST}:{self.port}"
            is_named = claimed.text("sub").startswith(("mailto:", "https://"))
        except WireError:
            return False
        is_right = header.text("alg") == "ES256" and is_ours and is_named
        return is_signed and is_right and 0 < lasts_s <= _TOKEN_LIFE_MAX_S


def _credentials(file: Path | None) -> tuple[bytes, bytes]:
    """Certificate and private key, from a file if it is there."""
    if file is not None and file.exists():
        key, mark, certificate = file.read_bytes().partition(b"-----BEGIN CERTIFICATE-----")
        return mark + certificate, key
    certificate, key = make_certificate(HOST, int(time.time()))
    if file is not None:
        file.write_bytes(key + certificate)
    return certificate, key


async def _answer_http2(
    h2: H2Connection, writer: asyncio.StreamWriter, stream_id: int, answer: WebAnswer
) -> None:
    await asyncio.sleep(answer.after_s)
    if answer.status is not None:
        h2.send_headers(stream_id, [(":status", str(answer.status)), *_extra(answer)], end_stream=True)
        writer.write(h2.data_to_send())


def _extra(answer: WebAnswer) -> list[tuple[str, str]]:
    told = (("retry-after", answer.retry_after), ("location", answer.location))
    return [(name, value) for name, value in told if value]


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()
