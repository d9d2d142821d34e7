"""NKEY, NDEL, NSUB and NMSG: who is notified that a message came, and when."""

from __future__ import annotations

from blindpost.crypto.boxes import BoxKey
from blindpost.router.association import queue_left
from blindpost.router.delivery import walk_again
from blindpost.router.meters import Meter
from blindpost.router.model import Domain, Notification, Notifier, QueueRecord
from blindpost.router.state import RouterClient
from blindpost.router.turn import Turn
from blindpost.wire.primitives import encode
from blindpost.wire.smp.messages import NMsgMeta, write_nmsg_meta
from blindpost.wire.smp.responses import DELD, END, NMSG, OK, SOK, Response
from blindpost.wire.smp.values import NONCE_SIZE
from blindpost.wire.smp.versions import NMSG_PADDED_SIZE


def notify(turn: Turn, notifier: Notifier, msg_id: bytes, number: int) -> None:
    """Tell the notifier's subscriber about message `number`, now or when there is one with room."""
    nonce = turn.entropy(NONCE_SIZE)
    meta = encode(NMsgMeta(msg_id, turn.now), write_nmsg_meta)
    sealed = BoxKey(notifier.secret.raw).seal_padded(nonce, meta, NMSG_PADDED_SIZE)
    notification = Notification(notifier.notifier_id, number, turn.now, nonce, bytes(sealed))
    client = holder_of_notifier(turn, notifier)
    if client is not None and not client.congested:
        _send(turn, client, notification)
        return
    if client is None:
        turn.count(Meter.NTF_NO_SUB)
    elif notifier.service_id is not None:
        walk_again(client, Domain.NOTIFICATIONS)
    else:
        client.waiting_notifiers.put(notifier.notifier_id, True)
    turn.view.add_notification(notifier, notification)


def holder_of_notifier(turn: Turn, notifier: Notifier) -> RouterClient | None:
    """The connection that is notified: that of the notifier's service if it has one, else its own."""
    if notifier.service_id is not None:
        return turn.state.services(Domain.NOTIFICATIONS).holder(notifier.service_id)
    return turn.state.notifiers.holder(notifier.notifier_id)


def _send(turn: Turn, client: RouterClient, notification: Notification) -> None:
    turn.push(client, notification.notifier_id, NMSG(notification.nonce, notification.enc_meta))
    turn.count(Meter.NTFS)


def notifier_named(turn: Turn, notifier_id: bytes) -> Notifier | None:
    """The notifier with this id, as its queue has it now."""
    recipient_id = turn.view.notifiers.get(notifier_id)
    record = None if recipient_id is None else turn.view.records.get(recipient_id)
    return None if record is None else record.notifier


def deliver_pending(turn: Turn, client: RouterClient, notifier_id: bytes) -> None:
    """Send what waits for a notifier to its subscriber."""
    client.waiting_notifiers.pop(notifier_id)
    notifier = notifier_named(turn, notifier_id)
    pending = turn.view.pending(notifier_id)
    if notifier is None or not pending or holder_of_notifier(turn, notifier) is not client:
        return
    if client.congested:
        if notifier.service_id is not None:
            walk_again(client, Domain.NOTIFICATIONS)
        else:
            client.waiting_notifiers.put(notifier_id, True)
        return
    expired = turn.now - turn.rules.notification_ttl_s
    for notification in sorted(pending, key=lambda waiting: waiting.number):
        if notification.seconds < expired:
            turn.count(Meter.NTF_EXPIRED)
        else:
            _send(turn, client, notification)
    turn.view.delete_notifications(notifier)


def nsub(turn: Turn, client: RouterClient, corr_id: bytes, notifier: Notifier) -> None:
    """NSUB: take over the notifications of a queue, including those waiting."""
    notifier_id = notifier.notifier_id
    if notifier_id in client.notifier_ids:
        turn.count(Meter.NTF_SUB_DUPLICATE)
    else:
        turn.count(Meter.NTF_SUBS)
    if client.service is None:
        loser = turn.state.notifiers.take_over(notifier_id, client)
        client.notifier_ids.put(notifier_id, True)
    else:
        loser = turn.state.notifiers.remove(notifier_id)
    if loser is not None and loser is not client:
        _drop(loser, notifier_id)
        turn.push(loser, notifier_id, END())
        turn.count(Meter.SUB_ENDS)
    turn.answer(client, corr_id, notifier_id, SOK(notifier.service_id))
    deliver_pending(turn, client, notifier_id)


def set_notifier(turn: Turn, client: RouterClient, record: QueueRecord, notifier: Notifier) -> None:
    """NKEY: new credentials replace the old ones, whose subscriber is notified."""
    if record.notifier is not None:
        notifier_gone(turn, client, record.notifier)
    turn.view.put_queue(record._replace(notifier=notifier))
    turn.count(Meter.NTF_CREATED)


def remove_notifier(turn: Turn, client: RouterClient, record: QueueRecord) -> Response:
    """NDEL, also when there are no credentials."""
    if record.notifier is not None:
        notifier_gone(turn, client, record.notifier)
        turn.view.put_queue(record._replace(notifier=None))
        turn.count(Meter.NTF_DELETED)
    return OK()


def notifier_gone(turn: Turn, client: RouterClient | None, notifier: Notifier) -> None:
    """A notifier id is removed: its subscriber is notified, and waiting notifications are dropped."""
    notifier_id = notifier.notifier_id
    if notifier.service_id is not None:
        queue_left(turn, client, Domain.NOTIFICATIONS, notifier.service_id, notifier_id, DELD())
    holder = turn.state.notifiers.remove(notifier_id)
    if holder is not None:
        _drop(holder, notifier_id)
        if holder is not client:
            turn.push(holder, notifier_id, DELD())
            turn.count(Meter.SUB_ENDS)
    if turn.view.pending(notifier_id):
        turn.view.delete_notifications(notifier)


def _drop(client: RouterClient, notifier_id: bytes) -> None:
    client.notifier_ids.pop(notifier_id)
    client.waiting_notifiers.pop(notifier_id)
