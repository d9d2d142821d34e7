"""Two people with agents and a connection, over two routers on a network in memory and virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from blindpost.agent import (
    Agent,
    AgentConfig,
    BrokerError,
    Connected,
    Connection,
    Event,
    Failed,
    RatchetSync,
    ReceiptsReceived,
    Received,
    ReceivedMessage,
    SessionOptions,
    Switched,
    SyncState,
)
from blindpost.agent.core import Core
from blindpost.agent.model import MessageKind, Whole
from blindpost.agent.routers.sessions import Session, SessionKey
from blindpost.agent.store import connections, messages
from blindpost.client.calls import Call
from blindpost.client.errors import ResponseTimeoutError
from blindpost.client.options import SmpOptions
from blindpost.crypto.credentials import Credentials
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.kem import KemKeyPair
from blindpost.router.config import RouterRules
from blindpost.store.contract import Durability
from blindpost.testing.network import MemoryNetwork
from blindpost.transport.errors import ClosedHereError
from blindpost.wire.addresses import RouterAddress, Scheme, Server
from blindpost.wire.agent.envelopes import RatchetKey, read_agent_envelope
from blindpost.wire.agent.messages import AgentMessage, AnyAgentMessage, read_agent_message
from blindpost.wire.e2e import E2EParams
from blindpost.wire.keys import PublicKey
from blindpost.wire.primitives import decode_whole
from blindpost.wire.smp.commands import KEY, SEND, Command
from blindpost.wire.smp.responses import OK, Response
from tests.support.agent.parties import RECORDED_PAIRS
from tests.support.router.routers import RunningRouter, new_credentials, running_router

E = TypeVar("E", bound=Event)
START = 1_800_000_000
"""The time at which tests begin."""


class OldPairs:
    """KEM key pairs that were made long ago, since making one is slow."""

    def __init__(self) -> None:
        self._pairs = itertools.cycle(RECORDED_PAIRS)

    async def make(self) -> KemKeyPair:
        return next(self._pairs)

    async def close(self) -> None:
        pass


def virtual_now() -> float:
    return START + asyncio.get_running_loop().time()


class Place:
    """A router that can be away: stopped and started again at the same address with the same store."""

    def __init__(
        self, folder: Path, network: MemoryNetwork, port: int, rules: RouterRules, entropy: Entropy
    ) -> None:
        self.folder = folder
        self.port = port
        self._network = network
        self._rules = rules
        self._entropy = entropy
        self._credentials: Credentials = new_credentials()
        self._running = AsyncExitStack()
        self.running: RunningRouter | None = None
        folder.mkdir(exist_ok=True)

    async def start(self) -> None:
        router = running_router(
            self.folder,
            self._rules,
            credentials=self._credentials,
            network=self._network,
            port=self.port,
            now=virtual_now,
            entropy=self._entropy,
        )
        self.running = await self._running.enter_async_context(router)

    async def stop(self) -> None:
        self.running = None
        await self._running.aclose()

    @property
    def server(self) -> Server:
        assert self.running is not None
        return self.running.server


@dataclass
class Asked:
    """One command on its way to a router: what, for which queue; of a SEND also the kind and the content."""

    who: str
    word: str
    server: Server
    entity_id: bytes
    content: AnyAgentMessage | None = None
    key: PublicKey | None = None
    """The key that KEY gives."""
    ratchet_key: RatchetKey | None = None

    @property
    def keys(self) -> E2EParams:
        """Of a message with ratchet keys."""
        assert self.ratchet_key is not None
        return self.ratchet_key.e2e

    @property
    def number(self) -> int:
        """Of a message, its place in the chain."""
        assert isinstance(self.content, AgentMessage)
        return self.content.snd_msg_id


class Wire:
    """Sees every command of the agents, in order; holds some back, and loses what routers have accepted."""

    def __init__(self) -> None:
        self.log: list[Asked] = []
        self.held: dict[str, asyncio.Event] = {}
        """By word: these commands wait, and with them whoever gave them."""
        self.lost: list[str] = []
        """By word: the next such message is taken for sent, and never arrives."""
        self.failing: list[str] = []
        """By word: the next such command fails for now."""
        self.refusing: set[str] = set()
        """By word: all such commands fail for now."""

    def hold(self, word: str) -> None:
        self.held[word] = asyncio.Event()

    def let(self, word: str) -> None:
        self.held.pop(word).set()

    def words(self, *words: str) -> list[str]:
        """Of these words, which were said, in order."""
        return [asked.word for asked in self.log if asked.word in words]

    def of(self, word: str) -> list[Asked]:
        return [asked for asked in self.log if asked.word == word]

    def tap(self, who: str, rt: Core) -> None:
        """Be between an agent and its routers."""
        real = rt.sessions.send
        real_session = rt.sessions.session

        async def send(user_id: int, server: Server, call: Call[Command], **options: Any) -> Response:
            asked = self._asked(who, rt, server, call)
            self.log.append(asked)
            if asked.word in self.held:
                await self.held[asked.word].wait()
            if asked.word in self.lost:
                self.lost.remove(asked.word)
                return OK()
            if asked.word in self.failing or asked.word in self.refusing:
                if asked.word in self.failing:
                    self.failing.remove(asked.word)
                raise BrokerError(server, ResponseTimeoutError())
            return await real(user_id, server, call, **options)

        async def session(key: SessionKey, **options: Any) -> Session:
            if "NEW" in self.refusing:
                raise ClosedHereError("the router is away")
            return await real_session(key, **options)

        rt.sessions.send = send  # type: ignore[method-assign]
        rt.sessions.session = session  # type: ignore[method-assign]

    def _asked(self, who: str, rt: Core, server: Server, call: Call[Command]) -> Asked:
        command = call.command
        word = command.TAG.decode()
        if isinstance(command, KEY):
            return Asked(who, word, server, call.entity_id, key=command.key)
        if not isinstance(command, SEND):
            return Asked(who, word, server, call.entity_id)
        db = rt.ground.store.reading
        query = "SELECT conn_id, snd_queue_id FROM snd_queues WHERE snd_id = ?"
        pending = messages.next_delivery(db, *db.sql.execute(query, (call.entity_id,)).fetchone())
        assert pending is not None
        if pending.kind is MessageKind.RATCHET_INFO:
            envelope = decode_whole(pending.body, read_agent_envelope)
            assert isinstance(envelope, RatchetKey)
            return Asked(who, "R", server, call.entity_id, ratchet_key=envelope)
        content = decode_whole(pending.body, read_agent_message)
        return Asked(who, pending.kind.name, server, call.entity_id, content)


class Friend:
    """An agent, all events of its lives, and messages acknowledged as they come unless told otherwise."""

    def __init__(self, path: Path, servers: Iterable[Server], config: AgentConfig, wire: Wire) -> None:
        self.path = path
        self.wire = wire
        self.servers = [RouterAddress(Scheme.SMP, server).text for server in servers]
        self.config = config
        self.events: list[Event] = []
        self.acknowledges = True
        self._agent: Agent | None = None
        self._taking: asyncio.Task[None] | None = None
        self._conn_id = ""

    async def start(self) -> None:
        self._agent = Agent.open(self.path, self.servers, config=self.config)
        await self._agent.__aenter__()
        self.wire.tap(self.path.stem, self.rt)
        self._taking = asyncio.create_task(self._take())

    async def stop(self) -> None:
        """End at whatever point the agent is; what it did not store is lost."""
        agent, self._agent = self._agent, None
        if agent is not None:
            assert self._taking is not None
            self._taking.cancel()
            await asyncio.wait([self._taking])
            await agent.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def restore(self, backup: Path) -> None:
        """Put an older store in the place of the present one, while the agent is stopped; one that does not
        know that it is a copy, as from a snapshot of a machine."""
        assert self._agent is None
        for left in self.path.parent.glob(f"{self.path.name}*"):
            left.unlink()
        shutil.copy(backup, self.path)
        with contextlib.closing(sqlite3.connect(self.path)) as file, file:
            file.execute("DELETE FROM settings WHERE name = 'copy' OR name LIKE 'life%'")

    async def _take(self) -> None:
        async for event in self.agent.events():
            self.events.append(event)
            if self.acknowledges and isinstance(event, Received | ReceiptsReceived):
                await event.msg.ack()

    @property
    def agent(self) -> Agent:
        assert self._agent is not None
        return self._agent

    @property
    def rt(self) -> Core:
        runtime = self.agent._opened
        assert runtime is not None
        return runtime

    @property
    def conn(self) -> Connection:
        return self.agent.connection(self._conn_id)

    @conn.setter
    def conn(self, conn: Connection) -> None:
        self._conn_id = conn.id

    @property
    def whole(self) -> Whole:
        return connections.load_whole(self.rt.ground.store.reading, self._conn_id)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def messages(self) -> list[ReceivedMessage]:
        return [event.msg for event in self.of(Received)]

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def outcomes(self) -> list[str]:
        return [type(message.integrity).__name__ for message in self.messages]

    @property
    def switches(self) -> list[str]:
        return [f"{event.direction.value} {event.phase.value}" for event in self.of(Switched)]

    @property
    def syncs(self) -> list[str]:
        return [event.state.value for event in self.of(RatchetSync)]

    @property
    def sync_errors(self) -> list[str]:
        return [event.error.word for event in self.of(RatchetSync) if event.error is not None]

    @property
    def errors(self) -> list[str]:
        return [event.error.word for event in self.of(Failed)]

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until this holds: as long as it takes in virtual time."""
        async with asyncio.timeout(250):
            while True:
                if condition():
                    return
                await asyncio.sleep(0.02)

    @property
    def state(self) -> SyncState:
        return self.whole.record.sync_state

    def put_state(self, state: SyncState) -> None:
        """As if it had come to this."""
        with self.rt.ground.transaction() as tx:
            connections.set_sync_state(tx, self._conn_id, state)

    def put_version(self, agent_version: int) -> None:
        """As if the peer had last spoken so."""
        with self.rt.ground.transaction() as tx:
            connections.set_version(tx, self._conn_id, agent_version)

    async def got(self, *bodies: bytes) -> None:
        await self.until(lambda: all(body in self.bodies for body in bodies))


