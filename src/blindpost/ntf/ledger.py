"""The ledger: a notification is accepted once and ends once, in a state of the table."""

from __future__ import annotations

from dataclasses import replace

from blindpost.ntf.machines import LEDGER_TABLE, LedgerEvent
from blindpost.ntf.model import Carrier, LedgerState, Notification, Subscription
from blindpost.ntf.turn import Turn

FUNNEL = {
    LedgerEvent.PUSH_ACCEPTED: "accepted",
    LedgerEvent.PUSH_REFUSED: "refused",
    LedgerEvent.TOKEN_REFUSED: "token_invalid",
    LedgerEvent.NEWER: "replaced",
    LedgerEvent.AGED: "expired",
    LedgerEvent.DELETED: "no_token",
    LedgerEvent.CROWDED_OUT: "dropped",
}
"""The same events as the journal names them."""


def end(turn: Turn, notification: Notification, event: LedgerEvent, reason: str = "") -> Notification:
    """The notification after this event. One that has ended already stays as it is."""
    if not notification.is_waiting:
        return notification
    turn.view.enter(notification.carrier, LEDGER_TABLE[LedgerState.WAITING, event])
    turn.enter(FUNNEL[event], notification.carrier, reason=reason)
    turn.tell(notification, FUNNEL[event])
    return replace(notification, is_waiting=False)


def settle(turn: Turn, notification: Notification, event: LedgerEvent, reason: str = "") -> None:
    """End it and keep it for later pushes."""
    ended = end(turn, notification, event, reason)
    if ended is not notification:
        turn.view.put_notification(ended)


def remove(turn: Turn, notification: Notification, event: LedgerEvent) -> None:
    """End it, if it has not ended, and keep nothing of it."""
    end(turn, notification, event)
    turn.view.delete_notification(notification)


def accept(
    turn: Turn, subscription: Subscription, carrier: Carrier, nonce: bytes, encrypted_meta: bytes
) -> None:
    """A new one replaces the previous one of its queue; of too many queues, the oldest make room."""
    view = turn.view
    before = view.notifications.get(subscription.subscription_id)
    if before is not None:
        end(turn, before, LedgerEvent.NEWER)
    number = view.next_number()
    view.enter(carrier, LedgerState.WAITING)
    turn.enter("stored", carrier)
    notification = Notification(
        subscription.subscription_id,
        subscription.token_id,
        number,
        turn.seconds,
        nonce,
        encrypted_meta,
        carrier,
    )
    view.put_notification(notification)
    turn.tell(notification, "received", "stored")
    for crowded in view.notified(subscription.token_id)[: -turn.rules.push_items]:
        remove(turn, crowded, LedgerEvent.CROWDED_OUT)


def expire(turn: Turn, token_id: bytes) -> None:
    """A notification that waited too long is no longer worth a push."""
    before = turn.seconds - turn.rules.notification_ttl_s
    for notification in turn.view.notified(token_id):
        if notification.is_waiting and notification.seconds < before:
            remove(turn, notification, LedgerEvent.AGED)
