"""Putting a message into the store: its number, its place in the chain, its ratchet step, its queues.

Nothing is sent here. The advanced ratchet is durable together with the message, so a retry after a crash
sends the same key material, and no key is ever used for two messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from blindpost.agent.errors import CommandCode, CommandError, InternalError, OutOfStepError, prohibited
from blindpost.agent.model import ConnRecord, MessageKind, SndQueue, Whole
from blindpost.agent.store import connections, messages, ratchets
from blindpost.agent.work.transactions import Tx
from blindpost.crypto.ratchet import encrypt_header
from blindpost.crypto.ratchet_state import Ratchet
from blindpost.wire.agent.envelopes import RatchetKey, write_agent_envelope
from blindpost.wire.agent.messages import (
    AgentConnInfo,
    AgentConnInfoReply,
    AgentMessage,
    AgentRatchetInfo,
    AMessage,
    AMsg,
    AQCont,
    ARcvd,
    EReady,
    Hello,
    QAdd,
    QKey,
    QTest,
    QUse,
    write_agent_message,
)
from blindpost.wire.agent.sizes import PQ_AGENT_VERSION, padded_sizes
from blindpost.wire.e2e import E2EParams
from blindpost.wire.frozen import dataclass
from blindpost.wire.primitives import encode
from blindpost.wire.value import Value

KINDS: dict[type[AMessage], MessageKind] = {
    Hello: MessageKind.HELLO,
    AMsg: MessageKind.A_MSG,
    ARcvd: MessageKind.A_RCVD,
    AQCont: MessageKind.A_QCONT,
    QAdd: MessageKind.QADD,
    QKey: MessageKind.QKEY,
    QUse: MessageKind.QUSE,
    QTest: MessageKind.QTEST,
    EReady: MessageKind.EREADY,
}


@dataclass(frozen=True, slots=True, repr=False)
class Enqueued(Value):
    """A message that is stored; `pq`: its chain has a post-quantum secret in it."""

    internal_id: int
    pq: bool


def targets(queues: Sequence[SndQueue]) -> list[SndQueue]:
    """Where messages go: to the first queue always, to others once they can be used."""
    return [*queues[:1], *(queue for queue in queues[1:] if queue.usable)]


def enqueue(
    tx: Tx,
    whole: Whole,
    message: AMessage,
    *,
    queues: Sequence[SndQueue] | None = None,
    pq_wish: bool | None = None,
    notify: bool | None = None,
    despite_sync: bool = False,
) -> Enqueued:
    """Store a message for all queues that can take it, or for these.

    Refused while the ratchets are not in step, unless it is the message that says they are. Nothing is
    changed when this raises.
    """
    record = connections.load(tx, whole.conn_id)
    if record.sync_state.send_prohibited and not despite_sync:
        raise OutOfStepError
    kind = KINDS[type(message)]
    if record.agent_version < PQ_AGENT_VERSION:
        pq_wish = None
    sizes = padded_sizes(record.agent_version, record.pq_support or bool(pq_wish))
    content = AgentMessage(record.last_snd_id + 1, record.last_snd_hash, message)
    plain = encode(content, write_agent_message)
    if len(plain) > sizes.message_max:
        raise CommandError(CommandCode.LARGE, f"at most {sizes.body_max} bytes fit into one message")
    chosen = targets(whole.snd) if queues is None else queues
    notify = kind.notifies if notify is None else notify
    enqueued = _ratcheted(tx, record, kind, plain, sizes.message, chosen, pq_wish, notify)
    if pq_wish and not record.pq_support:
        connections.set_pq_support(tx, record.conn_id, True)
    return enqueued


def enqueue_confirmation(
    tx: Tx, record: ConnRecord, queue: SndQueue, content: AgentConnInfo | AgentConnInfoReply
) -> Enqueued:
    """Store a confirmation for a new queue; its wish for a KEM is always that of the connection."""
    record = connections.load(tx, record.conn_id)
    reply = isinstance(content, AgentConnInfoReply)
    kind = MessageKind.CONN_INFO_REPLY if reply else MessageKind.CONN_INFO
    sizes = padded_sizes(record.agent_version, record.pq_support)
    plain = encode(content, write_agent_message)
    if len(plain) > sizes.conn_info_max:
        raise CommandError(CommandCode.LARGE, "the information for the peer is too long")
    return _ratcheted(tx, record, kind, plain, sizes.conn_info, [queue], record.pq_support, True)


def enqueue_ratchet_key(tx: Tx, whole: Whole, params: E2EParams, about: bytes = b"") -> Enqueued:
    """Store ratchet keys for the peer. They take a number and a place in the chain, but no ratchet."""
    record = connections.load(tx, whole.conn_id)
    info = ratchet_info(about)
    envelope = RatchetKey(tx.config.versions.agent.high, params, info)
    msg_hash = hashlib.sha256(info).digest()
    internal_id, snd_id = record.next_snd
    body = encode(envelope, write_agent_envelope)
    kind = MessageKind.RATCHET_INFO
    message = messages.NewSndMessage(
        internal_id, snd_id, kind, body, msg_hash, record.last_snd_hash, kind.notifies, pq=False
    )
    _store(tx, record, message, None, targets(whole.snd))
    return Enqueued(internal_id, False)


def ratchet_info(about: bytes) -> bytes:
    """What goes along with ratchet keys."""
    return encode(AgentRatchetInfo(about), write_agent_message)


def _ratcheted(
    tx: Tx,
    record: ConnRecord,
    kind: MessageKind,
    plain: bytes,
    padded_size: int,
    queues: Sequence[SndQueue],
    pq_wish: bool | None,
    notify: bool,
) -> Enqueued:
    ratchet = ratchets.find_ratchet(tx, record.conn_id)
    if ratchet is None:
        raise InternalError("the connection has no ratchet yet")
    if ratchet.snd is None:
        raise prohibited("nothing can be sent before a message was received")
    advanced, body_key = encrypt_header(ratchet, pq_wish, tx.config.versions.e2e.high)
    msg_hash = hashlib.sha256(plain).digest()
    internal_id, snd_id = record.next_snd
    message = messages.NewSndMessage(
        internal_id,
        snd_id,
        kind,
        plain,
        msg_hash,
        record.last_snd_hash,
        notify,
        advanced.snd_kem,
        body_key,
        padded_size,
    )
    _store(tx, record, message, advanced, queues)
    return Enqueued(internal_id, advanced.snd_kem)


def _store(
    tx: Tx,
    record: ConnRecord,
    message: messages.NewSndMessage,
    ratchet: Ratchet | None,
    queues: Sequence[SndQueue],
) -> None:
    messages.insert_snd(tx, record, message, ratchet, [queue.number for queue in queues], tx.now)
    tx.group.names.add((record.conn_id, message.internal_id))
    for queue in queues:
        tx.wake_delivery(queue)
