"""What a hostile peer puts into a queue that it may write to."""

from __future__ import annotations

from enum import Enum

from blindpost.agent.messages.layers import seal_message
from blindpost.agent.model import SndQueue
from blindpost.crypto.entropy import Entropy

NOISE_SIZE = 300


class Attack(Enum):
    """Kinds of messages that no honest agent sends."""

    NOISE = "noise"
    EMPTY = "nothing"
    SEALED_NOISE = "noise under the secret of the queue"
    REPLAY = "a message that was sent before"


def body_of(attack: Attack, queue: SndQueue, before: bytes | None, entropy: Entropy) -> bytes:
    """The body of a SEND; where nothing was sent before, noise is sent instead of a copy."""
    match attack:
        case Attack.EMPTY:
            return b""
        case Attack.SEALED_NOISE:
            return seal_message(queue, entropy(NOISE_SIZE), entropy)
        case Attack.REPLAY if before is not None:
            return before
        case _:
            return entropy(NOISE_SIZE)
