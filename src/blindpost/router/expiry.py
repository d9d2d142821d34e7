"""What ages out: messages from the head of a queue, notifications nobody fetched."""

from __future__ import annotations

from blindpost.router.delivery import remove_head
from blindpost.router.meters import Meter
from blindpost.router.turn import Turn

EXPIRY_STEP = 256
"""How many queues one step of the walk looks at: a reader must be short."""


def expire_head(turn: Turn, recipient_id: bytes, before: int) -> int:
    """Drop ordinary messages that came before `before` from the head; a marker or a newer one stops it."""
    ends = turn.view.ends(recipient_id)
    dropped = 0
    while ends.size:
        message = turn.view.message(recipient_id, ends.head)
        if message.is_marker or message.seconds >= before:
            break
        ends = remove_head(turn, recipient_id, ends)
        dropped += 1
    turn.count(Meter.EXPIRED, dropped)
    return dropped
