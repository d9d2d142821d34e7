"""The layers of a message from outside in: the router's box, the queue's box, the agent's envelope."""

from __future__ import annotations

from blindpost.agent.model import RcvQueue, SndQueue
from blindpost.crypto.boxes import NONCE_SIZE, BoxKey, nonce_of
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.agent.envelopes import (
    AgentEnvelope,
    ClientEnvelope,
    ClientMessage,
    PublicHeader,
    read_agent_envelope,
    read_client_message,
    write_agent_envelope,
    write_client_envelope,
    write_client_message,
)
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import Reader, decode_whole, encode
from blindpost.wire.queue_addresses import QueueInfo
from blindpost.wire.smp.messages import ReceivedMessage, read_message
from blindpost.wire.smp.responses import MSG
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.value import Buffer, Value


def open_delivery(queue: RcvQueue, msg: MSG) -> ReceivedMessage:
    """What the router delivered; `WireError` if it does not open or parse."""
    return read_message(Reader(BoxKey(queue.dh_secret).open_padded(nonce_of(msg.msg_id), msg.enc_body)))


@dataclass(frozen=True, slots=True, repr=False)
class Inner(Value):
    """What is in a queue's box."""

    sender_key: PublicKey | None
    envelope: AgentEnvelope


def open_client_envelope(secret: bytes, envelope: ClientEnvelope) -> Inner:
    """`CryptoError` if the box is of another secret, another `WireError` if its content cannot be read."""
    message = read_client_message(Reader(BoxKey(secret).open_padded(envelope.nonce, envelope.box)))
    return Inner(message.sender_key, decode_whole(message.agent_envelope, read_agent_envelope))


def seal_message(queue: SndQueue, envelope: Buffer, entropy: Entropy) -> bytes:
    """The body of a SEND for a queue whose secret both sides have."""
    return _sealed(PublicHeader(queue.client_version), queue.e2e_secret, None, envelope, entropy)


def seal_confirmation(queue: SndQueue, envelope: Buffer, entropy: Entropy) -> bytes:
    """The body of the first SEND to a queue: with our half of its secret, and our key if it has none."""
    header = PublicHeader(queue.client_version, queue.e2e_public)
    sender_key = None if queue.mode is QueueMode.MESSAGING else queue.key.public
    return _sealed(header, queue.e2e_secret, sender_key, envelope, entropy)


def seal_invitation(info: QueueInfo, envelope: AgentEnvelope, entropy: Entropy) -> bytes:
    """The body of a SEND to a contact address, under keys that are used once."""
    once = PrivateKey.generate(Algorithm.X25519, entropy)
    header = PublicHeader(info.version, once.public)
    encoded = encode(envelope, write_agent_envelope)
    return _sealed(header, once.agree(info.address.dh_key), None, encoded, entropy)


def _sealed(
    header: PublicHeader, secret: bytes, sender_key: PublicKey | None, envelope: Buffer, entropy: Entropy
) -> bytes:
    content = encode(ClientMessage(sender_key, envelope), write_client_message)
    nonce = entropy(NONCE_SIZE)
    box = BoxKey(secret).seal_padded(nonce, content, header.box_size)
    return encode(ClientEnvelope(header, nonce, box), write_client_envelope)
