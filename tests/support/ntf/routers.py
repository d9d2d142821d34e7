"""A real notification router with a store of its own, and devices that use it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from blindpost.client.errors import RefusedError
from blindpost.client.ntf import NtfClient
from blindpost.client.options import Options
from blindpost.crypto.authorizers import Verifier
from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.credentials import Credentials
from blindpost.crypto.keys import PrivateKey
from blindpost.ntf.model import LedgerState, NtfRules
from blindpost.ntf.ports import Accepted, NmsgReceived, Notifier, Provider, PushOutcome
from blindpost.ntf.push.null import NullProvider
from blindpost.ntf.sealing import Sealer
from blindpost.ntf.server import NtfRouter
from blindpost.ntf.tables import NtfStore, ledger_total
from blindpost.ntf.tables_postgres import PostgresTables
from blindpost.ntf.tables_sqlite import SqliteTables
from blindpost.store.contract import Durability
from blindpost.transport.ends import listen
from blindpost.transport.network import TCP, Network
from blindpost.transport.plans import ntf_router_plan
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.commands import SCHK, SNEW, TCHK, TNEW, TVFY, Command
from blindpost.wire.ntf.pushes import (
    MessagePush,
    Push,
    PushItem,
    VerificationPush,
    decode_items,
)
from blindpost.wire.ntf.responses import ERR, IDSUB, IDTKN, OK, SUB, TKN, Response
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.ntf.versions import MAX_VERSION
from blindpost.wire.smp.errors import Code
from blindpost.wire.versions import VersionRange
from tests.support.router.routers import database_of, new_credentials, new_key

ON_BOTH = pytest.mark.parametrize("store_kind", ["sqlite", "postgres"], indirect=True)
"""For tests that show no claim and still need both stores."""
STORE_KEY = bytes(range(32))
START = 1_700_000_000
SMP = Server((Host("smp.example.org"),), "5223", b"h" * 32)
"""A message router that nobody connects to."""


class Clock:
    """A time of day that a test moves."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Apple:
    """A provider that keeps what it is given and answers as the test says, by default with consent."""

    def __init__(self) -> None:
        self.pushed: list[tuple[DeviceToken, Push]] = []
        self.answer: Callable[[DeviceToken, Push], PushOutcome] = lambda device, push: Accepted()
        self.open = asyncio.Event()
        """While it is cleared, pushes are in the provider's hands without an answer."""
        self.open.set()
        self._came: asyncio.Queue[tuple[DeviceToken, Push]] = asyncio.Queue()

    async def push(self, token: DeviceToken, push: Push) -> PushOutcome:
        self.pushed.append((token, push))
        self._came.put_nowait((token, push))
        await self.open.wait()
        return self.answer(token, push)

    async def close(self) -> None:
        pass

    async def next(self) -> tuple[DeviceToken, Push]:
        """The next push that the test has not seen."""
        return await asyncio.wait_for(self._came.get(), 20)

    @property
    def unseen(self) -> int:
        return self._came.qsize()

    def of_kind(self, kind: type[Push]) -> list[Push]:
        return [push for _, push in self.pushed if isinstance(push, kind)]


class Silent:
    """A subscriber that notes what it is told."""

    def __init__(self) -> None:
        self.subscribed: list[tuple[Server, Notifier]] = []
        self.forgotten: list[tuple[Server, bytes]] = []
        self.busy_with: set[Server] = set()

    def subscribe(self, server: Server, notifiers: Sequence[Notifier]) -> None:
        self.subscribed += [(server, notifier) for notifier in notifiers]

    def forget(self, server: Server, notifier_ids: Sequence[bytes]) -> None:
        self.forgotten += [(server, notifier_id) for notifier_id in notifier_ids]

    def has(self, server: Server) -> bool:
        return server in self.busy_with


@dataclass
class RunningNtf:
    """A notification router that is up."""

    router: NtfRouter
    server: Server
    apple: Apple
    subscriber: Silent
    clock: Clock
    network: Network

    async def connect(self, version: int = MAX_VERSION) -> NtfClient:
        options = Options(versions=VersionRange(1, version), network=self.network)
        return await NtfClient.connect(self.server, options)

    async def settled(self) -> None:
        """Until nothing that is under way is left: no event, no push."""
        while True:
            await self.router.submit(())
            if not self.router.pusher.waiting and not self.router.engine.waiting:
                return

    async def look(self) -> None:
        """What the router does from time to time."""
        await self.router.look()
        await self.settled()

    async def nmsg(self, *queues: NotifiedQueue, meta: bytes = b"m" * 144) -> None:
        """NMSG for these, in one batch."""
        await self.router.submit(
            [NmsgReceived(queue.server, queue.notifier_id, queue.nonce(), meta) for queue in queues]
        )

    def ledger(self) -> dict[str, int]:
        counts = self.router.store.counts()
        return {state.value: ledger_total(counts, state) for state in LedgerState}


async def open_tables(folder: Path, key: bytes = STORE_KEY, dsn: str | None = None) -> NtfStore:
    dsn = dsn or database_of(folder)
    if dsn is None:
        return SqliteTables.open(folder / "ntf.db", Sealer(key), Durability.OS)
    return await PostgresTables.open(dsn, Sealer(key))


