"""The network half of an agent over routers of a test: queues in its store, and a record of what came."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent import Event, QueueStatus, SessionMode, SessionOptions, SubscriptionOptions
from blindpost.agent.model import ConnMode, RcvQueue
from blindpost.agent.routers.sessions import Session, SessionKey
from blindpost.agent.store import connections, queues
from blindpost.agent.store import subscriptions as rows
from blindpost.agent.store.database import AgentStore
from blindpost.agent.subscriptions.engine import Subscriptions
from blindpost.agent.subscriptions.work import SessionWork
from blindpost.client.calls import Call, Failure
from blindpost.client.options import SmpOptions, Timing
from blindpost.client.smp import SmpClient
from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.crypto.credentials import Credentials
from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.keys import PrivateKey
from blindpost.router.config import RouterRules
from blindpost.store.contract import Durability
from blindpost.testing.network import MemoryNetwork
from blindpost.transport.errors import TransportError
from blindpost.transport.network import TCP, Network
from blindpost.wire.addresses import Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import ACK, NEW, SEND, SUB
from blindpost.wire.smp.messages import Message, read_message
from blindpost.wire.smp.responses import IDS, MSG, Response
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.smp.values import QueueMode, QueueRequest, SubMode
from tests.support.client.scripted_router import ScriptedRouter, listening, queue_key, server_at
from tests.support.router.routers import RunningRouter, new_key, running_router
from tests.support.transport.sessions import at_now, smp_router

USER = 1
SECRET = bytes(range(32))
"""Of queues that no router made."""
_E2E_KEY = new_key(Algorithm.X25519)


@dataclass(frozen=True)
class StoredQueue:
    """What receiving from a queue takes."""

    conn_id: str
    key: PrivateKey
    dh_secret: bytes


@dataclass
class Told:
    """What the application would hear, in order: the word, and what it is about."""

    log: list[tuple[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def _add(self, word: str, what: Any) -> None:
        self.log.append((word, what))
        self.changed.set()

    def up(self, server: Server, conn_ids: Sequence[str]) -> None:
        self._add("UP", tuple(conn_ids))

    def down(self, server: Server, conn_ids: Sequence[str]) -> None:
        self._add("DOWN", tuple(conn_ids))

    def ended(self, server: Server, conn_id: str, rcv_id: bytes) -> None:
        self._add("END", conn_id)

    def deleted(self, server: Server, conn_id: str, rcv_id: bytes) -> None:
        self._add("DELD", conn_id)

    def unreached(self, server: Server, failure: TransportError) -> None:
        """Only logged."""

    def reached(self, server: Server) -> None:
        """Only logged."""

    def refused(self, server: Server, errors: Sequence[tuple[str, Failure]]) -> None:
        self._add("ERRS", tuple(errors))

    def raised(self, event: Event) -> None:
        self.events.append(event)
        self._add(event.name, event)

    @property
    def words(self) -> list[str]:
        """All but what sessions say about themselves."""
        return [word for word, _ in self.log if word not in ("CONNECT", "DISCONNECT")]

    def of(self, word: str) -> list[Any]:
        return [what for said, what in self.log if said == word]

    def conns(self, word: str) -> Counter[str]:
        """How often each connection was named."""
        return Counter(conn_id for conn_ids in self.of(word) for conn_id in conn_ids)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


class AgentNetwork:
    """Subscriptions over a store of their own; every message is opened, noted and acknowledged."""

    def __init__(
        self,
        path: Path,
        *,
        mode: SessionMode = SessionMode.SESSION,
        services: bool = False,
        network: Network = TCP,
        client: SmpOptions | None = None,
        options: SubscriptionOptions | None = None,
        seed: int | str = 0,
    ) -> None:
        self.path = path
        self.store = AgentStore.open(path, durability=Durability.OS)
        self.told = Told()
        self.services = services
        self.messages: list[tuple[bytes, bytes]] = []
        """Recipient id and body of every message, once each, in the order they came."""
        self.repeated = 0
        """Messages that came again."""
        self.acknowledges = True
        self.hold: asyncio.Event | None = None
        """While there is one and it is not set, no message is processed."""
        self.processing = self.processing_max = 0
        self._known: set[bytes] = set()
        self._secrets: dict[bytes, BoxKey] = {}
        self._acks: set[asyncio.Task[None]] = set()
        chosen = replace(client or SmpOptions(), network=network)
        self.subs = Subscriptions(
            self.store,
            self.received,
            self.told,
            SessionOptions(client=chosen, mode=mode),
            options,
            has_service=lambda _: self.services,
            chance=random.Random(seed),
        )

    @property
    def sessions(self) -> Any:
        return self.subs.sessions

    def key(self, server: Server, conn_id: str | None = None) -> SessionKey:
        return self.subs.sessions.key(USER, server, conn_id)

    def work(self, server: Server, conn_id: str | None = None) -> SessionWork:
        return self.subs.work(self.key(server, conn_id))

    def session(self, server: Server, conn_id: str | None = None) -> Session:
        session = self.subs.sessions.current(self.key(server, conn_id))
        assert session is not None
        return session

    def presented(self, server: Server) -> Credentials | None:
        """The service that the present session was connected as."""
        options = self.session(server).client.options
        assert isinstance(options, SmpOptions)
        return None if options.service is None else options.service[1]

    async def close(self) -> None:
        for task in tuple(self._acks):
            task.cancel()
        if self._acks:
            await asyncio.wait(self._acks)
        await self.subs.close()
        self.store.close()

    # Messages

    async def received(self, session: Session, rcv_id: bytes, msg: MSG) -> None:
        self.processing += 1
        self.processing_max = max(self.processing_max, self.processing)
        try:
            if self.hold is not None:
                await self.hold.wait()
            self._note(rcv_id, msg)
        finally:
            self.processing -= 1
        if self.acknowledges:
            task = asyncio.create_task(self._acknowledge(session.key, rcv_id, bytes(msg.msg_id)))
            self._acks.add(task)
            task.add_done_callback(self._acks.discard)

    def _note(self, rcv_id: bytes, msg: MSG) -> None:
        msg_id = bytes(msg.msg_id)
        if msg_id in self._known:
            self.repeated += 1
            return
        self._known.add(msg_id)
        secret = self._secrets.get(rcv_id)
        if secret is None:
            queue = self.queue(rcv_id)
            secret = self._secrets[rcv_id] = BoxKey(queue.dh_secret)
        opened = read_message(Reader(secret.open_padded(nonce_of(msg_id), msg.enc_body)))
        body = bytes(opened.body) if isinstance(opened, Message) else b""
        self.messages.append((rcv_id, body))
        self.told.changed.set()

    async def _acknowledge(self, key: SessionKey, rcv_id: bytes, msg_id: bytes) -> None:
        """ACK until nothing more comes; what fails is acknowledged when the message comes again."""
        queue = self.queue(rcv_id)
        next_id: bytes | None = msg_id
        while next_id is not None:
            call = Call(ACK(next_id), rcv_id, queue.key)
            next_id = None
            try:
                response = await self.subs.sessions.send(USER, key.server, call, entity=queue.conn_id)
            except Exception:
                return
            if isinstance(response, MSG):
                self._note(rcv_id, response)
                next_id = bytes(response.msg_id)

    def queue(self, rcv_id: bytes) -> StoredQueue:
        query = "SELECT conn_id, rcv_private_key, rcv_dh_secret FROM rcv_queues WHERE rcv_id = ?"
        conn_id, key, secret = self.store.reading.sql.execute(query, (rcv_id,)).fetchone()
        return StoredQueue(conn_id, PrivateKey.from_pkcs8(key), secret)

    # Queues

    def insert(
        self, made: Sequence[MadeQueue], *, conn_ids: Sequence[str] | None = None, user_id: int = USER
    ) -> list[RcvQueue]:
        """Put queues into the store, each as a connection of its own unless they are named."""
        inserted = []
        with self.store.transaction() as db:
            for index, queue in enumerate(made):
                conn_id = conn_of(queue) if conn_ids is None else conn_ids[index]
                if connections.find(db, conn_id) is None:
                    connections.insert(
                        db, conn_id, user_id, ConnMode.INVITATION, agent_version=7, pq_support=False
                    )
                stored = RcvQueue(
                    conn_id=conn_id,
                    user_id=user_id,
                    number=queues.next_rcv_number(db, conn_id),
                    server=queue.server,
                    rcv_id=queue.rcv_id,
                    snd_id=queue.snd_id,
                    mode=QueueMode.MESSAGING,
                    key=queue.key,
                    dh_secret=queue.dh_secret,
                    e2e_key=_E2E_KEY,
                    e2e_secret=None,
                    client_version=4,
                    status=QueueStatus.ACTIVE,
                    service_associated=queue.associated,
                )
                queues.insert_rcv(db, stored)
                inserted.append(stored)
        return inserted

    def stored_set(self, server: Server) -> QueueSet:
        """The count and hash that the store keeps for the service."""
        row = rows.service(self.store.reading, USER, server)
        assert row is not None
        return row.queues

    def associated(self, server: Server) -> set[bytes]:
        query = "SELECT rcv_id FROM rcv_queues WHERE rcv_service_assoc = 1 AND deleted = 0"
        return {rcv_id for (rcv_id,) in self.store.reading.sql.execute(query)}


@dataclass
class MadeQueue:
    """A queue that was made on a router."""

    label: str
    server: Server
    rcv_id: bytes
    snd_id: bytes
    key: PrivateKey
    dh_secret: bytes
    associated: bool = False


def conn_of(queue: MadeQueue) -> str:
    """Which connection a queue is given if none is named."""
    return f"conn {queue.label}"


_LABELS = iter(range(10**9))


async def make_queues(client: SmpClient, server: Server, count: int) -> list[MadeQueue]:
    """Queues that nobody is subscribed to, made by any connection."""
    keys = [(new_key(), new_key(Algorithm.X25519)) for _ in range(count)]
    request = QueueRequest(QueueMode.MESSAGING)
    calls = [
        Call(NEW(key.public, dh_key.public, None, SubMode.ONLY_CREATE, request), b"", key)
        for key, dh_key in keys
    ]
    made = []
    for response, (key, dh_key) in zip(await client.send_many(calls), keys, strict=True):
        assert isinstance(response, IDS), response
        label = str(next(_LABELS))
        dh_secret = dh_key.agree(response.dh_key)
        made.append(MadeQueue(label, server, response.recipient_id, response.sender_id, key, dh_secret))
    return made


async def send_to(client: SmpClient, queues_: Sequence[MadeQueue], body: bytes = b"hello") -> list[Response]:
    """One message into each queue."""
    results = await client.send_many([Call(SEND(False, body), queue.snd_id) for queue in queues_])
    answered = [result for result in results if not isinstance(result, Exception)]
    assert len(answered) == len(results), results
    return answered


@dataclass
class World:
    """A router, an agent with queues on it, and somebody who sends to them, over a network in memory."""

    folder: Path
    network: MemoryNetwork
    running: RunningRouter
    sender: SmpClient
    made: list[MadeQueue]
    refs: list[RcvQueue]
    agent: AgentNetwork

    @property
    def server(self) -> Server:
        return self.running.server

    def cut(self, conn_id: str | None = None) -> None:
        """Break the agent's connection; both ends notice."""
        cut(self.agent.session(self.server, conn_id))

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Break the agent's connection, and let it come back at the end of the block."""
        place = ("127.0.0.1", self.running.port)
        listener = self.network._listeners.pop(place)
        self.cut()
        await self.agent.told.until(
            lambda: self.agent.told.log[-1][0] in ("DISCONNECT", "DOWN", "SERVICE_DOWN")
        )
        yield
        self.network._listeners[place] = listener

    async def send(self, body: bytes = b"hello") -> None:
        await send_to(self.sender, self.made, body)

    async def until_received(self, count: int) -> None:
        await self.agent.told.until(lambda: len(self.agent.messages) >= count)


