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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from blindpost.client.errors import ClientError
from blindpost.crypto.keys import PrivateKey
from blindpost.router.meters import Meter
from blindpost.serving.control import ControlSocket
from blindpost.serving.failures import OperatorError
from blindpost.testing.network import MemoryNetwork
from blindpost.transport.errors import HandshakeParseError, TransportError
from blindpost.transport.handshake import Effect, Failed, Send
from blindpost.transport.plans import smp_client_plan
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import NSUBS, PING, PRXY, QUE, SUBS, Command, read_command
from blindpost.wire.smp.errors import RefusedError
from blindpost.wire.smp.responses import PKEY, PONG
from blindpost.wire.smp.transmissions import Received, parse_responses
from blindpost.wire.smp.values import LinkData, QueueMode
from blindpost.wire.smp.versions import SMP_VERSIONS
from blindpost.wire.versions import VersionRange
from fuzz import seeds
from fuzz.target import One, Source, Target
from tests.support.ds.delivery import running
from tests.support.ntf.lines import NtfLine, open_ntf_line
from tests.support.ntf.routers import active_device, device_token, running_ntf, some_queue
from tests.support.router.forwarding import ProxyLine
from tests.support.router.lines import Line, Said, create, open_line
from tests.support.router.routers import new_key, running_router
from tests.support.router.services import MESSAGING, NOTIFIER, ServiceLine, new_service, open_service
from tests.support.transport.streams import connect

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


class _AnyHello:
    """Answers a router's hello with these bytes, and ends."""

    def __init__(self, hello: bytes) -> None:
        self._hello = hello

    def start(self) -> list[Effect]:
        return []

    def received(self, payload: bytes) -> list[Effect]:
        return [Send(self._hello), Failed(HandshakeParseError())]


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
        self._keys += [self._own[0].notifier_key, PrivateKey(Algorithm.ED25519, bytes(range(32)))]
        self._service, self._served = new_service(), list[ServiceLine | None]([None, None])

    async def attack(self, source: Source) -> None:
        for _ in range(STEPS_MAX):
            if not source.left:
                break
            await self._step(source)
        if self._line is not None:
            await self._settled(self._line)

    async def _step(self, source: Source) -> None:
        match source.byte() % 8:
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
            case 6:
                await self._as_service(source)
            case 7:
                await self._half_shaken(source)
            case _:
                line = await self._opened()
                found = await line.ask(PRXY(self._router.server, None))
                if isinstance(found, PKEY):
                    pfwd = b"PFWD " + source.piece()[: PAYLOAD_MAX - 400]
                    line.send([line.written(Said(pfwd, found.session_id))])

    async def _as_service(self, source: Source) -> None:
        """A command signed twice where that belongs, if it can be read; any bytes else."""
        role = source.byte() % 2
        line = self._served[role]
        if line is None or line.stream.reason is not None:
            credentials = self._service if role == 0 else new_service()
            line = await open_service(self._router, credentials, (MESSAGING, NOTIFIER)[role])
            self._served[role] = line
        text = source.piece()[: PAYLOAD_MAX // 3]
        command: Command | bytes = text
        with contextlib.suppress(WireError, RefusedError):
            command = read_command(Reader(text), line.version)
        entity, key = self._entity(source), self._key(source)
        if isinstance(command, SUBS | NSUBS):
            entity, key = line.service_id, line.session_key
        line.send([line.written(Said(command, entity, key))])
        await self._settled(line)

    async def _half_shaken(self, source: Source) -> None:
        """Any hello inside TLS, at either end of the versions."""
        versions = VersionRange(6, 6) if source.byte() % 2 else SMP_VERSIONS
        plan = smp_client_plan(self._router.server.key_hash, versions=versions)
        hello = source.piece()[:PAYLOAD_MAX]
        broken: Any = lambda peer: _AnyHello(hello)  # noqa: E731  # what a plan takes
        await connect(replace(plan, handshake=broken), "127.0.0.1", self._router.port, self._router.network)

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
        self._ids.append(await self._own.subscribe(some_queue()))
        self._keys = [None, self._own.key, new_key(), PrivateKey(Algorithm.ED25519, bytes(range(32)))]

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
                    command, choice = source.piece()[:300], source.byte()
                    command = command.replace(seeds.OWN_TOKEN, self._own.token_id)
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


def session(name: str, promise: str, make: type[Attacked], good: Callable[[], list[bytes]]) -> Target:
    return Target(name, promise, lambda: contextlib.contextmanager(attacked)(make), good)


SERVED = "the bystander is answered and finds everything as it was; nothing is logged as an exception"

SESSIONS = (
    session("router-session", SERVED, AttackedRouter, seeds.router_seeds),
    session("ntf-session", SERVED, AttackedNotifier, seeds.ntf_seeds),
    session("ds-session", SERVED, AttackedDelivery, seeds.ds_seeds),
    session(
        "control-socket",
        "each line is answered in JSON",
        AttackedControl,
        lambda: [b'{"command": "status"}', b"[1, 2", b"{}", b'{"command": "status", "fail": 1}'],
    ),
)
