"""A push service that means harm: it speaks raw HTTP/2 or HTTP/1.1 over TLS, as one of `ATTACKS` says."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.webpush import new_private_key, point_of
from blindpost.testing.webpush import HOST
from blindpost.wire.ntf.tokens import DeviceToken
from blindpost.wire.ntf.webpush import Subscription

DATA, HEADERS, RST, SETTINGS, PROMISE, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
OK_HEAD = b"\x88"
"""`:status: 200` in HPACK."""
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def goodbye(last_stream_id: int, error: int = 0, text: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, last_stream_id.to_bytes(4, "big") + error.to_bytes(4, "big") + text)


READY = frame(SETTINGS, 0, 0) + frame(SETTINGS, 1, 0)


@dataclass
class Hostile:
    """One that listens; `sent` is how much of its floods left it."""

    port: int = 0
    sent: int = 0
    connections: int = 0
    asked: int = 0
    elsewhere: int = 0
    """A port to redirect to."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def device(self) -> DeviceToken:
        """Another one each time."""
        path, point = f"/{system_entropy(8).hex()}".encode(), point_of(new_private_key(system_entropy))
        return DeviceToken.web(Subscription(HOST, str(self.port), path, bytes(16), point))


Attack = Callable[[Hostile, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _asked(hostile: Hostile, reader: asyncio.StreamReader) -> None:
    """Until the first request has begun."""
    data = b""
    while b"POST " not in data and b"\x01\x04\x00\x00\x00\x01" not in data:
        part = await reader.read(65_536)
        if not part:
            raise ConnectionError
        data = data[-16:] + part
    hostile.asked += 1


def flood(chunk: bytes, head: bytes = b"", *, ready: bytes = READY) -> Attack:
    """Something once, when it is asked, then something else for ever; nothing is read any more."""

    async def attack(hostile: Hostile, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ready)
        await _asked(hostile, reader)
        writer.write(head)
        while True:
            writer.write(chunk)
            await writer.drain()
            hostile.sent += len(chunk)
            await asyncio.sleep(0)

    return attack


def answer(*parts: bytes, ready: bytes = READY, then_reset: bool = False) -> Attack:
    """This to each connection's first request."""

    async def attack(hostile: Hostile, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ready)
        await _asked(hostile, reader)
        writer.write(b"".join(parts))
        if then_reset:
            writer.transport.abort()
        while await reader.read(65_536):
            pass

    return attack


async def slow(hostile: Hostile, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Its answer comes byte by byte."""
    writer.write(READY)
    await _asked(hostile, reader)
    for byte in frame(HEADERS, END_HEADERS, 1, OK_HEAD) * 100:
        writer.write(bytes((byte,)))
        await asyncio.sleep(0.25)


async def redirecting(hostile: Hostile, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _asked(hostile, reader)
    place = f"https://127.0.0.1:{hostile.elsewhere}/"
    writer.write(f"HTTP/1.1 307 x\r\nlocation: {place}\r\ncontent-length: 0\r\n\r\n".encode())
    while await reader.read(65_536):
        pass


HTTP1 = frozenset(
    {"endless head", "endless interim answers", "endless body", "endless chunks", "redirect"}
    | {"one answer per connection", "interim answer"}
)
ATTACKS: dict[str, Attack] = {
    "no answer": answer(),
    "slow answer": slow,
    "reset connection": answer(then_reset=True),
    "reset stream": answer(frame(RST, 0, 1, bytes(4))),
    "goaway": answer(goodbye(0)),
    "goaway before each answer": answer(goodbye(1), frame(HEADERS, END_HEADERS | END_STREAM, 1, OK_HEAD)),
    "wrong stream": answer(frame(HEADERS, END_HEADERS | END_STREAM, 99, OK_HEAD)),
    "push promise": answer(frame(PROMISE, END_HEADERS, 1, (2).to_bytes(4, "big") + OK_HEAD)),
    "ping flood": flood(frame(PING, 0, 0, bytes(8)) * 4000),
    "settings flood": flood(frame(SETTINGS, 0, 0, b"\x00\x03\x00\x00\x00\x64") * 4000),
    "window flood": flood(frame(WINDOW, 0, 0, (1).to_bytes(4, "big")) * 4000),
    "empty data flood": flood(frame(DATA, 0, 1) * 4000, frame(HEADERS, END_HEADERS, 1, OK_HEAD)),
    "continuation flood": flood(
        frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b") * 4000, frame(HEADERS, 0, 1, OK_HEAD)
    ),
    "huge header list": answer(
        frame(HEADERS, 0, 1, OK_HEAD),
        *(frame(CONTINUATION, 0, 1, b"\x00\x01a\x7f\x80\x7f" + b"b" * 16_255) for _ in range(20)),
    ),
    "endless body over HTTP/2": flood(
        frame(DATA, 0, 1, bytes(16_000)) * 4, frame(HEADERS, END_HEADERS, 1, OK_HEAD)
    ),
    "no room": answer(frame(SETTINGS, 0, 0, b"\x00\x03\x00\x00\x00\x00"), ready=b""),
    "nonsense": answer(b"\x00" * 50_000),
    "endless head": flood(b"x: y\r\n" * 4000, b"HTTP/1.1 200 x\r\n", ready=b""),
    "endless interim answers": flood(b"HTTP/1.1 100 x\r\n\r\n" * 4000, ready=b""),
    "endless body": flood(bytes(65_536), b"HTTP/1.1 201 x\r\ncontent-length: 999999999\r\n\r\n", ready=b""),
    "endless chunks": flood(
        b"5\r\nabcde\r\n" * 4000, b"HTTP/1.1 201 x\r\ntransfer-encoding: chunked\r\n\r\n", ready=b""
    ),
    "redirect": redirecting,
    "one answer per connection": answer(
        b"HTTP/1.1 201 x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", ready=b""
    ),
    "interim answer": answer(b"HTTP/1.1 100 x\r\n\r\nHTTP/1.1 201 x\r\ncontent-length: 0\r\n\r\n", ready=b""),
}


@asynccontextmanager
async def hostile_service(attack: str, pem: Path, elsewhere: int = 0) -> AsyncIterator[Hostile]:
    """`pem`: its key and certificate."""
    hostile = Hostile(elsewhere=elsewhere)

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        hostile.tasks.add(task)
        task.add_done_callback(hostile.tasks.discard)
        hostile.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await ATTACKS[attack](hostile, reader, writer)
        writer.transport.abort()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.set_alpn_protocols(["http/1.1"] if attack in HTTP1 else ["h2"])
    server = await asyncio.start_server(accepted, "127.0.0.1", 0, ssl=context)
    hostile.port = server.sockets[0].getsockname()[1]
    try:
        yield hostile
    finally:
        server.close()
        for task in tuple(hostile.tasks):
            task.cancel()
        await asyncio.gather(*hostile.tasks, return_exceptions=True)
