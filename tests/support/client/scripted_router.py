"""A router of few words: real TLS, handshake and codecs, and answers that the test dictates."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ParamSpec

from blindpost.client.options import SmpOptions
from blindpost.client.smp import SmpClient
from blindpost.crypto.credentials import Credentials
from blindpost.crypto.keys import PrivateKey
from blindpost.testing.clock import run_virtual
from blindpost.testing.network import MemoryNetwork
from blindpost.transport import ends
from blindpost.transport.errors import TransportError
from blindpost.transport.handshake import Effect, FindService, Handshake, Peer, Send
from blindpost.transport.network import Network
from blindpost.transport.plan import SessionPlan
from blindpost.transport.session import Handler, Session
from blindpost.wire.addresses import Host, Server
from blindpost.wire.batch import SMP_BATCH_LIMIT, pack
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import Response
from blindpost.wire.smp.transmissions import Request, parse_requests
from blindpost.wire.smp.versions import SMP_VERSIONS, connection_layout
from blindpost.wire.transmission import Layout
from blindpost.wire.transmissions import Refused, response_transmission
from blindpost.wire.value import Buffer
from blindpost.wire.versions import VersionRange
from tests.support.transport.sessions import (
    HOST,
    SERVICE_ID,
    at_now,
    router_credentials,
    seeded,
    service_credentials,
    smp_router,
)

BLOCK_ON_THE_WIRE = 16384 + 22
"""One block as one TLS record."""

P = ParamSpec("P")


def virtual(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test on a virtual clock; it must leave no task and no timer behind."""

    async def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        await test(*args, **kwargs)
        for _ in range(3):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        loop: Any = asyncio.get_running_loop()
        assert [timer for timer in loop._scheduled if not timer.cancelled()] == []

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(checked(*args, **kwargs))

    return run


async def settle() -> None:
    """Let everything happen that needs no time to pass."""
    for _ in range(60):
        await asyncio.sleep(0)


def queue_key(number: int, algorithm: Algorithm = Algorithm.ED25519) -> PrivateKey:
    return PrivateKey.generate(algorithm, seeded(f"queue key {number}"))


def queue_id(number: int) -> bytes:
    return number.to_bytes(24, "big")


def server_at(port: int, key_hash: bytes | None = None, *hosts: str) -> Server:
    fingerprint = router_credentials().fingerprint if key_hash is None else key_hash
    return Server(tuple(map(Host, hosts or (HOST,))), str(port), fingerprint)


class ScriptedRouter(Handler):
    """Records what clients send, and answers with whatever `answer` returns, at once and in one batch."""

    def __init__(self, answer: Callable[[Request], Response | None] = lambda request: None) -> None:
        self.answer = answer
        self.blocks: list[list[Request | Refused]] = []
        self.payload_sizes: list[int] = []
        self.sessions: list[Session] = []
        self.reasons: list[TransportError] = []
        self.services: list[tuple[Session, FindService]] = []
        self.service_id: bytes | None = SERVICE_ID
        """What a service is called; with None it waits for its answer."""
        self.changed = asyncio.Event()

    @property
    def session(self) -> Session:
        return self.sessions[-1]

    @property
    def layout(self) -> Layout:
        return connection_layout(self.session.agreed.version, self.session.agreed.session_id)

    @property
    def requests(self) -> list[Request]:
        return [request for block in self.blocks for request in block if isinstance(request, Request)]

    @property
    def tags(self) -> list[bytes]:
        return [request.command.TAG for request in self.requests]

    def established(self, session: Session) -> None:
        self.sessions.append(session)
        self.changed.set()

    def service_requested(self, session: Session, request: FindService) -> None:
        self.services.append((session, request))
        self.changed.set()
        if self.service_id is not None:
            session.service_found(self.service_id)

    def block_received(self, session: Session, payload: bytes) -> None:
        self.payload_sizes.append(len(payload))
        block = parse_requests(Reader(payload), self.layout, session.agreed.version)
        self.blocks.append(block)
        answers = [
            (request.corr_id, request.entity_id, response)
            for request in block
            if isinstance(request, Request) and (response := self.answer(request)) is not None
        ]
        self.say(*answers)
        self.changed.set()

    def closed(self, session: Session, reason: TransportError) -> None:
        self.reasons.append(reason)
        self.changed.set()

    def say(self, *answers: tuple[bytes, bytes, Response]) -> None:
        """Send these in as few blocks as they need; an empty correlation id makes an event."""
        version = self.session.agreed.version
        self.say_raw(*(response_transmission(self.layout, version, *answer) for answer in answers))

    def say_raw(self, *transmissions: Writer) -> None:
        for payload in pack(transmissions, SMP_BATCH_LIMIT).payloads:
            self.session.send_payload(payload)

    def reply(self, request: Request, response: Response) -> None:
        self.say((request.corr_id, request.entity_id, response))

    def push(self, entity_id: bytes, response: Response) -> None:
        self.say((b"", entity_id, response))

    async def until_requests(self, count: int) -> list[Request]:
        """Wait for that many requests in all."""
        await self.until(lambda: len(self.requests) >= count)
        return self.requests

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


class TappedHandshake(Handshake):
    """A router's handshake whose messages are written down, each as its side and its payload."""

    def __init__(self, inner: Handshake, log: list[tuple[str, bytes]]) -> None:
        self._inner = inner
        self._log = log

    def start(self) -> list[Effect]:
        return self._logged(self._inner.start())

    def _read(self, payload: Buffer) -> list[Effect]:
        self._log.append(("client", bytes(payload)))
        return self._logged(self._inner.received(payload))

    def service_found(self, service_id: bytes) -> list[Effect]:
        return self._logged(self._inner.service_found(service_id))

    def service_refused(self) -> list[Effect]:
        return self._logged(self._inner.service_refused())

    def _logged(self, effects: list[Effect]) -> list[Effect]:
        self._log += [("router", bytes(effect.payload)) for effect in effects if isinstance(effect, Send)]
        return effects


def tapped(plan: SessionPlan, log: list[tuple[str, bytes]]) -> SessionPlan:
    def handshake(peer: Peer) -> Handshake:
        return TappedHandshake(plan.handshake(peer), log)

    return replace(plan, handshake=handshake)


@asynccontextmanager
async def listening(router: Handler, plan: SessionPlan, network: Network) -> AsyncIterator[int]:
    """The port of a router that stops at the end."""
    server = ends.Server(plan, router, connections_max=100)
    port = await server.listen(HOST, 0, network)
    try:
        yield port
    finally:
        await server.stop()


@asynccontextmanager
async def smp_pair(
    answer: Callable[[Request], Response | None] = lambda request: None,
    *,
    versions: VersionRange = SMP_VERSIONS,
    service: ServiceRole | None = None,
    network: MemoryNetwork | None = None,
    credentials: Credentials | None = None,
    **options: Any,
) -> AsyncIterator[tuple[SmpClient, ScriptedRouter]]:
    """A client connected to a scripted router over a network in memory; both are gone at the end."""
    network = network or MemoryNetwork()
    router = ScriptedRouter(answer)
    plan = smp_router(versions=versions, credentials=credentials)
    presented = None if service is None else (service, service_credentials())
    chosen = SmpOptions(network=network, now=at_now, service=presented, **options)
    async with listening(router, plan, network) as port:
        key_hash = None if credentials is None else credentials.fingerprint
        async with await SmpClient.connect(server_at(port, key_hash), chosen) as client:
            await router.until(lambda: bool(router.sessions))
            yield client, router
