"""A whole agent in the place of the recorded one: it gets what was received, and must answer as recorded.

The store starts with the recorded secrets after the joiner's confirmation was sent. Draws of ratchet keys are
played back, so that what the reference agent sent afterwards fits; everything else is the agent's own.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from blindpost.agent import Agent, AgentConfig, Connection, Event, QueueStatus, SessionOptions
from blindpost.agent.core import Core
from blindpost.agent.model import ConnMode, MessageKind, RcvQueue, SndQueue
from blindpost.agent.routers.sessions import Session, SessionKey
from blindpost.agent.store import connections, messages, queues, ratchets
from blindpost.agent.store.database import AgentStore
from blindpost.client.calls import Call
from blindpost.client.options import SmpOptions
from blindpost.client.smp import SmpClient
from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.crypto.kem import Encapsulated, KemKeyPair, KemSource
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.ratchet import encrypt_header
from blindpost.store.contract import Durability
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import RouterAddress, Server
from blindpost.wire.agent.messages import AgentMessage, AMsg, read_agent_message
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Writer, decode_whole
from blindpost.wire.smp.commands import NEW, QUE, SEND, Command
from blindpost.wire.smp.messages import Message, write_message
from blindpost.wire.smp.queue_info import QueueInfo
from blindpost.wire.smp.responses import IDS, INFO, MSG, OK, Response
from blindpost.wire.smp.values import QueueMode
from tests.support.agent.parties import RECORDED_PAIRS
from tests.support.agent.ratchets import seeded
from tests.support.agent.replay import CONFIRMATION_SIZES, Replay, recorded_pair, x25519, x25519_public

CONN = "replayed"
PADDED = 16_104
BOTH = "sent to both queues"


@dataclass
class SentMessage:
    """What the agent sent: its kind in the words of the record, through which queue, and how."""

    kind: str
    snd_id: bytes
    number: int
    notify: bool
    authorized: bool


class Draws:
    """Recorded draws of X448 keys, queue keys and KEM pairs, in their order; others come from a seed."""

    def __init__(self) -> None:
        self._seeded = seeded("replayed agent")
        self.x448: deque[bytes] = deque()
        self.keys: deque[bytes] = deque()
        self.pairs: deque[KemKeyPair] = deque()
        self.encapsulated: deque[Encapsulated] = deque()

    def entropy(self, count: int) -> bytes:
        if count == Algorithm.X448.raw_size and self.x448:
            return self.x448.popleft()
        if count == Algorithm.ED25519.raw_size and self.keys:
            return self.keys.popleft()
        return self._seeded(count)

    def key_pair(self) -> KemKeyPair:
        return self.pairs.popleft()

    def encapsulate(self, public_key: bytes) -> Encapsulated:
        return self.encapsulated.popleft()

    @asynccontextmanager
    async def source(self, wanted: bool = True) -> AsyncIterator[KemSource]:
        yield self

    async def make(self) -> KemKeyPair:
        return RECORDED_PAIRS[0]

    async def close(self) -> None:
        pass

    @property
    def exhausted(self) -> bool:
        return not (self.x448 or self.keys or self.pairs or self.encapsulated)


class ReplayedAgent:
    """One transcript, event by event."""

    def __init__(self, name: str, folder: Path) -> None:
        self.replay = Replay(name)
        self.keys: dict[str, Any] = self.replay.keys
        self.events: list[dict[str, Any]] = self.replay.record["events"]
        self.draws = Draws()
        self.sent: list[SentMessage] = []
        self.told: list[Event] = []
        self.commands: list[str] = []
        self.held: asyncio.Event | None = None
        """While there is one that is not set, messages of the application are not sent."""
        self._path = folder / "agent.db"
        self._new = deque(sorted(name for name in self.keys if name.startswith("rq"))[1:])
        self._agent: Agent | None = None

    async def run(self) -> None:
        self._prepare()
        servers = sorted({queue["server"] for queue in self.keys.values() if "server" in queue})
        config = AgentConfig(
            sessions=SessionOptions(client=SmpOptions(network=MemoryNetwork("nowhere"))),
            durability=Durability.OS,
            pair_maker=self.draws,
            entropy=self.draws.entropy,
        )
        async with Agent.open(self._path, servers, config=config) as agent:
            self._agent = agent
            rt = agent._opened
            assert rt is not None
            self._tap(rt)
            taking = asyncio.create_task(self._take(agent))
            position = 0
            for event in self.events[1:]:
                position = await self._play(rt, event, position)
            assert position == len(self.sent), "nothing more is sent than was recorded"
            assert self.draws.exhausted
            taking.cancel()

    @property
    def conn(self) -> Connection:
        assert self._agent is not None
        return self._agent.connection(CONN)

    async def _take(self, agent: Agent) -> None:
        async for event in agent.events():
            self.told.append(event)

    # The store as it was when the joiner had sent its confirmation

    def _prepare(self) -> None:
        first, ratchet = self.events[0], self.replay.ratchet
        assert ratchet is not None
        assert first["note"].startswith("joiner confirmation")
        pq = CONFIRMATION_SIZES[first["padded_to"]]
        ratchet, _ = encrypt_header(ratchet, pq, 3)
        store = AgentStore.open(self._path, durability=Durability.OS)
        with store.transaction() as db:
            connections.insert(db, CONN, 1, ConnMode.INVITATION, agent_version=7, pq_support=pq)
            queues.insert_rcv(db, self._rcv_queue("rq1"))
            queues.insert_snd(db, self._snd_queue("sq1"))
            ratchets.set_ratchet(db, CONN, ratchet)
            record = connections.load(db, CONN)
            plain = bytes.fromhex(first["agent_message"])
            said = hashlib.sha256(plain).digest()
            sent = messages.NewSndMessage(*record.next_snd, MessageKind.CONN_INFO, b"", said, b"", False, pq)
            messages.insert_snd(db, record, sent, None, (), 0)
        store.close()

    def _rcv_queue(self, name: str) -> RcvQueue:
        queue = self.keys[name]
        return RcvQueue(
            conn_id=CONN,
            user_id=1,
            number=1,
            server=_server(queue),
            rcv_id=bytes.fromhex(queue["recipient_id"]),
            snd_id=bytes.fromhex(queue["sender_id"]),
            mode=QueueMode.MESSAGING,
            key=PrivateKey(Algorithm.ED25519, bytes.fromhex(queue["rcv_auth_priv"])),
            dh_secret=bytes.fromhex(queue["delivery_secret"]),
            e2e_key=x25519(queue["e2e_priv"]),
            e2e_secret=None,
            client_version=4,
            status=QueueStatus.NEW,
        )

    def _snd_queue(self, name: str) -> SndQueue:
        queue = self.keys[name]
        return SndQueue(
            conn_id=CONN,
            user_id=1,
            number=1,
            server=_server(queue),
            snd_id=bytes.fromhex(queue["sender_id"]),
            mode=QueueMode.MESSAGING,
            key=PrivateKey(Algorithm.ED25519, bytes.fromhex(queue["snd_auth_priv"])),
            e2e_public=x25519(queue["e2e_priv"]).public,
            e2e_secret=bytes.fromhex(queue["secret"]),
            client_version=queue["client_version"],
            status=QueueStatus.CONFIRMED,
        )

    # Routers that take everything

    def _tap(self, rt: Core) -> None:
        async def send(user_id: int, server: Server, call: Call[Command], **options: Any) -> Response:
            return await self._answer(rt, call)

        async def session(key: SessionKey) -> Any:
            async def send_many(calls: list[Call[Command]]) -> list[Response]:
                return [await self._answer(rt, call) for call in calls]

            return SimpleNamespace(key=key, client=SimpleNamespace(send_many=send_many))

        replaced = cast(Any, rt)
        replaced.sessions.send = send
        replaced.sessions.session = session
        replaced.subscriptions.created = lambda session, queue: None
        replaced.ground.kem_source = self.draws.source

    async def _answer(self, rt: Core, call: Call[Command]) -> Response:
        command = call.command
        self.commands.append(command.TAG.decode())
        match command:
            case SEND():
                await self._sends(rt, call, command)
            case NEW():
                queue = self.keys[self._new.popleft()]
                ids = (bytes.fromhex(queue["recipient_id"]), bytes.fromhex(queue["sender_id"]))
                return IDS(*ids, x25519_public(queue["router_dh_pub"]), QueueMode.MESSAGING)
            case QUE():
                return INFO(QueueInfo(secured=True, notifier=False, sub=None, size=0, msg=None))
        return OK()

    async def _sends(self, rt: Core, call: Call[Command], command: SEND) -> None:
        db = rt.ground.store.reading
        (queue,) = (one for one in queues.snd_queues(db, CONN) if one.snd_id == call.entity_id)
        pending = messages.next_delivery(db, CONN, queue.number)
        assert pending is not None
        if pending.kind is MessageKind.A_MSG and self.held is not None:
            await self.held.wait()
        query = "SELECT internal_snd_id FROM snd_messages WHERE conn_id = ? AND internal_id = ?"
        (number,) = db.sql.execute(query, (CONN, pending.internal_id)).fetchone()
        kind = "R" if pending.kind is MessageKind.RATCHET_INFO else pending.kind.name
        self.sent.append(SentMessage(kind, queue.snd_id, number, command.notify, call.key is not None))

    # One event of the record

    async def _play(self, rt: Core, event: dict[str, Any], position: int) -> int:
        """Let it happen; returns how many messages must have been sent by then."""
        if event["dir"] == "in":
            following = self.events[event["seq"] + 1 : event["seq"] + 2]
            early = [later for later in following if BOTH in later["note"]]
            if early:
                self.held = asyncio.Event()
                await self._send_body(early[0])
            self._drawn(event)
            if event["note"] == "decryption failed":
                self._go_on_counting(rt, self.events[event["seq"] + 1]["send_number"])
            await self._receive(rt, event)
            if self.held is not None:
                await asyncio.sleep(1)
                self.held.set()
                self.held = None
            await asyncio.sleep(5)
            return position
        note, earlier = event["note"], self.events[: event["seq"]]
        if note == "QADD":
            queue = self.keys[self._new[0]]
            self.draws.keys += [
                bytes.fromhex(queue[key]) for key in ("rcv_auth_priv", "rcv_dh_priv", "e2e_priv")
            ]
            await self.conn.switch()
        elif note.startswith("R: ratchet key, sync started"):
            self._sync_keys()
            await self.conn.synchronize(force=not any("failed" in one["note"] for one in earlier))
        elif note == "A_MSG":
            await self._send_body(event)
        await asyncio.sleep(5)
        self._compare(event, self.sent[position])
        return position + 1

    def _go_on_counting(self, rt: Core, number: int) -> None:
        """Only the ratchet was put back in the record, with messages in between that it leaves out."""
        with rt.ground.transaction() as tx:
            tx.sql.execute("UPDATE connections SET last_internal_snd_msg_id = ?", (number - 1,))

    async def _send_body(self, event: dict[str, Any]) -> None:
        message = decode_whole(bytes.fromhex(event["agent_message"]), read_agent_message)
        assert isinstance(message, AgentMessage)
        assert isinstance(message.message, AMsg)
        await self.conn.send(message.message.body, notify=event["smp_notification_flag"], pq=event["pq_wish"])

    def _compare(self, event: dict[str, Any], sent: SentMessage) -> None:
        kind = event["note"].split(":")[0].split()[0]
        queue = self.keys[event["queue"]]
        assert sent == SentMessage(
            kind,
            bytes.fromhex(queue["sender_id"]),
            event["send_number"],
            event["smp_notification_flag"],
            event["send_authorized"],
        )

    def _drawn(self, event: dict[str, Any]) -> None:
        if event["note"].startswith("R: "):
            if not any("sync started" in one["note"] for one in self.events):
                self._sync_keys()
            if "sD_priv" in self.keys["sync1"]:
                self.draws.x448.append(bytes.fromhex(self.keys["sync1"]["sD_priv"]))
        used = {name: bytes.fromhex(value) for name, value in event.get("random_used", {}).items()}
        if "dh_priv" in used:
            self.draws.x448.append(used["dh_priv"])
        if "kem_pk" in used:
            self.draws.pairs.append(KemKeyPair(used["kem_pk"], used["kem_sk"]))
        if "kem_ct" in used:
            self.draws.encapsulated.append(Encapsulated(used["kem_ct"], used["kem_ss"]))

    def _sync_keys(self) -> None:
        recorded = self.keys["sync1"]
        self.draws.x448 += [bytes.fromhex(recorded["k1_priv"]), bytes.fromhex(recorded["k2_priv"])]
        pair = recorded_pair(recorded)
        if pair is not None:
            self.draws.pairs.append(pair)

    async def _receive(self, rt: Core, event: dict[str, Any]) -> None:
        queue = self.keys[event["queue"]]
        writer = Writer()
        body = bytes.fromhex(event["client_envelope"])
        write_message(writer, Message(event["smp_time"], event["smp_notification_flag"], body))
        msg_id = bytes.fromhex(event["smp_message_id"])
        sealed = BoxKey(bytes.fromhex(queue["delivery_secret"])).seal_padded(
            nonce_of(msg_id), writer.done(), PADDED
        )
        session = Session(1, rt.sessions.key(1, _server(queue)), cast(SmpClient, None))
        await rt.reception.received(session, bytes.fromhex(queue["recipient_id"]), MSG(msg_id, bytes(sealed)))


def _server(queue: dict[str, Any]) -> Server:
    return RouterAddress.from_text(queue["server"]).server
