"""What follows from the answer to a SEND: rows, events and work. What a failure means is in `verdicts`."""

from __future__ import annotations

from blindpost.agent.errors import AgentError
from blindpost.agent.events import Connected, SendDelayed, SendFailed, SendsFailed, Sent
from blindpost.agent.messages.verdicts import Again, verdict
from blindpost.agent.model import MessageKind, QueueStatus, SndQueue, Whole
from blindpost.agent.queues import deletion
from blindpost.agent.rotation import rotation
from blindpost.agent.rotation.sender import kept_for_rotation
from blindpost.agent.store import handshakes, messages, queues
from blindpost.agent.store.messages import PendingDelivery
from blindpost.agent.work.transactions import Tx
from blindpost.wire.addresses import Server
from blindpost.wire.smp.values import QueueMode


def delivered(tx: Tx, whole: Whole, queue: SndQueue, pending: PendingDelivery, proxy: Server | None) -> None:
    """The router has the message."""
    conn, kind = tx.handle(whole.conn_id), pending.kind
    keep = kind is MessageKind.A_MSG
    if keep and queue.switch is None and len(whole.snd) == 1:
        first = messages.delivered_at_once(
            tx, whole.conn_id, queue.number, pending.delivery_id, pending.internal_id
        )
    else:
        first = messages.set_sent(tx, whole.conn_id, pending.internal_id)
        if not kept_for_rotation(tx, queue, pending.delivery_id, kind):
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
                rotation.delivered(tx, whole, queue, kind)
    deletion.delivered(tx, whole.conn_id)


def failed(
    tx: Tx, whole: Whole, queue: SndQueue, pending: PendingDelivery, error: AgentError, *, news: bool
) -> Again:
    """The message was not taken: try again, or give it up and say so. A host
    that is still wrong is no news; a queue that is still full is. One that is not wanted any more, since its
    receipt came or its queue is left, has not failed."""
    if not messages.is_waiting(tx, pending.delivery_id):
        deletion.delivered(tx, whole.conn_id)
        return Again.NO
    age_s, retention = tx.now - pending.created_at, tx.config.retention
    found = verdict(pending.kind, error, age_s, retention, receives=bool(whole.rcv))
    if found.again is not Again.NO:
        if found.told and (news or found.again is Again.SLOW):
            tx.emit(SendDelayed(tx.handle(whole.conn_id), pending.internal_id, found.error))
        return found.again
    _dropped(tx, whole, pending, found.error)
    if found.expired_s is not None:
        _expire_others(tx, whole, queue, found.error, tx.now - found.expired_s)
    deletion.delivered(tx, whole.conn_id)
    return Again.NO


def _dropped(tx: Tx, whole: Whole, pending: PendingDelivery, error: AgentError) -> None:
    """Give one delivery up, and say so if its message is lost with it."""
    conn_id, kind = whole.conn_id, pending.kind
    lost = _given_up(tx, whole, pending.delivery_id, pending.internal_id, kind)
    if kind is MessageKind.QTEST:
        for queue in whole.snd:
            tx.wake_delivery(queue)
    if lost and kind is MessageKind.A_MSG:
        tx.emit(SendFailed(tx.handle(conn_id), pending.internal_id, error))
    elif lost:
        tx.failed(conn_id, error)


def _given_up(tx: Tx, whole: Whole, delivery_id: int, internal_id: int, kind: MessageKind) -> bool:
    """Give one delivery up; whether its message is lost with it. Where the same one goes, or went, through
    another queue it is not, and its receipt may come."""
    elsewhere = messages.is_elsewhere(tx, whole.conn_id, delivery_id, internal_id)
    keep = elsewhere and kind is MessageKind.A_MSG
    messages.delivered(tx, whole.conn_id, delivery_id, internal_id, keep=keep)
    return not elsewhere


def _expire_others(tx: Tx, whole: Whole, queue: SndQueue, error: AgentError, before: int) -> None:
    """Give up all others that have waited as long. The program is told which of its messages are lost; what
    agents say to each other is repeated, or not needed any more."""
    lost: list[int] = []
    old = messages.expired_deliveries(tx, whole.conn_id, queue.number, before)
    for delivery_id, internal_id, kind in old:
        if _given_up(tx, whole, delivery_id, internal_id, kind) and kind is MessageKind.A_MSG:
            lost.append(internal_id)
    if lost:
        tx.emit(SendsFailed(tx.handle(whole.conn_id), tuple(lost), error))
