"""Two people with a queue each and one ratchet between them: what a client program does, in small."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from blindpost.client.calls import Push
from blindpost.client.smp import SmpClient
from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.kem import KemLibrary
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.ratchet import RatchetErrorKind, RatchetStep, decrypt, encrypt_body, encrypt_header
from blindpost.crypto.ratchet_state import (
    MessageKey,
    Ratchet,
    changed_skipped,
    receiving_ratchet,
    sending_ratchet,
)
from blindpost.crypto.x3dh import agree_as_receiver, agree_as_sender, answering_params, proposed_params
from blindpost.crypto.x448 import generate_x448
from blindpost.wire.e2e import E2E_VERSIONS
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import ACK, NEW, SEND, SKEY, SUB
from blindpost.wire.smp.messages import Message, read_message
from blindpost.wire.smp.responses import IDS, MSG
from blindpost.wire.smp.values import QueueMode, QueueRequest, SubMode

PADDED_SIZE = 13_000
"""Every message is as long as every other: a server that counts bytes learns nothing."""

VERSION = E2E_VERSIONS.high


@dataclass
class Mailbox:
    """A queue, as its recipient knows it."""

    recipient_id: bytes
    sender_id: bytes
    key: PrivateKey
    secret: BoxKey


@dataclass
class Person:
    """Somebody who writes and reads letters."""

    name: str
    client: SmpClient
    mailbox: Mailbox
    ratchet: Ratchet | None = None
    skipped: dict[bytes, dict[int, MessageKey]] = field(default_factory=dict)
    peer_id: bytes = b""
    sender_key: PrivateKey = field(
        default_factory=lambda: PrivateKey.generate(Algorithm.ED25519, system_entropy)
    )
    read: list[str] = field(default_factory=list)
    subscribed: SmpClient | None = None
    due: MSG | None = None
    """A letter that came with the answer to the last ACK."""
    repeated: int = 0
    chains: int = 0

    @classmethod
    async def arrive(cls, name: str, client: SmpClient) -> Person:
        """Connect and create a queue to receive through."""
        key = PrivateKey.generate(Algorithm.ED25519, system_entropy)
        dh_key = PrivateKey.generate(Algorithm.X25519, system_entropy)
        request = QueueRequest(QueueMode.MESSAGING)
        ids = await client.send(NEW(key.public, dh_key.public, None, SubMode.ONLY_CREATE, request), key=key)
        assert isinstance(ids, IDS)
        secret = BoxKey.agreed(dh_key, ids.dh_key)
        return cls(name, client, Mailbox(ids.recipient_id, ids.sender_id, key, secret))

    async def knows(self, peer: Person) -> None:
        """Learn the peer's queue, out of band, and secure it as its only sender."""
        self.peer_id = peer.mailbox.sender_id
        await self.client.send(SKEY(self.sender_key.public), self.peer_id, self.sender_key)

    def sealed(self, text: str) -> bytes:
        """The next message of the ratchet."""
        assert self.ratchet is not None
        self.ratchet, body_key = encrypt_header(self.ratchet, None, VERSION)
        return encrypt_body(body_key, text.encode(), PADDED_SIZE)

    async def send(self, body: bytes) -> None:
        """Returns when the router has answered OK."""
        await self.client.send(SEND(True, body), self.peer_id, self.sender_key)

    async def receive(self, count: int) -> None:
        """Read letters until so many new ones came."""
        wanted = len(self.read) + count
        mailbox = self.mailbox
        if self.subscribed is not self.client:
            await self.client.send(SUB(), mailbox.recipient_id, mailbox.key)
            self.subscribed, self.due = self.client, None
        while len(self.read) < wanted:
            if self.due is None:
                event = await self.client.next_event()
                assert isinstance(event, Push)
                assert isinstance(event.response, MSG)
                self.due = event.response
            await asyncio.to_thread(self._open, self.due)
            answer = await self.client.send(ACK(self.due.msg_id), mailbox.recipient_id, mailbox.key)
            self.due = answer if isinstance(answer, MSG) else None

    def _open(self, msg: MSG) -> None:
        assert self.ratchet is not None
        padded = self.mailbox.secret.open_padded(nonce_of(msg.msg_id), msg.enc_body)
        message = read_message(Reader(padded))
        assert isinstance(message, Message), "a queue that is never full"
        opened = decrypt(self.ratchet, self.skipped, message.body, entropy=system_entropy, kem=KemLibrary())
        self.ratchet = opened.ratchet
        self.skipped = changed_skipped(self.skipped, opened.skipped)
        if opened.plaintext is not None:
            self.read.append(bytes(opened.plaintext).decode())
            self.chains += opened.step is RatchetStep.ADVANCE
            return
        assert opened.failure is not None
        assert opened.failure.kind in {
            RatchetErrorKind.DUPLICATE,
            RatchetErrorKind.EARLIER,
            RatchetErrorKind.HEADER,
        }, opened.failure.kind
        self.repeated += 1


def introduce(inviting: Person, joining: Person) -> None:
    """X3DH with sntrup761: the invitation and the answer to it pass out of band here."""
    kem = KemLibrary()
    invitation = proposed_params(VERSION, pq=True, entropy=system_entropy, kem=kem)
    answer = answering_params(invitation.public(VERSION), pq=True, entropy=system_entropy, kem=kem)
    sent = agree_as_sender(answer, invitation.public(VERSION))
    received = agree_as_receiver(invitation, answer.public(VERSION))
    key = generate_x448(system_entropy)
    joining.ratchet = sending_ratchet(VERSION, VERSION, invitation.key2.public, key, sent)
    inviting.ratchet = receiving_ratchet(VERSION, VERSION, invitation.key2, received, pq_support=True)
