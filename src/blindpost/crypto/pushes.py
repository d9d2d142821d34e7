"""Pushes as a device opens them, and which of their items are worth a look.

A push has two layers: the router and the device share the outer secret, the message router and the device
the inner one, of which the notification router knows nothing. Nothing in a push is shown to anybody: it only
says which queues to check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from blindpost.crypto.boxes import BoxKey
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.ntf.pushes import MessagePush, PushItem, VerificationPush, decode_items
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.messages import NMsgMeta, read_nmsg_meta
from blindpost.wire.value import Value

Q = TypeVar("Q")
"""How a device knows its queues."""


def open_verification(secret: bytes, push: VerificationPush) -> bytes:
    """The registration code, or `WireError` if the push is not from the router of this token."""
    return bytes(BoxKey(secret).open_padded(push.nonce, push.ciphertext))


def open_message(secret: bytes, push: MessagePush) -> tuple[PushItem, ...]:
    """The items of a message push, the newest last, or `WireError`."""
    return decode_items(BoxKey(secret).open_padded(push.nonce, push.ciphertext))


def open_meta(secret: bytes, item: PushItem) -> NMsgMeta:
    """Which message an item is about, by the secret that the device shares with the message router."""
    return read_nmsg_meta(Reader(BoxKey(secret).open_padded(item.nonce, item.encrypted_meta)))


@dataclass(frozen=True, slots=True, repr=False)
class NotifiedQueue(Value, Generic[Q]):
    """What a device knows about a queue that an item names."""

    queue: Q
    secret: bytes
    last_seconds: int | None
    """When the newest message of this queue that the device knows was received by the router."""


@dataclass(frozen=True, slots=True, repr=False)
class Announced(Value, Generic[Q]):
    """A queue to look into, and the message to expect, None where the item does not say it readably."""

    queue: Q
    meta: NMsgMeta | None


def announced(
    items: Iterable[PushItem], find: Callable[[PushItem], NotifiedQueue[Q] | None]
) -> list[Announced[Q]]:
    """The queues that a push gives reason to look into, in the order of its items.

    Items of unknown queues are passed over. The last item caused the push, so that its queue is always
    looked into; an earlier one only if it can be opened and tells of a message that the device has not seen.
    """
    listed = tuple(items)
    found: list[Announced[Q]] = []
    for place, item in enumerate(listed, 1):
        known = find(item)
        if known is None:
            continue
        meta = _readable_meta(known.secret, item)
        if place == len(listed) or (meta is not None and _is_news(meta, known.last_seconds)):
            found.append(Announced(known.queue, meta))
    return found


def _readable_meta(secret: bytes, item: PushItem) -> NMsgMeta | None:
    try:
        return open_meta(secret, item)
    except WireError:
        return None


def _is_news(meta: NMsgMeta, last_seconds: int | None) -> bool:
    return last_seconds is None or meta.seconds > last_seconds
