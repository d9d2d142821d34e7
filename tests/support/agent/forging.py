"""A peer that sends what it likes: messages made from its real keys, handed to an agent as by a router."""

from __future__ import annotations

import asyncio
import hashlib

from blindpost.agent import Connection, Event, Received
from blindpost.agent.messages.layers import seal_message
from blindpost.agent.model import RcvQueue, SndQueue
from blindpost.agent.store import connections, queues, ratchets
from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.ratchet import encrypt_body, encrypt_header
from blindpost.crypto.ratchet_state import Ratchet
from blindpost.wire.agent.envelopes import MessageEnvelope, write_agent_envelope
from blindpost.wire.agent.messages import AgentMessage, AMessage, AMsg, write_agent_message
from blindpost.wire.agent.sizes import padded_sizes
from blindpost.wire.primitives import encode
from blindpost.wire.smp.messages import Message, write_message
from blindpost.wire.smp.responses import MSG
from blindpost.wire.value import Buffer
from tests.support.agent.agents import Party

DELIVERED_SIZE = 16_104
"""To how many bytes a router pads what it delivers."""


class Forger:
    """Takes over the side of `bob` in a connection, without a network."""

    def __init__(self, alice: Party, ours: Connection, bob: Party, theirs: Connection) -> None:
        self.alice, self.conn_id = alice, ours.id
        db = bob.rt.ground.store.reading
        record = connections.load(db, theirs.id)
        self.number, self.prev_hash = record.last_snd_id, record.last_snd_hash
        self.sizes = padded_sizes(record.agent_version, record.pq_support)
        ratchet = ratchets.find_ratchet(db, theirs.id)
        assert ratchet is not None
        self.ratchet: Ratchet = ratchet
        (self.snd_queue,) = queues.snd_queues(db, theirs.id)
        self._count = 0

    @property
    def rcv_queue(self) -> RcvQueue:
        (queue,) = queues.rcv_queues(self.alice.rt.ground.store.reading, self.conn_id)
        return queue

    # What is sent

    def plain(self, message: AMessage, *, number: int | None = None, prev_hash: bytes | None = None) -> bytes:
        """The next agent message, in its place in the chain unless told otherwise."""
        self.number = self.number + 1 if number is None else number
        content = AgentMessage(self.number, self.prev_hash if prev_hash is None else prev_hash, message)
        encoded = encode(content, write_agent_message)
        self.prev_hash = hashlib.sha256(encoded).digest()
        return encoded

    def encrypted(self, plain: Buffer, *, keep: bool = False) -> bytes:
        """Under the ratchet, which moves on unless it is to be kept as it was."""
        advanced, key = encrypt_header(self.ratchet, None, 3)
        if not keep:
            self.ratchet = advanced
        return encrypt_body(key, plain, self.sizes.message)

    def good(self, body: bytes = b"good") -> bytes:
        return self.enveloped(self.encrypted(self.plain(AMsg(body))))

    def skip(self, count: int) -> None:
        """Messages that are never sent."""
        for _ in range(count):
            self.ratchet, _ = encrypt_header(self.ratchet, None, 3)

    def enveloped(self, encrypted: bytes, *, agent_version: int = 7, queue: SndQueue | None = None) -> bytes:
        envelope = encode(MessageEnvelope(agent_version, encrypted), write_agent_envelope)
        return self.boxed(envelope, queue=queue)

    def boxed(self, envelope: bytes, *, queue: SndQueue | None = None) -> bytes:
        return seal_message(queue or self.snd_queue, envelope, system_entropy)

    # How it arrives

    async def deliver(self, body: Buffer, msg_id: bytes | None = None) -> list[Event]:
        """Hand a body to Alice as her router would; what she is told of it."""
        self._count += 1
        msg_id = msg_id or b"forged" + self._count.to_bytes(18, "big")
        queue = self.rcv_queue
        content = encode(Message(1_750_000_000, True, body), write_message)
        sealed = BoxKey(queue.dh_secret).seal_padded(nonce_of(msg_id), content, DELIVERED_SIZE)
        return await self.handed(MSG(msg_id, sealed))

    async def handed(self, msg: MSG) -> list[Event]:
        await self.alice.rt.reception.process(self.rcv_queue, msg)
        return await self.told()

    async def told(self) -> list[Event]:
        """All that waits; messages are acknowledged."""
        found: list[Event] = []
        while len(self.alice.rt.ground.stream._events):
            event = await self.alice.next()
            found.append(event)
            if isinstance(event, Received):
                await event.msg.ack()
        await asyncio.sleep(0.1)
        return found
