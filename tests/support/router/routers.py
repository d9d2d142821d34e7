"""A real router on a free port with a store of its own, and what a client needs to talk to it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from blindpost.client.calls import Push
from blindpost.client.options import SmpOptions
from blindpost.client.smp import SmpClient
from blindpost.crypto.authorizers import Verifier
from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.crypto.credentials import Credentials, issue_router, make_authority
from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.engine.inbox import Budget
from blindpost.router.config import RouterRules
from blindpost.router.fronts.fleet import Fronts
from blindpost.router.fronts.fronted import Fronted, FrontedServer
from blindpost.router.server import Router
from blindpost.router.tables import LmdbTables, RouterStore
from blindpost.router.tables_postgres import PostgresTables
from blindpost.store.contract import Durability
from blindpost.testing.clock import VirtualClock
from blindpost.transport import ends as transport
from blindpost.transport.ends import listen
from blindpost.transport.network import TCP, Network
from blindpost.transport.plan import SessionLimits
from blindpost.transport.plans import smp_router_plan
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import KEY, NEW, SEND
from blindpost.wire.smp.messages import ReceivedMessage, read_message
from blindpost.wire.smp.responses import IDS, MSG, Response
from blindpost.wire.smp.values import QueueMode, QueueRequest, SubMode
from blindpost.wire.smp.versions import SMP_VERSIONS
from blindpost.wire.versions import VersionRange

FRONTS = int(os.environ.get("BLINDPOST_FRONTS", "0"))
"""How many fronts every router has: `make fronts` runs the tests of the router with two."""


def new_key(algorithm: Algorithm = Algorithm.ED25519) -> PrivateKey:
    return PrivateKey.generate(algorithm, system_entropy)


def new_credentials() -> Credentials:
    """A new identity for a router."""
    now = int(time.time())
    return issue_router(make_authority(now, system_entropy), "localhost", now, system_entropy)


DATABASE_FILE = "database"


def database_of(folder: Path) -> str | None:
    """The address of the database that stands for this folder, if one does."""
    file = folder / DATABASE_FILE
    return file.read_text() if file.exists() else None


@dataclass
class RunningRouter:
    """A router that is up."""

    router: Router
    server: Server
    port: int
    network: Network = TCP

    async def connect(self, version: int = 20, **options: object) -> SmpClient:
        chosen = SmpOptions(versions=VersionRange(6, version), **options)  # type: ignore[arg-type]
        return await SmpClient.connect(self.server, chosen)


@asynccontextmanager
async def running_router(
    folder: Path,
    rules: RouterRules | None = None,
    *,
    credentials: Credentials | None = None,
    limits: SessionLimits | None = None,
    budget: Budget | None = None,
    verifier: Verifier | None = None,
    now: Callable[[], float] = time.time,
    network: Network = TCP,
    dsn: str | None = None,
    versions: VersionRange = SMP_VERSIONS,
    port: int = 0,
    entropy: Entropy = system_entropy,
    fronts: int = FRONTS,
) -> AsyncIterator[RunningRouter]:
    """A router on loopback until the end of the block; its store is in `folder`, or in a database.

    Fronts have connections of the system only: with them no test gets a network in memory.
    """
    credentials = credentials or new_credentials()
    dsn = dsn or database_of(folder)
    store: RouterStore
    if dsn is None:
        store = LmdbTables(folder, Durability.OS)
    else:
        store = await PostgresTables.open(dsn)
    if fronts:
        network = TCP
        if isinstance(asyncio.get_running_loop(), VirtualClock):
            pytest.skip("a virtual clock has no other processes")
    relay_options = SmpOptions(network=network)
    router = (Fronted if fronts else Router)(
        store,
        rules,
        budget=budget,
        verifier=verifier,
        now=now,
        relay_options=relay_options,
        entropy=entropy,
    )
    running = asyncio.create_task(router.run())
    plan = smp_router_plan(credentials, limits=limits, versions=versions)
    listening: transport.Server
    if isinstance(router, Fronted):
        fleet = router.fronts = Fronts(
            fronts, credentials, plan.limits, "plain", "info", router.peer_lags, router.unwritten, versions
        )
        fleet.start()
        listening = FrontedServer(plan, router)
        port = await listening.listen("127.0.0.1", port, network)
    else:
        listening, port = await listen(plan, router, "127.0.0.1", port, network)
    server = Server((Host("127.0.0.1"),), str(port), credentials.fingerprint)
    try:
        yield RunningRouter(router, server, port, network)
    finally:
        await listening.stop()
        router.stop()
        await running
        if isinstance(router, Fronted):
            await router.fronts.close()
        store.close()


@dataclass
class Queue:
    """A queue and the keys of its recipient and sender."""

    recipient_id: bytes
    sender_id: bytes
    key: PrivateKey
    secret: BoxKey
    sender_key: PrivateKey = field(default_factory=new_key)

    def opened(self, msg: Response) -> ReceivedMessage:
        """What a MSG of this queue says."""
        assert isinstance(msg, MSG)
        return read_message(Reader(self.secret.open_padded(nonce_of(msg.msg_id), msg.enc_body)))


async def new_queue(
    client: SmpClient,
    *,
    secured: bool = False,
    sub_mode: SubMode = SubMode.SUBSCRIBE,
    mode: QueueMode | None = QueueMode.MESSAGING,
    algorithm: Algorithm = Algorithm.ED25519,
) -> Queue:
    """NEW, and KEY if it is to be secured."""
    key, dh_key = new_key(algorithm), new_key(Algorithm.X25519)
    request = None if mode is None else QueueRequest(mode)
    ids = await client.send(NEW(key.public, dh_key.public, None, sub_mode, request), key=key)
    assert isinstance(ids, IDS)
    queue = Queue(ids.recipient_id, ids.sender_id, key, BoxKey.agreed(dh_key, ids.dh_key))
    if secured:
        await client.send(KEY(queue.sender_key.public), queue.recipient_id, queue.key)
    return queue


async def pushed(client: SmpClient) -> Push[Response]:
    """The next event, which must be one that the router sent of its own accord."""
    event = await client.next_event()
    assert isinstance(event, Push)
    return event


def a_message(body: bytes = b"hello", *, notify: bool = False) -> SEND:
    return SEND(notify, body)
