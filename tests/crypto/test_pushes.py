"""How a device handles pushes: it opens its own, skips the rest, and shows none of them to the user."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.pushes import (
    Announced,
    NotifiedQueue,
    announced,
    open_message,
    open_meta,
    open_verification,
)
from blindpost.wire.addresses import Host, Server
from blindpost.wire.errors import WireError
from blindpost.wire.ntf.pushes import MessagePush, PushItem, VerificationPush, encode_items
from blindpost.wire.primitives import encode
from blindpost.wire.smp.messages import NMsgMeta, write_nmsg_meta

SECRET, OTHER_SECRET = bytes(32), b"\xee" * 32
SERVER = Server((Host("smp.example.org"),), "5223", bytes(32))
NONCE = bytes(range(24))
T = 1_700_000_000


def item(queue: int, seconds: int, secret: bytes | None = None) -> PushItem:
    """A notification of a queue, whose secret is its number."""
    meta = encode(NMsgMeta(b"%d" % seconds, seconds), write_nmsg_meta)
    sealed = BoxKey(secret or bytes([queue]) * 32).seal_padded(NONCE, meta, 128)
    return PushItem(SERVER, bytes([queue]) * 24, T, NONCE, bytes(sealed))


def finder(**last_seconds: int | None) -> dict[bytes, NotifiedQueue[str]]:
    """Queues by the number in their names, with the last message the device knows for each."""
    return {
        bytes([int(name[1:])]) * 24: NotifiedQueue(name, bytes([int(name[1:])]) * 32, last)
        for name, last in last_seconds.items()
    }


def found(items: list[PushItem], **last_seconds: int | None) -> list[tuple[str, int | None]]:
    known = finder(**last_seconds)
    result: list[Announced[str]] = announced(items, lambda item: known.get(item.notifier_id))
    return [(each.queue, None if each.meta is None else each.meta.seconds) for each in result]


def message(items: list[PushItem], secret: bytes = SECRET) -> MessagePush:
    return MessagePush(NONCE, bytes(BoxKey(secret).seal_padded(NONCE, encode_items(items), 3072)))


def test_a_device_opens_what_was_sealed_for_it() -> None:
    items = [item(1, T), item(2, T + 1)]
    assert open_message(SECRET, message(items)) == tuple(items)
    code = VerificationPush(NONCE, bytes(BoxKey(SECRET).seal_padded(NONCE, b"code", 3072)))
    assert open_verification(SECRET, code) == b"code"
    assert open_meta(bytes([1]) * 32, items[0]) == NMsgMeta(b"%d" % T, T)


def test_pushes_of_others_and_changed_ones_do_not_open() -> None:
    push = message([item(1, T)])
    chance = random.Random(1)
    with pytest.raises(WireError):
        open_message(OTHER_SECRET, push)
    for _ in range(50):
        place = chance.randrange(len(push.ciphertext))
        changed = bytearray(push.ciphertext)
        changed[place] ^= 1 << chance.randrange(8)
        with pytest.raises(WireError):
            open_message(SECRET, replace(push, ciphertext=bytes(changed)))
        with pytest.raises(WireError):
            open_verification(SECRET, VerificationPush(push.nonce, bytes(changed)))


def test_the_newest_item_is_always_followed() -> None:
    """The last item caused the push: its queue is checked even if the device seems to be ahead of it."""
    assert found([item(1, T)], q1=T + 5) == [("q1", T)]
    assert found([item(1, T, secret=OTHER_SECRET)], q1=None) == [("q1", None)]


def test_earlier_items_only_when_they_are_news() -> None:
    last = item(9, T)
    assert found([item(1, T), last], q1=None, q9=None) == [("q1", T), ("q9", T)]
    assert found([item(1, T), last], q1=T - 1, q9=None) == [("q1", T), ("q9", T)]
    assert found([item(1, T), last], q1=T, q9=None) == [("q9", T)]
    assert found([item(1, T, secret=OTHER_SECRET), last], q1=None, q9=None) == [("q9", T)]


def test_items_of_unknown_queues_are_skipped() -> None:
    assert found([item(1, T), item(2, T)], q1=None) == [("q1", T)]
    assert found([item(1, T), item(2, T)]) == []


def test_garbled_metadata_counts_as_unreadable() -> None:
    short = replace(item(1, T), encrypted_meta=bytes(BoxKey(bytes([1]) * 32).seal_padded(NONCE, b"x", 128)))
    assert found([short], q1=None) == [("q1", None)]
    assert found([short, item(2, T)], q1=None, q2=None) == [("q2", T)]