class Friends:
    """Alice, who made the link, and Bob, who joined it."""

    def __init__(self, folder: Path, places: list[Place], config: AgentConfig) -> None:
        self.places = places
        servers = [place.server for place in places]
        self.wire = Wire()
        self.alice = Friend(folder / "alice.db", servers, config, self.wire)
        self.bob = Friend(folder / "bob.db", servers, config, self.wire)

    async def connect(self) -> None:
        alice, bob = self.alice, self.bob
        link = await alice.agent.invite()
        alice.conn = link.conn
        bob.conn = await bob.agent.join(link.text)
        await alice.until(lambda: alice.of(Connected))
        await bob.until(lambda: bob.of(Connected))

    async def talk(self, number: object) -> None:
        """One message each way."""
        one, other = f"from alice {number}".encode(), f"from bob {number}".encode()
        await self.alice.conn.send(one)
        await self.bob.conn.send(other)
        await self.bob.got(one)
        await self.alice.got(other)

    async def quiet(self, seconds: float = 10.0) -> None:
        """Let everything settle; in virtual time this takes none."""
        await asyncio.sleep(seconds)


@asynccontextmanager
async def friends(
    folder: Path,
    *,
    pq: bool = False,
    routers: int = 2,
    rules: RouterRules | None = None,
    seed: object = "friends",
    **config: Any,
) -> AsyncIterator[Friends]:
    """Connected, and at rest. Whatever is chance follows from the seed, also ids and keys."""
    network = MemoryNetwork("friends")
    rules = rules or RouterRules()
    chances = [random.Random(f"{seed}/{number}") for number in range(routers + 1)]
    places = [
        Place(folder / f"router{number}", network, 5000 + number, rules, chances[number].randbytes)
        for number in range(routers)
    ]
    chosen = AgentConfig(
        pq=pq,
        sessions=SessionOptions(client=SmpOptions(network=network, entropy=chances[-1].randbytes)),
        durability=Durability.OS,
        pair_maker=OldPairs(),
        now=virtual_now,
        entropy=chances[-1].randbytes,
        chance=chances[-1],
    )
    for place in places:
        await place.start()
    pair = Friends(folder, places, replace(chosen, **config))
    try:
        await pair.alice.start()
        await pair.bob.start()
        await pair.connect()
        await pair.quiet()
        yield pair
    finally:
        await pair.alice.stop()
        await pair.bob.stop()
        for place in places:
            await place.stop()
