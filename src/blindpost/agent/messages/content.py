"""What is inside the ratchet: messages for the application, receipts, and messages between agents."""

from __future__ import annotations

import hashlib
from enum import Enum

from blindpost.agent.connection import Connection, ReceivedMessage
from blindpost.agent.errors import InternalError, ProtocolCode, ProtocolError
from blindpost.agent.events import (
    DeliveryReceipt,
    QueueHasRoom,
    ReceiptsReceived,
    ReceiptStatus,
    Received,
)
from blindpost.agent.handshake.allowing import hello_received
from blindpost.agent.messages.integrity import dump_integrity, load_integrity, placed
from blindpost.agent.messages.sending import KINDS
from blindpost.agent.model import ConnType, MessageKind, RcvQueue, RcvSwitch, Whole
from blindpost.agent.rotation import rotation
from blindpost.agent.store import awaited, connections, messages
from blindpost.agent.store.database import Db
from blindpost.agent.store.messages import RcvMessage
from blindpost.agent.store.rotation import is_left
from blindpost.agent.sync import synchronisation
from blindpost.agent.work.transactions import Tx
from blindpost.crypto.ratchet_state import Ratchet
from blindpost.wire.agent.messages import (
    AgentMessage,
    AMsg,
    AQCont,
    ARcvd,
    EReady,
    Hello,
    QAdd,
    QKey,
    QTest,
    QUse,
    Receipt,
)
from blindpost.wire.frozen import dataclass
from blindpost.wire.queue_addresses import SenderAddress, same_queue
from blindpost.wire.value import Buffer, Value

_TWO_QUEUES = (RcvSwitch.SENDING_QUSE, RcvSwitch.RECEIVED_MESSAGE)
"""In these states of our rotation messages may come through the old queue and the new one."""


class Fate(Enum):
    """Whether a message is acknowledged by the agent, or by the application when it is done with it."""

    ACK = "ack"
    PENDING = "pending"


@dataclass(frozen=True, slots=True, repr=False)
class Arrival(Value):
    """How a message came; `had_chain`: whether we could send before it was read."""

    queue: RcvQueue
    broker_id: bytes
    broker_ts: int
    encrypted_hash: bytes
    had_chain: bool
    ratchet: Ratchet | None
    """The step that opened it, where it is stored together with the message."""


def received(
    tx: Tx, whole: Whole, arrival: Arrival, message: AgentMessage, plain: Buffer, *, pq: bool
) -> Fate:
    """Take a message into the chain, then do what it says. Where that fails, it was received nevertheless."""
    conn_id = whole.conn_id
    record = connections.load(tx, conn_id)
    msg_hash, before = hashlib.sha256(plain).digest(), awaited.find(tx, conn_id)
    place = placed(
        record.last_external_id,
        record.last_rcv_hash,
        before,
        message.snd_msg_id,
        message.prev_msg_hash,
        msg_hash,
        two_queues=any(queue.switch in _TWO_QUEUES for queue in whole.rcv),
        new_ratchet=isinstance(message.message, EReady),
    )
    if place.awaited != before:
        awaited.put(tx, conn_id, place.awaited)
    last_id, last_hash = record.last_external_id, record.last_rcv_hash
    if place.is_last:
        last_id, last_hash = message.snd_msg_id, msg_hash
    internal_id, rcv_id = record.next_rcv
    body = message.message
    stored = RcvMessage(
        internal_id=internal_id,
        rcv_id=rcv_id,
        kind=KINDS[type(body)],
        body=bytes(body.body) if isinstance(body, AMsg) else b"",
        received_at=tx.now,
        pq=pq,
        external_id=message.snd_msg_id,
        broker_id=arrival.broker_id,
        broker_ts=arrival.broker_ts,
        queue_number=arrival.queue.number,
        msg_hash=msg_hash,
        prev_hash=message.prev_msg_hash,
        integrity=dump_integrity(place.integrity),
    )
    if isinstance(body, AMsg):
        messages.insert_rcv(tx, record, stored, (last_id, last_hash), arrival.encrypted_hash, arrival.ratchet)
        tx.group.names.add((conn_id, internal_id))
        conn = tx.handle(conn_id)
        tx.emit(Received(conn, shown(conn, stored)))
        return Fate.PENDING
    connections.set_last_rcv(tx, record, last_id, last_hash)
    messages.remember_hash(tx, conn_id, arrival.encrypted_hash, tx.now)
    with tx.attempt(conn_id):
        return _dispatched(tx, whole, arrival, message, stored)
    return Fate.ACK