def cut(session: Session) -> None:
    transport: Any = session.client._session
    transport._transport.cut()


@asynccontextmanager
async def agent_world(
    folder: Path, count: int = 5, *, rules: RouterRules | None = None, **agent_options: Any
) -> AsyncIterator[World]:
    network = MemoryNetwork()
    async with running_router(folder / "router", rules, network=network) as running:
        sender = await running.connect(network=network)
        made = await make_queues(sender, running.server, count)
        agent = AgentNetwork(folder / "agent.db", network=network, **agent_options)
        world = World(folder, network, running, sender, made, agent.insert(made), agent)
        try:
            yield world
        finally:
            await world.agent.close()
            await sender.close()


@contextmanager
def commands_sent() -> Iterator[list[Call[Any]]]:
    """Every call of every client meanwhile, in order."""
    seen: list[Call[Any]] = []
    original = SmpClient._submit

    def submit(self: SmpClient, call: Call[Any]) -> Any:
        seen.append(call)
        return original(self, call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SmpClient, "_submit", submit)
        yield seen


@dataclass
class Stage:
    """A router that says what it is told, and an agent with queues on it."""

    router: ScriptedRouter
    agent: AgentNetwork
    made: list[MadeQueue]

    async def until_subs(self, count: int) -> list[Request]:
        def subs() -> list[Request]:
            return [request for request in self.router.requests if isinstance(request.command, SUB)]

        await self.router.until(lambda: len(subs()) >= count)
        return subs()


@asynccontextmanager
async def staged(
    folder: Path,
    count: int,
    answer: Callable[[Request], Response | None] = lambda request: None,
    **agent_options: Any,
) -> AsyncIterator[Stage]:
    """A scripted router, and an agent with queues that the router may say anything about."""
    network, router = MemoryNetwork(), ScriptedRouter(answer)
    async with listening(router, smp_router(), network) as port:
        server = server_at(port)
        made = [
            MadeQueue(str(n), server, b"rcv id %017d" % n, b"snd id %017d" % n, queue_key(n), SECRET)
            for n in range(count)
        ]
        client = SmpOptions(now=at_now, timing=Timing(response_s=30.0))
        agent = AgentNetwork(folder / "agent.db", network=network, client=client, **agent_options)
        try:
            yield Stage(router, agent, made)
        finally:
            await agent.close()


async def until_settled(agent: AgentNetwork, server: Server) -> None:
    """Until no worker has anything to do."""
    work = agent.work(server)
    while work.has_work or work.is_working:  # noqa: ASYNC110 - nobody announces it, and time is virtual
        await asyncio.sleep(1)
