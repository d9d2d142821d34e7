"""An agent as a party, with a small program on it that sends, receives and acknowledges."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from blindpost.agent import (
    Agent,
    AgentConfig,
    AgentError,
    AgentFailed,
    Connected,
    Connection,
    CreatedLink,
    Event,
    Failed,
    InactiveError,
    InternalError,
    ProtocolError,
    RatchetSync,
    ReceiptsReceived,
    Received,
    SendFailed,
    SendsFailed,
    SessionOptions,
    SubscriptionOptions,
    Switched,
    SyncState,
)
from blindpost.agent.routers.proxying import ProxyOptions
from blindpost.agent.store import queues
from blindpost.agent.store.connections import unsettled_sync
from blindpost.agent.store.database import AgentStore
from blindpost.agent.store.subscriptions import servers_with_queues, servers_with_service
from blindpost.agent.store.subscriptions import service as service_at
from blindpost.agent.subscriptions.table import QueueState
from blindpost.client.calls import Call
from blindpost.client.options import SmpOptions
from blindpost.crypto.ids_hash import QueueSet
from blindpost.engine.loop import StoreFailedError
from blindpost.store.contract import Durability
from blindpost.store.sqlite import SqliteStore
from blindpost.testing.agents import ReusedPairs
from blindpost.wire.smp.commands import SEND
from blindpost.wire.smp.versions import MAX_VERSION, MIN_VERSION
from blindpost.wire.versions import VersionRange
from simulation.devices import Device
from simulation.faults import PLANNED
from simulation.hostile import Attack, body_of
from simulation.model import Memory, Model, ViolationError, told
from simulation.party import Party, Surroundings
from simulation.rows import wrong_in_agent

ACK_AGAIN_S = 5.0
OUT_OF_STEP = "ratchet is not synchronized"
"""What a program is told of a message about queues that came while ratchets are agreed; it is sent again."""
FORGOTTEN = ("a receipt for a message that is not known", "RCVD: not a user message")
"""What the program of a restored agent is told of receipts for what was sent since the backup: a key may have
the number now."""
# An ACK that was answered on a full disk is forgotten lazily: its row goes with the next command. One that
# was not answered is seen by the message that its router keeps.
_UNDER_WAY = (
    "SELECT (SELECT count(*) FROM commands WHERE command_tag <> 'ACK')"
    " + (SELECT count(*) FROM snd_message_deliveries WHERE conn_id NOT IN (SELECT value FROM json_each(?)))"
    " + (SELECT count(*) FROM rcv_queues WHERE deleted OR to_subscribe)"
)


LASTING = (
    "SELECT host, rcv_id, status, switch_status, deleted, ntf_id FROM rcv_queues ORDER BY rcv_id",
    "SELECT host, snd_id, status, switch_status FROM snd_queues ORDER BY snd_id",
    "SELECT host, service_cert_hash, service_id FROM client_services ORDER BY host",
    "SELECT device_token, tkn_id, tkn_status, tkn_action FROM ntf_tokens ORDER BY device_token",
    "SELECT conn_id, smp_ntf_id, ntf_sub_id FROM ntf_subscriptions ORDER BY conn_id",
    "SELECT conn_id FROM connections ORDER BY conn_id",
)
"""What a backup must have in common with the store that it is put in place of: with other queues it would be
another agent to its peers, with another token another device to the notification router."""


def let_go(store: AgentStore) -> None:
    """Close the file of a process that died; what it had not committed is gone."""
    sql = store._file.reading
    if sql.in_transaction:
        sql.execute("ROLLBACK")
    sql.close()


def unsubscribed(agent: Agent, *, service: bool = False) -> str | None:
    """Where a subscription of an agent is not yet what it should be."""
    subscriptions, db = agent._core.subscriptions, agent._ground.store.reading
    places = dict.fromkeys(servers_with_queues(db, needed_only=False))
    for user_id, server in places | dict.fromkeys(servers_with_service(db)):
        work = subscriptions.work(subscriptions.sessions.key(user_id, server, None))
        if work.has_work or work.is_working:
            return f"subscribing at {server.hosts[0].text}"
        if service and work.table.active_service is None and (user_id, server) in places:
            return f"no service at {server.hosts[0].text}"
    return None


class AgentParty(Party):
    """One agent over SQLite, and its program."""

    kind = "agent"

    def __init__(
        self,
        run: Surroundings,
        name: str,
        model: Model,
        servers: Sequence[str],
        *,
        proxy: ProxyOptions,
        service: bool,
    ) -> None:
        super().__init__(run, name)
        self.model = model
        self.peers: dict[str, str] = {}
        """The connection with each peer, by its id."""
        self.connected: set[str] = set()
        """The connections that the program was told of."""
        self.told: Counter[str] = Counter()
        self.service = service
        self.attacked = False
        """Whether a peer was hostile."""
        self.lazy_until_s = 0.0
        """Until then the program takes no event."""
        self.device: Device | None = None
        """Where it has notifications."""
        self.ntf_servers: Sequence[str] = ()
        self.version = MAX_VERSION
        """The newest that its program speaks with routers."""
        self.agent: Agent
        self._servers = servers
        self._proxy = proxy
        self._numbers: dict[tuple[str, int], int] = {}
        """The number of each message in the model, by connection and the agent's own number."""
        self._store: AgentStore | None = None
        self._speaking: dict[str, asyncio.Lock] = {}
        self._busy = asyncio.Event()
        self.copies = self.restores = False
        """Whether its file is copied before the next life, or that begins with the backup."""
        self._memory: Memory | None = None
        self.alone: frozenset[str] = frozenset()
        """Connections whose peer takes no part: what is sent there again fills a queue, and waits."""
        self.connected_before: frozenset[object] = frozenset()
        """The connections that it had when the run began."""
        self.was_restored = False
        self.out_of_step: set[str] = set()
        """Peers whose ratchets do not fit since this agent, or theirs, was restored."""

    # Life

    def config(self) -> AgentConfig:
        entropy = self.entropy()
        versions = VersionRange(MIN_VERSION, self.version)
        client = SmpOptions(network=self.run.network, now=self.now, entropy=entropy, versions=versions)
        return AgentConfig(
            sessions=SessionOptions(client=client),
            subscriptions=SubscriptionOptions(page=7),
            proxy=self._proxy,
            service=self.service,
            durability=Durability.OS,
            pair_maker=ReusedPairs(),
            now=self.now,
            entropy=entropy,
            chance=self.chance(),
        )

    async def live(self) -> None:
        self._speaking = {}
        self._hostile = random.Random(f"{self.run.seed}/{self.name}/{self.lives}/hostile").randbytes
        if self.copies:
            self.copies = False
            self._copy()
        elif self.restores:
            self.restores = False
            self._put_back()
        opened = Agent.open(self.path, self._servers, config=self.config(), ntf_servers=self.ntf_servers)
        async with opened as agent:
            self.agent = agent
            self._store = store = agent._ground.store
            store._file.commit = self._watched(store._file)  # type: ignore[method-assign]
            app = None if self.device is None else asyncio.create_task(self.device.run())
            with contextlib.suppress(InactiveError):  # it was closed meanwhile
                async for event in agent.events():
                    await self._awake()
                    await self._take(event)
            if app is not None:
                app.cancel()

    @property
    def path(self) -> Path:
        return self.run.folder / f"{self.name}.db"

    @property
    def _backup(self) -> Path:
        return self.run.folder / f"{self.name}.backup"

    def back_up(self) -> None:
        """Keep what is stored now in a backup that the agent makes."""
        self._memory = None
        self._backup.unlink(missing_ok=True)
        try:
            self.agent.backup(self._backup)
        except (AgentError, StoreFailedError) as error:
            self.run.note(f"{self.name} cannot be backed up: {error}")
        else:
            self._memory = self.model.kept(self.name)

    def _copy(self) -> None:
        """The same while the agent is not running, by somebody who copies its file."""
        self._backup.unlink(missing_ok=True)
        with (
            contextlib.closing(sqlite3.connect(self.path)) as file,
            contextlib.closing(sqlite3.connect(self._backup)) as kept,
        ):
            file.backup(kept)
        self._memory = self.model.kept(self.name)

    def _put_back(self) -> None:
        """The backup in place of the store, if it has the same queues."""
        if self._memory is None or (kept := lasting(self.path)) != lasting(self._backup):
            return
        if connections(kept) - self.connected - self.connected_before:
            return  # a connection is being made
        shutil.copy(self._backup, self.path)
        for left in ("-wal", "-shm"):
            self.path.with_name(self.path.name + left).unlink(missing_ok=True)
        self.counts["agent that forgot what it knew"] += 1
        self.run.note(f"{self.name} has forgotten what came after its backup")
        self.model.restored(self.name, self.peers, self._memory)
        self.out_of_step = set(self.peers)
        self.was_restored = True

    async def _awake(self) -> None:
        """The program has something else to do for now."""
        if self.run.loop.time() < self.lazy_until_s:
            self._busy = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._busy.wait(), self.lazy_until_s - self.run.loop.time())

    def _watched(self, file: SqliteStore) -> Callable[[], None]:
        """Commits that the process may die at, or that the disk has no room for."""
        real = file.commit
        return lambda: self.committing(file.rollback, real)

    async def end(self) -> None:
        await self.agent.close()

    def files_closed(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            let_go(store)

    def mended(self) -> None:
        self.empty_disk()
        self.lazy_until_s = 0.0
        self._busy.set()

    @property
    def ready(self) -> bool:
        """Whether the program can ask its agent for something."""
        return self.alive and self._store is not None

    # The program

    async def _take(self, event: Event) -> None:
        self.told[event.name] += 1
        match event:
            case Received(_, msg):
                try:
                    channel, number = self.model.came(self.name, msg.body, type(msg.integrity).__name__)
                except ViolationError as violation:
                    self.run.violated(str(violation))
                    return
                self.run.note(f"{self.name} is given {msg.body.decode()}")
                channel.acknowledging.add(number)
                await self._acknowledge(event.conn, msg.id, b"" if number % 3 == 0 else None)
                channel.acknowledged.add(number)
            case ReceiptsReceived(conn, msg, _):
                await self._acknowledge(conn, msg.id, None)
            case SendFailed(conn, msg_id, error):
                self._failed(conn, [msg_id], error)
            case SendsFailed(conn, msg_ids, error):
                self._failed(conn, msg_ids, error)
            case Failed(_, ProtocolError() as error) if self.attacked:
                self.run.note(f"{self.name} is told what is wrong with a message: {error}")
            case Failed(_, ProtocolError() as error) if OUT_OF_STEP in str(error):
                self.run.note(f"{self.name} is told that a step of a rotation must wait: {error}")
            case Failed(_, InternalError() | ProtocolError() as error) if self._has_forgotten(error):
                self.run.note(f"{self.name} is told of a receipt for what it has forgotten")
            case Failed(_, error) | AgentFailed(error) if PLANNED not in str(error):
                self.run.violated(f"{self.name} is told of a failure: {error!r}")
            case Switched(_, direction, phase):
                self.run.note(f"{self.name} is told: rotation {direction.value} {phase.value}")
            case RatchetSync(conn, state, _):
                self.run.note(f"{self.name} is told: ratchets {state.value}")
                for peer in [peer for peer in self.peers if self.peers[peer] == conn.id]:
                    if state is SyncState.OK and peer in self.out_of_step:
                        self.out_of_step.discard(peer)
                        self.model.in_step(self.name, peer)
                    if state is SyncState.REQUIRED and self.was_restored:
                        await self.synchronise(peer, force=False)  # a router kept what the peer sent before
            case Connected(conn):
                self.connected.add(conn.id)
                self.run.note(f"{self.name} is connected")

    async def _acknowledge(self, conn: Connection, msg_id: int, receipt: bytes | None) -> None:
        """Until the agent has taken it: a full disk is not the end of the program."""
        while True:
            try:
                await conn.ack(msg_id, receipt)
            except StoreFailedError:
                await asyncio.sleep(ACK_AGAIN_S)
            else:
                return

    def _failed(self, conn: Connection, msg_ids: Sequence[int], error: AgentError) -> None:
        self.run.violated(f"{self.name} is told that {len(msg_ids)} messages will not be sent: {error!r}")

    def conn(self, peer: str) -> Connection:
        return self.agent.connection(self.peers[peer])

    async def send(self, peer: str, count: int) -> None:
        """Say something, several times."""
        async with self._speaking.setdefault(peer, asyncio.Lock()):
            for _ in range(count):
                body = self.model.say(self.name, peer)
                channel = self.model.channel(self.name, peer)
                number = channel.said
                try:
                    await self.conn(peer).send(body)
                except (AgentError, StoreFailedError) as error:
                    self.run.note(f"{self.name} may not send {number}: {error}")
                    channel.refused.add(number)
                else:
                    channel.taken.add(number)

    async def switch(self, peer: str) -> None:
        """Move what is received from this peer to another queue."""
        try:
            await self.conn(peer).switch()
        except (AgentError, StoreFailedError) as error:
            self.run.note(f"{self.name} may not switch: {error}")

    async def invite(self) -> CreatedLink | None:
        """A link to hand out, if one can be made now."""
        try:
            return await self.agent.invite()
        except (AgentError, StoreFailedError) as error:
            self.run.note(f"{self.name} could not invite: {error}")
            return None

    async def join(self, link: str) -> Connection | None:
        try:
            return await self.agent.join(link)
        except (AgentError, StoreFailedError) as error:
            self.run.note(f"{self.name} could not join: {error}")
            return None

    async def synchronise(self, peer: str, *, force: bool = True) -> None:
        """Agree with this peer on a new ratchet."""
        try:
            await self.conn(peer).synchronize(force=force)
        except (AgentError, StoreFailedError) as error:
            self.run.note(f"{self.name} may not synchronise: {error}")

    def renew(self) -> None:
        """A service takes a new certificate."""
        if self.service and self.ready:
            try:
                self.agent.renew_service()
            except (AgentError, StoreFailedError) as error:
                self.run.note(f"{self.name} may not take a new certificate: {error}")

    async def attack(self, peer: str, attack: Attack, before: Mapping[bytes, bytes]) -> None:
        """Send the peer what no agent sends, with the keys that we have."""
        assert self._store is not None
        try:
            queue = queues.snd_queues(self._store.reading, self.peers[peer])[0]
            body = body_of(attack, queue, before.get(queue.snd_id), self._hostile)
            call = Call(SEND(False, body), queue.snd_id, queue.key)
            await self.agent._core.subscriptions.sessions.send(queue.user_id, queue.server, call)
        except AgentError as error:
            self.run.note(f"{self.name} could not attack: {error}")

    def _has_forgotten(self, error: AgentError) -> bool:
        return self.was_restored and any(words in str(error) for words in FORGOTTEN)

    # What it looks like from outside

    def unsettled(self) -> str | None:
        """What is still under way, if anything."""
        if not self.alive or self._store is None:
            return "it is not alive"
        if waiting := under_way(self._store, self.alone):
            return f"{waiting} commands, deliveries or queues are under way"
        if self.agent._core.commands.tasks:
            return "commands are under way"
        if self.out_of_step:
            return f"it was restored, and was not told that ratchets agree with {told(self.out_of_step)}"
        for peer in self.peers:
            stats = self.conn(peer).stats
            if stats.sync_state is not SyncState.OK:
                return f"ratchets with {peer}: {stats.sync_state.value}"
            if any(queue.switch for queue in stats.rcv) or any(queue.switch for queue in stats.snd):
                return f"rotation with {peer}"
            if len(stats.rcv) != 1 or len(stats.snd) != 1:
                return f"{len(stats.rcv)} and {len(stats.snd)} queues with {peer}"
            if not self.service and stats.rcv[0].subscription is not QueueState.ACTIVE:
                return f"the queue for {peer} is not subscribed"
        if self.device is not None and (why := self.device.unsettled()) is not None:
            return why
        return unsubscribed(self.agent, service=self.service)

    async def wrong(self) -> str | None:
        assert self._store is not None
        return wrong_in_agent(self._store.reading.sql)

    @property
    def offers_keys(self) -> bool:
        """Whether it waits for a new ratchet on a connection that was made by the way: if a router forgot it
        the peer may not have it, and keys are offered in vain."""
        assert self._store is not None
        return any(conn_id not in self.peers.values() for conn_id, _ in unsettled_sync(self._store.reading))

    def services(self) -> list[tuple[str, bytes, QueueSet]]:
        """Where it is a service, under which id and with which queues."""
        assert self._store is not None
        db = self._store.reading
        found = []
        for user_id, server in servers_with_service(db):
            service = service_at(db, user_id, server)
            assert service is not None
            host = server.hosts[0].text
            if service.service_id is not None:
                mine = QueueSet.of(rcv_id for place, rcv_id in self.receives_from() if place == host)
                found.append((host, service.service_id, mine))
        return found

    def receives_from(self) -> list[tuple[str, bytes]]:
        """Host and recipient id of each queue it receives from."""
        assert self._store is not None
        rows = self._store.reading.sql.execute("SELECT host, rcv_id FROM rcv_queues").fetchall()
        return [(host, bytes(rcv_id)) for host, rcv_id in rows]


def lasting(path: Path) -> list[list[tuple[object, ...]]]:
    with contextlib.closing(sqlite3.connect(path)) as file:
        return [file.execute(query).fetchall() for query in LASTING]


def under_way(store: AgentStore, alone: Collection[str] = ()) -> int:
    """How many commands, deliveries and queues wait for something; not what waits for an absent peer."""
    (waiting,) = store.reading.sql.execute(_UNDER_WAY, (json.dumps(sorted(alone)),)).fetchone()
    return int(waiting)


def connections(kept: Sequence[Sequence[tuple[object, ...]]]) -> frozenset[object]:
    """The ids of all connections."""
    return frozenset(row[0] for row in kept[-1])