def _dispatched(tx: Tx, whole: Whole, arrival: Arrival, message: AgentMessage, stored: RcvMessage) -> Fate:
    """What agents say to each other, by kind. Only what the application must acknowledge is kept."""
    match message.message:
        case ARcvd(receipts):
            return _receipts(tx, whole, stored, receipts)
        case Hello():
            hello_received(tx, whole, arrival.queue, pq=stored.pq)
        case AQCont(address):
            _has_room(tx, whole, address)
        case QAdd() | QKey() | QUse() | QTest() as about_queues:
            rotation.received(tx, whole, about_queues)
        case EReady() as ready:
            synchronisation.ready_received(tx, whole, ready, had_sending_chain=arrival.had_chain)
    return Fate.ACK


def shown(conn: Connection, stored: RcvMessage) -> ReceivedMessage:
    """A stored message as the application gets it."""
    return ReceivedMessage(
        conn=conn,
        id=stored.internal_id,
        body=stored.body,
        integrity=load_integrity(stored.integrity),
        sender_number=stored.external_id,
        received_at=stored.received_at,
        broker_id=stored.broker_id,
        broker_ts=stored.broker_ts,
        pq=stored.pq,
    )


def _has_room(tx: Tx, whole: Whole, address: SenderAddress) -> None:
    """A queue of the peer was full, and is not any more. Of one that we have left we need not know."""
    queue = next((one for one in whole.snd if same_queue(one.sender_address, address)), None)
    if queue is None:
        if is_left(tx, whole.conn_id, address.sender_id):
            return
        raise ProtocolError(ProtocolCode.A_QUEUE, "QCONT: queue address not found")
    tx.tell_room(queue)
    tx.emit(QueueHasRoom(tx.handle(whole.conn_id)))


def _receipts(tx: Tx, whole: Whole, stored: RcvMessage, receipts: tuple[Receipt, ...]) -> Fate:
    """Receipts for what we sent. Those that are new and about our messages are for the application."""
    if whole.type is not ConnType.DUPLEX:
        raise ProtocolError(ProtocolCode.A_PROHIBITED, "RCVD: connection is not duplex")
    valid = [told for receipt in receipts if (told := _receipt(tx, whole, stored, receipt)) is not None]
    if not valid:
        return Fate.ACK
    record = connections.load(tx, whole.conn_id)
    messages.insert_rcv(tx, record, stored, (record.last_external_id, record.last_rcv_hash))
    conn = tx.handle(whole.conn_id)
    tx.emit(ReceiptsReceived(conn, shown(conn, stored), tuple(valid)))
    return Fate.PENDING


def _receipt(tx: Tx, whole: Whole, stored: RcvMessage, receipt: Receipt) -> DeliveryReceipt | None:
    conn_id = whole.conn_id
    sent = messages.find_sent(tx, conn_id, receipt.msg_id)
    if sent is None:
        tx.failed(conn_id, InternalError("a receipt for a message that is not known"))
        return None
    if sent.kind is not MessageKind.A_MSG:
        tx.failed(conn_id, ProtocolError(ProtocolCode.A_PROHIBITED, "RCVD: not a user message"))
        return None
    if sent.receipt_status == ReceiptStatus.OK.value:
        return None
    status = ReceiptStatus.OK if receipt.msg_hash == sent.msg_hash else ReceiptStatus.BAD_MSG_HASH
    messages.set_receipt(tx, conn_id, receipt.msg_id, stored.internal_id, status.value)
    return DeliveryReceipt(sent.internal_id, status)


def redelivered(tx: Tx, whole: Whole, stored: RcvMessage) -> Fate:
    """The router sends again what is stored: nobody has told it that the message was processed."""
    conn_id, retention = whole.conn_id, tx.config.retention
    if stored.user_ack:
        return Fate.ACK
    messages.count_attempt(tx, conn_id, stored.internal_id)
    attempts, age = stored.attempts + 1, tx.now - stored.received_at
    if attempts >= retention.dropped_attempts and age >= retention.dropped_after_s:
        dropped = f"a message of {stored.broker_ts} was dropped after {attempts} attempts"
        tx.failed(conn_id, ProtocolError(ProtocolCode.A_DUPLICATE, dropped))
        messages.delete(tx, conn_id, stored.internal_id)
        return Fate.ACK
    tx.emit(shown_again(tx, tx.handle(conn_id), stored))
    return Fate.PENDING


def shown_again(db: Db, conn: Connection, stored: RcvMessage) -> Received | ReceiptsReceived:
    """What the program was told of a stored message, or of receipts."""
    message = shown(conn, stored)
    if stored.kind is not MessageKind.A_RCVD:
        return Received(conn, message)
    told = messages.receipts_in(db, conn.id, stored.internal_id)
    return ReceiptsReceived(
        conn, message, tuple(DeliveryReceipt(sent, ReceiptStatus(status)) for sent, status in told)
    )
