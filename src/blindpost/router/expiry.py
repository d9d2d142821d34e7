"""Expiry: messages at the head of a queue, and notifications nobody fetched."""

from __future__ import annotations

from blindpost.router.delivery import remove_head
from blindpost.router.meters import Meter
from blindpost.router.notifications import notifier_named
from blindpost.router.turn import Turn

EXPIRY_STEP = 256
"""How many queues one step of the walk looks at: read transactions must be short."""


def expire_head(turn: Turn, recipient_id: bytes, before: int) -> int:
    """Drop ordinary messages that came before `before` from the head.

    A marker, a newer message or an unreadable one stops it.
    """
    ends = turn.view.ends(recipient_id)
    dropped = 0
    while ends.size:
        message = turn.view.readable(recipient_id, ends.head)
        if message is None or message.is_marker or message.seconds >= before:
            break
        ends = remove_head(turn, recipient_id, ends)
        dropped += 1
    turn.count(Meter.EXPIRED, dropped)
    return dropped


def expire_notifications(turn: Turn, notifier_id: bytes, before: int) -> None:
    """Drop what came before `before` and still waits for this notifier."""
    notifier = notifier_named(turn, notifier_id)
    pending = turn.view.pending(notifier_id)
    kept = [notification for notification in pending if notification.seconds >= before]
    dropped = len(pending) - len(kept)
    if notifier is None or not dropped:
        return
    turn.view.delete_notifications(notifier)
    for notification in kept:
        turn.view.add_notification(notifier, notification)
    turn.count(Meter.NTF_EXPIRED, dropped)
