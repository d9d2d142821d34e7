"""Routers and clients for tests of sessions: fixed identities, a recording handler, a server that stops."""

from __future__ import annotations

import asyncio
import functools
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from blindpost.crypto.credentials import Credentials, issue_router, make_authority, make_service
from blindpost.crypto.entropy import Entropy
from blindpost.transport.ends import Server
from blindpost.transport.errors import BlockError, TransportError
from blindpost.transport.handshake import FindService
from blindpost.transport.network import TCP, Network
from blindpost.transport.plan import SessionLimits, SessionPlan
from blindpost.transport.plans import ntf_client_plan, ntf_router_plan, smp_client_plan, smp_router_plan
from blindpost.transport.session import Handler, Session
from tests.support.serving.waiting import until

NOW = 1_760_000_000
HOST = "localhost"
SERVICE_ID = bytes(range(0xD0, 0xE8))


def at_now() -> float:
    return float(NOW)


def seeded(seed: str) -> Entropy:
    return random.Random(seed).randbytes


@functools.cache
def router_credentials(seed: str = "router") -> Credentials:
    entropy = seeded(seed)
    return issue_router(make_authority(NOW - 1000, entropy), HOST, NOW - 1000, entropy)


@functools.cache
def service_credentials(seed: str = "service") -> Credentials:
    return make_service(NOW - 1000, seeded(seed))


def smp_router(**options: Any) -> SessionPlan:
    credentials = options.pop("credentials", None) or router_credentials()
    return smp_router_plan(credentials, now=at_now, **options)


def smp_client(**options: Any) -> SessionPlan:
    key_hash = options.pop("key_hash", None) or router_credentials().fingerprint
    return smp_client_plan(key_hash, now=at_now, **options)


def ntf_router(**options: Any) -> SessionPlan:
    return ntf_router_plan(router_credentials(), now=at_now, **options)


def ntf_client(**options: Any) -> SessionPlan:
    key_hash = options.pop("key_hash", None) or router_credentials().fingerprint
    return ntf_client_plan(key_hash, now=at_now, **options)


QUICK = SessionLimits(
    connect_timeout_s=30, tls_timeout_s=30, handshake_timeout_s=30, close_timeout_s=30, release_after_s=0.05
)


class Recorder(Handler):
    """Keeps all that it is told; answers blocks with the same payload when `echo` is set."""

    def __init__(self, *, echo: bool = False, service_id: bytes | None = SERVICE_ID) -> None:
        self.echo = echo
        self.service_id = service_id
        self.sessions: list[Session] = []
        self.requests: list[FindService] = []
        self.payloads: list[bytes] = []
        self.failures: list[BlockError] = []
        self.drains = 0
        self.reasons: list[TransportError] = []
        self.changed = asyncio.Event()

    def established(self, session: Session) -> None:
        self.sessions.append(session)
        self.changed.set()

    def service_requested(self, session: Session, request: FindService) -> None:
        self.requests.append(request)
        if self.service_id is None:
            session.service_refused()
        else:
            session.service_found(self.service_id)

    def block_received(self, session: Session, payload: bytes) -> None:
        self.payloads.append(bytes(payload))
        if self.echo:
            session.send(payload)
        self.changed.set()

    def block_failed(self, session: Session, error: BlockError) -> None:
        self.failures.append(error)
        self.changed.set()

    def drained(self, session: Session) -> None:
        self.drains += 1
        self.changed.set()

    def closed(self, session: Session, reason: TransportError) -> None:
        self.reasons.append(reason)
        self.changed.set()

    async def until(self, what: str, count: int = 1) -> None:
        """Wait until the list of this name has that many entries."""
        while len(getattr(self, what)) < count:
            self.changed.clear()
            await self.changed.wait()


@asynccontextmanager
async def serving(
    plan: SessionPlan, handler: Handler, network: Network = TCP, connections_max: int = 1000
) -> AsyncIterator[int]:
    """A server on a free port, stopped at the end."""
    server = Server(plan, handler, connections_max)
    port = await server.listen(HOST, 0, network)
    try:
        yield port
    finally:
        await server.stop()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def all_is_left(before: int) -> None:
    """Both ends of every connection are gone: no other task runs, and no more files than before are open."""

    def left() -> tuple[set[asyncio.Task[Any]], int]:
        others = asyncio.all_tasks()
        others.discard(asyncio.current_task())
        return others, open_files()

    with suppress(TimeoutError):
        async with asyncio.timeout(30):
            await until(lambda: left() == (set(), before))
    assert left() == (set(), before)
