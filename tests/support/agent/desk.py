"""A connection in a store without a network, what its peer sends, and what comes of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from blindpost.agent import Event, Failed, Received
from blindpost.agent.connection import Calls, Connection
from blindpost.agent.messages.acking import ACK_TAG
from blindpost.agent.messages.flows import Flow
from blindpost.agent.messages.receiving import Reception
from blindpost.agent.model import ConnMode, QueueStatus, RcvQueue, Whole
from blindpost.agent.routers.sessions import Session, SessionKey
from blindpost.agent.store import connections, queues, ratchets
from blindpost.agent.store.database import AgentStore
from blindpost.agent.store.intake import Came, Record
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.key_pairs import KemKeyPool
from blindpost.agent.work.transactions import Tx
from blindpost.client.smp import SmpClient
from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.crypto.kem import KemLibrary, KemSource
from blindpost.testing.clock import run_virtual
from blindpost.wire.agent.envelopes import (
    AgentEnvelope,
    ClientEnvelope,
    ClientMessage,
    MessageEnvelope,
    PublicHeader,
    write_agent_envelope,
    write_client_envelope,
    write_client_message,
)
from blindpost.wire.agent.messages import AgentMessage, AMessage, write_agent_message
from blindpost.wire.keys import PublicKey
from blindpost.wire.primitives import encode
from blindpost.wire.smp.messages import Message, ReceivedMessage, write_message
from blindpost.wire.smp.responses import MSG
from blindpost.wire.smp.versions import MSG_PADDED_SIZE
from tests.support.agent.parties import joined
from tests.support.agent.rows import CONFIG, CONN, NOW, PEER_KEY, ROUTER, rcv_queue, snd_queue

VERSION = 7
SESSION = SessionKey(1, ROUTER)
HEADER, KEYED = PublicHeader(4), PublicHeader(4, PEER_KEY.public)


class Pairs:
    """Whoever asks for a KEM key pair."""

    def __init__(self) -> None:
        self.asked = 0

    @asynccontextmanager
    async def source(self) -> AsyncIterator[KemSource]:
        self.asked += 1
        yield KemLibrary()


class Drains:
    """Old queues whose last message was waited for."""

    def __init__(self) -> None:
        self.queues: list[int] = []

    async def drained(self, queue: RcvQueue) -> None:
        self.queues.append(queue.number)


class Desk:
    """One connection, what its peer sends, and what comes of it."""

    def __init__(self, store: AgentStore) -> None:
        self.pairs, self.drains = Pairs(), Drains()
        self.store = store
        self.ground = self.new_ground()
        self.flow = Flow()
        self._reception = Reception(self.ground, cast(Any, self.drains), self.flow)
        self.events: list[Event] = []
        self.hurried: list[int] = []
        self.peer, own = joined()
        self._said, self._hash, self._sent = 0, b"", 0
        self.queue = rcv_queue()
        with self.change() as tx:
            connections.insert(tx, CONN, 1, ConnMode.INVITATION, agent_version=VERSION, pq_support=False)
            ratchets.set_ratchet(tx, CONN, own.ratchet)

    def new_ground(self) -> Ground:
        """What one life of an agent builds on."""
        pool = cast(KemKeyPool, self.pairs)
        ground = Ground(self.store, CONFIG, (), pool, lambda conn_id: Connection(cast(Calls, None), conn_id))
        ground.work.events.listen(lambda told: self.events.append(told[0]))
        ground.work.hurry.listen(lambda key: self.hurried.append(key[1]))
        return ground

    def change(self) -> AbstractContextManager[Tx]:
        return self.ground.transaction()

    def receives(self, *, duplex: bool = True, **fields: Any) -> None:
        """The queue that messages come from, and one to the peer."""
        self.queue = replace(self.queue, **fields)
        with self.change() as tx:
            queues.insert_rcv(tx, self.queue)
            if duplex:
                queues.insert_snd(tx, snd_queue())

    # What the peer says

    def plain(self, message: AMessage) -> bytes:
        self._said += 1
        plain = encode(AgentMessage(self._said, self._hash, message), write_agent_message)
        self._hash = hashlib.sha256(plain).digest()
        return plain

    def envelope(self, message: AMessage, version: int = VERSION) -> MessageEnvelope:
        return MessageEnvelope(version, self.peer.send(self.plain(message)))

    def delivered(self, message: ReceivedMessage) -> MSG:
        """As the router delivers it."""
        self._sent += 1
        broker_id = b"broker %d" % self._sent
        plain = encode(message, write_message)
        sealed = BoxKey(self.queue.dh_secret).seal_padded(nonce_of(broker_id), plain, MSG_PADDED_SIZE)
        return MSG(broker_id, sealed)

    def sealed(
        self,
        envelope: AgentEnvelope | bytes,
        *,
        header: PublicHeader = HEADER,
        sender_key: PublicKey | None = None,
        secret: bytes | None = None,
    ) -> MSG:
        """In the queue's box."""
        inner = envelope if isinstance(envelope, bytes) else encode(envelope, write_agent_envelope)
        plain = encode(ClientMessage(sender_key, inner), write_client_message)
        if secret is None:
            secret = self.queue.e2e_secret or self.queue.e2e_key.agree(PEER_KEY.public)
        box = BoxKey(secret).seal_padded(bytes(24), plain, header.box_size)
        body = encode(ClientEnvelope(header, bytes(24), box), write_client_envelope)
        return self.delivered(Message(NOW - 1, True, body))

    def said(self, message: AMessage, version: int = VERSION) -> MSG:
        return self.sealed(self.envelope(message, version))

    # How it is taken

    async def bring(self, msg: MSG, rcv_id: bytes | None = None, key: SessionKey = SESSION) -> float:
        session = Session(1, key, cast(SmpClient, None))
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(600):
            await self._reception.received(session, rcv_id or self.queue.rcv_id, msg)
        return asyncio.get_running_loop().time() - began

    def take(self, msg: MSG, rcv_id: bytes | None = None, key: SessionKey = SESSION) -> float:
        """The router has delivered it; the seconds until it was taken."""
        return run_virtual(self.bring(msg, rcv_id, key))

    def start(self, *left: Record) -> None:
        """The agent starts, and finds this beside its store."""
        self.store.intake.left = left
        self._reception.receive_again()

    def called(self, msg: MSG) -> Came:
        """What a message is called in the log."""
        return Came(CONN, self.queue.number, msg.msg_id)

    def process(self, queue: RcvQueue, msg: MSG) -> None:
        """It is processed, although something has happened to the queue since it was found."""
        run_virtual(self._reception.process(queue, msg))

    # What came of it

    @property
    def in_hand(self) -> int:
        """Messages that are being taken."""
        return len(self._reception._in_hand)

    @property
    def acks(self) -> int:
        query = "SELECT count(*) FROM commands WHERE command_tag = ?"
        return int(self.store.reading.sql.execute(query, (ACK_TAG,)).fetchone()[0])

    @property
    def sent(self) -> list[str]:
        """The kinds of what waits for the peer."""
        query = "SELECT m.msg_type FROM snd_message_deliveries d JOIN messages m USING (conn_id, internal_id)"
        return [kind for (kind,) in self.store.reading.sql.execute(query)]

    @property
    def whole(self) -> Whole:
        return connections.load_whole(self.store.reading, CONN)

    @property
    def status(self) -> QueueStatus:
        return self.whole.rcv[0].status

    def refused(self) -> str:
        """Why: it was told, and acknowledged, and nothing else came of it."""
        (event,) = self.events
        assert isinstance(event, Failed)
        assert self.acks == 1
        self.events.clear()
        return str(event.error)

    def heard(self) -> list[bytes]:
        """The bodies that the program was given, and nothing else."""
        bodies = [event.msg.body for event in self.events if isinstance(event, Received)]
        assert len(bodies) == len(self.events), self.events
        self.events.clear()
        return bodies
