"""Whole sessions of each server in this process: whatever comes, the server goes on for everybody else.

Each input is a small program for a connection that misbehaves. After it a bystander asks, is answered, and
finds its own queue, device or payload as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import ssl
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from blindpost.client.errors import ClientError
from blindpost.ntf.push.http2 import WATCH, ConnectionFailedError, Http2Connection
from blindpost.router.meters import Meter
from blindpost.serving.control import ControlSocket
from blindpost.serving.failures import OperatorError
from blindpost.testing.network import MemoryNetwork
from blindpost.transport.errors import TransportError
from blindpost.wire.capnp.rpc import write_bootstrap
from blindpost.wire.errors import WireError
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import PING, PRXY, QUE
from blindpost.wire.smp.responses import PKEY, PONG
from blindpost.wire.smp.transmissions import Received, parse_responses
from blindpost.wire.smp.values import LinkData, QueueMode
from fuzz.target import One, Source, Target, piece
from tests.support.ds.delivery import running
from tests.support.ntf.lines import NtfLine, open_ntf_line
from tests.support.ntf.routers import active_device, device_token, running_ntf
from tests.support.router.forwarding import ProxyLine
from tests.support.router.lines import Line, Said, create, open_line
from tests.support.router.routers import new_key, running_router

ANSWER_S = 20.0
"""A server that has not answered its bystander by then does not turn any more."""
LIFE = 3000
"""After so many inputs a server starts anew, so that what they stored does not pile up."""
STEPS_MAX = 12
PAYLOAD_MAX = 16_000

GONE = (TransportError, ClientError, WireError, OSError, EOFError)
"""What a connection that misbehaves may see of its own end."""


class Failures(logging.Handler):
    """Keeps what a server logs as an exception: each is a finding."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


class Attacked(ABC):
    """One server and its bystander, for many inputs."""

    async def run(self, source: Source) -> None:
        """Do what the input says; whatever happens to this connection is its own affair."""
        with contextlib.suppress(*GONE):
            await self.attack(source)

    @abstractmethod
    async def start(self, stack: contextlib.AsyncExitStack, folder: Path) -> None: ...

    @abstractmethod
    async def attack(self, source: Source) -> None: ...

    @abstractmethod
    async def check(self) -> None:
        """The bystander is served as before."""


def attacked(make: type[Attacked]) -> Iterator[One]:
    """A function that lets an input loose on a server, which is made anew now and then."""
    failures = Failures()
    logging.getLogger("blindpost").addHandler(failures)
    with asyncio.Runner() as runner:
        unhandled: list[str] = []
        runner.get_loop().set_exception_handler(lambda _, context: unhandled.append(str(context)))
        held: tuple[Attacked, contextlib.AsyncExitStack] | None = None
        count = itertools.count()

        async def begin() -> tuple[Attacked, contextlib.AsyncExitStack]:
            stack = contextlib.AsyncExitStack()
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = make()
            await server.start(stack, folder)
            return server, stack

        async def play(server: Attacked, data: bytes) -> None:
            async with asyncio.timeout(ANSWER_S):
                await server.run(Source(data))
                await server.check()

        def one(data: bytes) -> None:
            nonlocal held
            if held is None or next(count) % LIFE == LIFE - 1:
                if held is not None:
                    runner.run(held[1].aclose())
                held = runner.run(begin())
            runner.run(play(held[0], data))
            problems = [*failures.found, *unhandled]
            failures.found.clear()
            unhandled.clear()
            assert not problems, problems[0]

        try:
            yield one
        finally:
            if held is not None:
                runner.run(held[1].aclose())
            logging.getLogger("blindpost").removeHandler(failures)