@asynccontextmanager
async def running_ntf(
    folder: Path,
    rules: NtfRules | None = None,
    *,
    network: Network = TCP,
    credentials: Credentials | None = None,
    clock: Clock | None = None,
    apple: Apple | None = None,
    providers: Mapping[PushProvider, Provider] | None = None,
    verifier: Verifier | None = None,
    port: int = 0,
) -> AsyncIterator[RunningNtf]:
    """A router on loopback until the end of the block; its store is in `folder`, or in a database."""
    credentials = credentials or new_credentials()
    store = await open_tables(folder)
    clock, apple = clock or Clock(), apple or Apple()
    if providers is None:
        providers = {
            PushProvider.APNS_DEV: apple,
            PushProvider.APNS_PROD: apple,
            PushProvider.APNS_TEST: apple,
            PushProvider.APNS_NULL: NullProvider(),
        }
    router = NtfRouter(store, providers, rules, verifier=verifier, now=clock)
    subscriber = Silent()
    router.subscriber = subscriber
    running = asyncio.create_task(router.run())
    looking = asyncio.create_task(router.look_regularly())
    listening, port = await listen(ntf_router_plan(credentials), router, "127.0.0.1", port, network)
    server = Server((Host("127.0.0.1"),), str(port), credentials.fingerprint)
    try:
        yield RunningNtf(router, server, apple, subscriber, clock, network)
    finally:
        await listening.stop()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        router.stop()
        await running
        await router.pusher.close()
        store.close()


@dataclass
class NotifiedQueue:
    """A queue of a message router, as its recipient tells a notification router about it."""

    notifier_id: bytes
    key: PrivateKey = field(default_factory=new_key)
    server: Server = SMP
    count: int = 0

    def nonce(self) -> bytes:
        """Another one for each notification."""
        self.count += 1
        return derived_nonce(self)


def derived_nonce(queue: NotifiedQueue) -> bytes:
    """That of the queue's newest notification."""
    return hashlib.sha256(queue.notifier_id + queue.count.to_bytes(8, "big")).digest()[:24]


def some_queue(number: int = 1, server: Server = SMP) -> NotifiedQueue:
    return NotifiedQueue(b"notifier" + number.to_bytes(16, "big"), server=server)


@dataclass
class Device:
    """A device with its keys at one router."""

    client: NtfClient
    name: DeviceToken = field(default_factory=lambda: device_token("ab"))
    key: PrivateKey = field(default_factory=new_key)
    dh_key: PrivateKey = field(default_factory=lambda: new_key(Algorithm.X25519))
    token_id: bytes = b""
    secret: BoxKey | None = None

    async def ask(self, command: Command, entity_id: bytes | None = None) -> Response:
        """The router's answer, errors included."""
        try:
            return await self.client.send(
                command, self.token_id if entity_id is None else entity_id, self.key
            )
        except RefusedError as refused:
            return ERR(refused.error)

    async def register(self) -> None:
        answer = await self.ask(TNEW(self.name, self.key.public, self.dh_key.public), b"")
        assert isinstance(answer, IDTKN)
        self.token_id = answer.token_id
        self.secret = BoxKey.agreed(self.dh_key, answer.dh_key)

    def code(self, push: Push) -> bytes:
        assert isinstance(push, VerificationPush)
        assert self.secret is not None
        return bytes(self.secret.open_padded(push.nonce, push.ciphertext))

    def items(self, push: Push) -> tuple[PushItem, ...]:
        assert isinstance(push, MessagePush)
        assert self.secret is not None
        return decode_items(self.secret.open_padded(push.nonce, push.ciphertext))

    async def status(self) -> str:
        answer = await self.ask(TCHK())
        assert isinstance(answer, TKN)
        return answer.status.text

    async def subscribe(self, queue: NotifiedQueue) -> bytes:
        answer = await self.ask(SNEW(self.token_id, queue.server, queue.notifier_id, queue.key.encoded), b"")
        assert isinstance(answer, IDSUB)
        return answer.subscription_id

    async def subscribe_refused(self, queue: NotifiedQueue) -> bool:
        """Whether SNEW is answered AUTH."""
        command = SNEW(self.token_id, queue.server, queue.notifier_id, queue.key.encoded)
        return await self.ask(command, b"") == ERR(Code.AUTH)

    async def sub_status_refused(self, subscription_id: bytes) -> bool:
        return await self.ask(SCHK(), subscription_id) == ERR(Code.AUTH)

    async def sub_status(self, subscription_id: bytes) -> bytes:
        answer = await self.ask(SCHK(), subscription_id)
        assert isinstance(answer, SUB)
        return answer.status.encoded


def device_token(text: str, provider: PushProvider = PushProvider.APNS_PROD) -> DeviceToken:
    return DeviceToken(provider, (text * 32)[:64].encode())


async def active_device(
    running: RunningNtf, name: DeviceToken | None = None, client: NtfClient | None = None
) -> Device:
    """A device that is registered and verified."""
    device = Device(client or await running.connect(), name or device_token("ab"))
    await device.register()
    where, push = await running.apple.next()
    assert where == device.name
    assert await device.ask(TVFY(device.code(push))) == OK()
    return device
