"""What waits in imported queues: messages from a message log or a journal store, and notifications.

Expired ones are dropped, as the reference drops them when it starts. Everything else is kept, also what is
above the quota here: such a queue takes nothing more until it was read.
"""

from __future__ import annotations

from dataclasses import dataclass

from blindpost.router.model import Ends, Notification, Notifier, QueueRecord, StoredMessage
from blindpost.router.moving.replay import NO_QUEUE
from blindpost.router.moving.values import SHORT_MAX
from blindpost.router.records import NOTIFICATIONS_WAITING_MAX
from blindpost.router.view import View
from blindpost.wire.errors import WireError
from blindpost.wire.message_log import (
    MessageLine,
    NotificationLine,
    Saved,
    SavedQuota,
    decode_message_line,
    decode_notification_line,
)
from blindpost.wire.value import Buffer

NO_NOTIFIER = "no queue has this notifier id"
EXPIRED = "expired"
MERGED = "merged with the marker before it"


def decode_message(line: Buffer) -> MessageLine:
    """A line of the message log whose ids the protocol can carry."""
    decoded = decode_message_line(line)
    check_message(decoded.message)
    return decoded


def check_message(message: Saved) -> None:
    if len(message.msg_id) > SHORT_MAX:
        raise WireError(f"at most {SHORT_MAX} bytes of an id expected")


def decode_notification(line: Buffer) -> NotificationLine:
    decoded = decode_notification_line(line)
    if len(decoded.encrypted_meta) > SHORT_MAX:
        raise WireError(f"at most {SHORT_MAX} bytes of metadata expected")
    return decoded


def stored_of(saved: Saved) -> StoredMessage:
    if isinstance(saved, SavedQuota):
        return StoredMessage(saved.msg_id, saved.seconds, False, None)
    return StoredMessage(saved.msg_id, saved.seconds, saved.notification, saved.body)


@dataclass(slots=True)
class Mailbag:
    """Puts messages into queues, in the order in which they come."""

    expire_before: int | None
    after_marker: bytes | None = None
    """The queue that the last kept message went to, if that was a marker."""

    def take(self, view: View, recipient_id: bytes, saved: Saved) -> str | None:
        """Keep a message; returns the reason if it is not kept."""
        if recipient_id not in view.records:
            return NO_QUEUE
        message = stored_of(saved)
        if is_expired(message, self.expire_before):
            return EXPIRED
        if message.is_marker and self.after_marker == recipient_id:
            return MERGED
        self.after_marker = recipient_id if message.is_marker else None
        ends = view.ends(recipient_id)
        view.add_message(recipient_id, ends.tail, message)
        view.put_ends(recipient_id, Ends(ends.head, ends.tail + 1, ends.can_write and not message.is_marker))
        return None


def is_expired(message: StoredMessage, before: int | None) -> bool:
    """Markers do not expire."""
    return before is not None and not message.is_marker and message.seconds < before


def take_notification(view: View, line: NotificationLine, expire_before: int) -> str | None:
    """Keep a notification; returns the reason if it is not kept."""
    recipient_id = view.notifiers.get(line.notifier_id)
    queue = None if recipient_id is None else view.records.get(recipient_id)
    if queue is None or queue.notifier is None:
        return NO_NOTIFIER
    if line.seconds < expire_before:
        return EXPIRED
    _add_notification(view, queue, queue.notifier, line)
    return None


def _add_notification(view: View, queue: QueueRecord, notifier: Notifier, line: NotificationLine) -> None:
    """Number it after those that wait and before later messages; the oldest are dropped."""
    first = view.ends(queue.recipient_id).tail - NOTIFICATIONS_WAITING_MAX
    waiting = view.pending(line.notifier_id)
    fresh = Notification(
        line.notifier_id, first + len(waiting), line.seconds, line.nonce, line.encrypted_meta
    )
    if len(waiting) < NOTIFICATIONS_WAITING_MAX:
        view.add_notification(notifier, fresh)
        return
    view.delete_notifications(notifier)
    for number, kept in enumerate((*sorted(waiting, key=lambda old: old.number), fresh)[1:], start=first):
        again = Notification(kept.notifier_id, number, kept.seconds, kept.nonce, kept.enc_meta)
        view.add_notification(notifier, again)