class AttackedRouter(Attacked):
    """Steps: raw blocks, commands with any argument by any key, what proxies carry, bytes below TLS."""

    async def start(self, stack: contextlib.AsyncExitStack, folder: Path) -> None:
        self._router = await stack.enter_async_context(running_router(folder, network=MemoryNetwork()))
        self._bystander = await open_line(self._router)
        self._queue = await create(self._bystander, secured=True)
        await self._queue.send(self._bystander, b"keep this", signed=True)
        self._before = await self._queue.ask(self._bystander, QUE())
        self._line: Line | None = None
        self._proxy: ProxyLine | None = None
        first = await open_line(self._router)
        link = LinkData(b"fixed", b"user")
        self._own = [
            await create(first, link=link, notifier=True),
            await create(first, mode=QueueMode.CONTACT, link=link),
            await create(first, mode=None),
        ]
        self._ids = [one for queue in self._own for one in (queue.recipient_id, queue.sender_id)]
        self._ids += [self._own[0].notifier_id, self._own[0].link_id, self._own[1].link_id]
        self._ids += [self._queue.recipient_id, self._queue.sender_id, bytes(24), b""]
        self._keys = [None, *(queue.key for queue in self._own), self._own[0].sender_key, new_key()]

    async def attack(self, source: Source) -> None:
        for _ in range(STEPS_MAX):
            if not source.left:
                break
            await self._step(source)
        if self._line is not None:
            await self._settled(self._line)

    async def _step(self, source: Source) -> None:
        match source.byte() % 6:
            case 0:
                (await self._opened()).stream.send(source.piece()[:PAYLOAD_MAX])
            case 1 | 2:
                line = await self._opened()
                line.send([self._written(line, source) for _ in range(1 + source.byte() % 3)])
            case 3:
                proxy = self._proxy = self._proxy or await ProxyLine.open(self._router)
                self._proxy = None
                sender = proxy.sender(6 + source.byte() % 15)
                if source.byte() % 2:
                    await proxy.forward_raw(source.piece()[:PAYLOAD_MAX])
                else:
                    said = Said(source.piece()[:PAYLOAD_MAX], self._entity(source), self._key(source))
                    await proxy.forward(sender, sender.transmission(said.command, said.entity_id, said.key))
                self._proxy = proxy
            case 4:
                line, self._line = await self._opened(), None
                line.stream.send(b"")
                line.stream.session._transport.write(source.piece())
                await line.stream.close()
            case _:
                line = await self._opened()
                found = await line.ask(PRXY(self._router.server, None))
                if isinstance(found, PKEY):
                    pfwd = b"PFWD " + source.piece()[: PAYLOAD_MAX - 400]
                    line.send([line.written(Said(pfwd, found.session_id))])

    def _written(self, line: Line, source: Source) -> Any:
        command = source.piece()[: PAYLOAD_MAX // 3]
        return line.written(Said(command, self._entity(source), self._key(source)))

    def _entity(self, source: Source) -> bytes:
        choice = source.byte()
        return self._ids[choice] if choice < len(self._ids) else source.take(choice % 40)

    def _key(self, source: Source) -> Any:
        return self._keys[source.byte() % len(self._keys)]

    async def _opened(self) -> Line:
        if self._line is None or self._line.stream.reason is not None:
            self._line = await open_line(self._router)
        return self._line

    async def _settled(self, line: Line) -> None:
        """Wait until the router has answered everything that this connection sent."""
        corr_id = os.urandom(24)
        line.send([line.written(Said(PING(), corr_id=corr_id))])
        while True:
            payload = await line.stream.read_block()
            for received in parse_responses(Reader(payload), line.layout, line.version):
                assert isinstance(received, Received), f"the router sent something unreadable: {received!r}"
                if received.corr_id == corr_id:
                    return

    async def check(self) -> None:
        assert await self._bystander.ask(PING()) == PONG()
        assert await self._queue.ask(self._bystander, QUE()) == self._before
        router = self._router.router
        assert not router.plan.meters[Meter.INTERNAL_ERRORS], "a command failed inside"
        assert not router.engine.meters.events_failed
        assert not router.engine.meters.turns_refused


class AttackedNotifier(Attacked):
    """Steps: raw blocks, commands with any argument by any key, bytes below TLS."""

    async def start(self, stack: contextlib.AsyncExitStack, folder: Path) -> None:
        self._ntf = await stack.enter_async_context(running_ntf(folder, network=MemoryNetwork()))
        self._device = await active_device(self._ntf, device_token("aa"))
        self._own = await active_device(self._ntf, device_token("bb"))
        self._line: NtfLine | None = None
        self._ids = [self._own.token_id, self._device.token_id, bytes(24), b""]
        self._keys = [None, self._own.key, new_key()]

    async def attack(self, source: Source) -> None:
        for _ in range(STEPS_MAX):
            if not source.left:
                break
            line = await self._opened()
            match source.byte() % 4:
                case 0:
                    line.stream.send(source.piece()[:400])
                case 3:
                    self._line = None
                    line.stream.session._transport.write(source.piece())
                    await line.stream.close()
                case _:
                    command, choice = source.piece()[:200], source.byte()
                    known = choice < len(self._ids)
                    entity = self._ids[choice] if known else source.take(choice % 40)
                    key = self._keys[source.byte() % len(self._keys)]
                    line.send(line.spoken(command, entity, key))
        if self._line is not None:
            corr_id = os.urandom(24)
            self._line.send(self._line.spoken(b"PING", corr_id=corr_id))
            while (await self._line.hear()).corr_id != corr_id:
                pass

    async def _opened(self) -> NtfLine:
        if self._line is None or self._line.stream.reason is not None:
            self._line = await open_ntf_line(self._ntf)
        return self._line

    async def check(self) -> None:
        assert await self._device.status() == "ACTIVE"
        assert not self._ntf.router.engine.meters.events_failed
        assert not self._ntf.router.engine.meters.turns_refused


class AttackedDelivery(Attacked):
    """Any bytes as Cap'n Proto over TLS."""

    async def start(self, stack: contextlib.AsyncExitStack, folder: Path) -> None:
        self._ds = await stack.enter_async_context(running(folder))
        self._client = await self._ds.client(quic=False)
        await self._client.upload_key_package(b"k" * 32, b"a key package")
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    async def attack(self, source: Source) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ds.port, ssl=self._context)
        try:
            for _ in range(STEPS_MAX):
                if not source.left:
                    break
                writer.write(source.piece())
                await writer.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.002):
                    await reader.read(1 << 16)
        finally:
            writer.transport.abort()

    async def check(self) -> None:
        assert await self._client.fetch_key_package(b"n" * 32) is None
        assert not self._ds.service.engine.meters.events_failed


