"""What the answer to a SEND means, for each kind of message: a table of successes and one of failures."""

from __future__ import annotations

from enum import Enum

from blindpost.agent.errors import (
    AgentError,
    ConnectionCode,
    ConnError,
    ProtocolCode,
    ProtocolError,
    refused_with,
)
from blindpost.agent.events import Connected, SendDelayed, SendFailed, SendsFailed, Sent
from blindpost.agent.failures import Kind
from blindpost.agent.model import MessageKind, QueueStatus, SndQueue, Whole
from blindpost.agent.store import handshakes, messages, queues
from blindpost.agent.store.messages import PendingDelivery
from blindpost.agent.work.runtime import Tx
from blindpost.wire.addresses import Server
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.values import QueueMode


class Again(Enum):
    """Whether a message is tried again, and how soon."""

    NO = "no"
    FAST = "fast"
    SLOW = "slow"


_ABOUT_QUEUES = frozenset({MessageKind.QADD, MessageKind.QKEY, MessageKind.QUSE, MessageKind.QTEST})
_CONFIRMATIONS = frozenset({MessageKind.CONN_INFO, MessageKind.CONN_INFO_REPLY})


def delivered(tx: Tx, whole: Whole, queue: SndQueue, pending: PendingDelivery, proxy: Server | None) -> None:
    """The router has the message."""
    conn, kind = tx.handle(whole.conn_id), pending.kind
    keep = kind is MessageKind.A_MSG
    first = messages.set_sent(tx, whole.conn_id, pending.internal_id)
    messages.delivered(tx, whole.conn_id, pending.delivery_id, pending.internal_id, keep=keep)
    match kind:
        case MessageKind.A_MSG if first:
            tx.emit(Sent(conn, pending.internal_id, proxy))
        case MessageKind.CONN_INFO:
            handshakes.delete_confirmations(tx, whole.conn_id)
            if queue.mode is QueueMode.MESSAGING:
                queues.set_status(tx, queue, QueueStatus.ACTIVE)
                tx.emit(Connected(conn, pending.pq))
            else:
                queues.set_status(tx, queue, QueueStatus.CONFIRMED)
        case MessageKind.CONN_INFO_REPLY:
            queues.set_status(tx, queue, QueueStatus.CONFIRMED)
        case MessageKind.HELLO:
            queues.set_status(tx, queue, QueueStatus.ACTIVE)
            if whole.rcv and whole.rcv[0].status is QueueStatus.ACTIVE:
                tx.emit(Connected(conn, pending.pq))
        case MessageKind.QADD | MessageKind.QKEY | MessageKind.QUSE | MessageKind.QTEST:
            with tx.attempt(whole.conn_id):
                tx.runtime.handlers.rotation.delivered(tx, whole, queue, kind)
    tx.runtime.deletion.delivered(tx, whole.conn_id)


def failed(tx: Tx, whole: Whole, queue: SndQueue, pending: PendingDelivery, error: AgentError) -> Again:
    """The message was not taken: try again, or give it up and say so."""
    config = tx.runtime.config.retention
    age = tx.now - pending.created_at
    if refused_with(error, Code.QUOTA):
        if pending.kind in _CONFIRMATIONS:
            return _dropped(tx, whole, pending, ConnError(ConnectionCode.NOT_AVAILABLE))
        if age > config.quota_s:
            return _expired(tx, whole, queue, pending, error, tx.now - config.quota_s)
        _warn(tx, whole, pending, error)
        return Again.SLOW
    if refused_with(error, Code.AUTH):
        return _dropped(tx, whole, pending, _refusal(whole, pending.kind, error))
    if error.retried:
        if age > config.undelivered_s:
            return _expired(tx, whole, queue, pending, error, tx.now - config.undelivered_s)
        if error.kind is Kind.HOST:
            _warn(tx, whole, pending, error)
        return Again.FAST
    return _dropped(tx, whole, pending, error)


def _refusal(whole: Whole, kind: MessageKind, error: AgentError) -> AgentError:
    """What AUTH means: the queue is gone, or is not ours to send to."""
    if kind is MessageKind.HELLO and not whole.rcv:
        return ConnError(ConnectionCode.NOT_ACCEPTED)
    if kind in _CONFIRMATIONS or kind in (MessageKind.HELLO, MessageKind.RATCHET_INFO):
        return ConnError(ConnectionCode.NOT_AVAILABLE)
    if kind in _ABOUT_QUEUES:
        return ProtocolError(ProtocolCode.A_QUEUE, f"{kind.name}: AUTH")
    return error


def _warn(tx: Tx, whole: Whole, pending: PendingDelivery, error: AgentError) -> None:
    tx.emit(SendDelayed(tx.handle(whole.conn_id), pending.internal_id, error))


def _dropped(tx: Tx, whole: Whole, pending: PendingDelivery, error: AgentError) -> Again:
    """Give one delivery up. Where the same message goes, or went, through another queue it has not failed."""
    conn_id, kind = whole.conn_id, pending.kind
    elsewhere = messages.is_elsewhere(tx, conn_id, pending.delivery_id, pending.internal_id)
    keep = elsewhere and kind is MessageKind.A_MSG
    messages.delivered(tx, conn_id, pending.delivery_id, pending.internal_id, keep=keep)
    if kind is MessageKind.QTEST:
        for queue in whole.snd:
            tx.wake_delivery(queue)
    if elsewhere:
        pass
    elif kind is MessageKind.A_MSG:
        tx.emit(SendFailed(tx.handle(conn_id), pending.internal_id, error))
    else:
        tx.failed(conn_id, error)
    tx.runtime.deletion.delivered(tx, whole.conn_id)
    return Again.NO


def _expired(
    tx: Tx, whole: Whole, queue: SndQueue, pending: PendingDelivery, error: AgentError, before: int
) -> Again:
    """Give up this message and all others that have waited as long."""
    _dropped(tx, whole, pending, error)
    old = messages.expired_deliveries(tx, whole.conn_id, queue.number, before)
    for delivery_id, internal_id in old:
        messages.delivered(tx, whole.conn_id, delivery_id, internal_id, keep=False)
    if old:
        ids = tuple(internal_id for _, internal_id in old)
        tx.emit(SendsFailed(tx.handle(whole.conn_id), ids, error))
    return Again.NO