class AttackedControl(Attacked):
    """Any lines to the socket of operators."""

    async def start(self, stack: contextlib.AsyncExitStack, folder: Path) -> None:
        async def status(request: Mapping[str, Any]) -> Mapping[str, Any]:
            if "fail" in request:
                raise OperatorError("This cannot be done.")
            return {"all": "fine"}

        self._path = folder / "control"
        control = ControlSocket(self._path, {"status": status})
        await control.listen()
        stack.push_async_callback(control.close)

    async def attack(self, source: Source) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._path), limit=1 << 20)
        try:
            writer.write(source.rest() + b"\n")
            writer.write_eof()
            await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()

    async def check(self) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._path))
        writer.write(b'{"command": "status"}\n')
        assert await reader.readline() == b'{"ok": true, "result": {"all": "fine"}}\n'
        writer.close()
        await writer.wait_closed()


class _Wire(asyncio.Transport):
    """Takes what the client of Apple writes, and forgets it."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Http2Connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def close(self) -> None:
        self.abort()


class AttackedPush(Attacked):
    """Any bytes as Apple's side of HTTP/2: a push is answered, or its connection has failed."""

    async def start(self, stack: contextlib.AsyncExitStack, folder: Path) -> None:
        pass

    async def attack(self, source: Source) -> None:
        wire, connection = _Wire(), Http2Connection(WATCH)
        wire.protocol = connection
        connection.connection_made(wire)
        headers = [(b":method", b"POST"), (b":path", b"/3/device/aa"), (b":scheme", b"https")]
        pushes = [
            asyncio.create_task(connection.post([*headers, (b":authority", b"a")], b"{}" * 700, 0.2))
            for _ in range(2)
        ]
        await asyncio.sleep(0)
        connection.data_received(bytes.fromhex("000000040000000000"))
        for _ in range(STEPS_MAX):
            await asyncio.sleep(0)
            if not source.left:
                break
            connection.data_received(source.piece())
        connection.abort()
        for push in pushes:
            with contextlib.suppress(ConnectionFailedError):
                await push

    async def check(self) -> None:
        await asyncio.sleep(0)


def _program(*steps: tuple[int, bytes, bytes]) -> bytes:
    return b"".join(bytes([kind]) + before + piece(body) for kind, before, body in steps)


def _router_seeds() -> list[bytes]:
    def command(text: bytes, entity: int, key: int) -> bytes:
        return bytes([1, 0]) + piece(text) + bytes([entity, key])

    plain = (b"SUB", b"GET", b"OFF", b"DEL", b"QUE", b"PING", b"LGET", b"LDEL", b"NDEL", b"NSUB", b"ACK \x00")
    found = [command(text, entity, 1) for text in plain for entity in (0, 2, 6, 7)]
    found += [command(b"SEND T hello", 1, key) for key in (0, 4, 5)]
    found += [command(b"SEND  ", 8, 0), command(b"RFWD abc", 12, 0), command(b"RSLV a.b", 12, 0)]
    found += [command(b"LSET \x18" + bytes(24) + b"\0\x05fixed\0\x04user", 2, 2)]
    found += [_program((0, b"", bytes(60))), _program((4, b"", b"\x17\x03\x03\x00\x20" + bytes(32)))]
    found += [
        bytes([3, 14, 0]) + piece(b"SEND T through") + bytes([1, 0]),
        _program((3, b"\x0e\x01", bytes(90))),
    ]
    found += [_program((5, b"", b"\0\x14" + bytes(44)))]
    return found


def _ntf_seeds() -> list[bytes]:
    texts = (b"TCHK", b"TDEL", b"TVFY abc", b"TCRN \0\0", b"TRPL T\0", b"SCHK", b"SDEL", b"PING", b"SNEW ")
    return [bytes([1]) + piece(text) + bytes([entity, 1]) for text in texts for entity in (0, 1)]


def _session(name: str, promise: str, make: type[Attacked], seeds: list[bytes]) -> Target:
    return Target(name, promise, lambda: contextlib.contextmanager(attacked)(make), lambda: seeds)


SERVED = "the bystander is answered and finds everything as it was; nothing is logged as an exception"
SETTINGS = bytes.fromhex("000006040000000000000300000001")
RESPONSE = bytes.fromhex("0000010105000000") + b"\x01\x88"

BOOTSTRAP = write_bootstrap(1)

SESSIONS = (
    _session("router-session", SERVED, AttackedRouter, _router_seeds()),
    _session("ntf-session", SERVED, AttackedNotifier, _ntf_seeds()),
    _session("ds-session", SERVED, AttackedDelivery, [piece(bytes(16)), piece(BOOTSTRAP)]),
    _session(
        "control-socket",
        "each line is answered in JSON",
        AttackedControl,
        [b'{"command": "status"}', b"[1, 2", b"{}"],
    ),
    _session(
        "push-http2",
        "a push is answered or ConnectionFailedError",
        AttackedPush,
        [piece(SETTINGS) + piece(RESPONSE)],
    ),
)
