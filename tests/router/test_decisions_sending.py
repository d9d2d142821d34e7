"""SEND on rows in memory: what is answered, stored, counted, pushed and told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.router.changes import DeleteLink, PutQueue
from blindpost.router.config import RouterRules
from blindpost.router.meters import Meter
from blindpost.router.model import Ends, Notifier, StoredMessage
from blindpost.router.state import PUSH_IDLE, Delivered, RouterClient, Sub, SubKind
from blindpost.router.weights import MESSAGE_BYTES
from blindpost.wire.smp.commands import SEND
from blindpost.wire.smp.errors import BLOCKED, BlockingReason, Code
from blindpost.wire.smp.responses import ERR, NMSG, OK
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.smp.versions import body_size_max
from tests.support.router.in_memory import NOW, TODAY, Desk, asked
from tests.support.router.routers import new_key

Q, S, LINK, SENDER = b"q", b"qs", b"l" * 24, new_key()
BLOCKED_BY_OPERATOR, MODES = BLOCKED(BlockingReason.SPAM), [*QueueMode, None]
NOTIFIER = Notifier(b"n", SENDER.public, Secret(bytes(32)), None)


def stays(desk: Desk, counted: dict[Meter, int]) -> None:
    """The last turn changed nothing, and told nobody but the one who asked."""
    assert (desk.turn.view.changes, len(desk.turn.outbox), desk.counted) == ([], 1, counted)


def sent(desk: Desk, client: RouterClient, *bodies: bytes, notify: bool = True, key: Any = None) -> list[Any]:
    """The answers to messages of one block."""
    return desk.say(client, *(asked(SEND(notify, body), S, key) for body in bodies))


def rows(desk: Desk) -> Sequence[StoredMessage]:
    """The messages of the queue after the last turn."""
    view = desk.turn.view
    return [view.message(Q, number) for number in range(view.ends(Q).head, view.ends(Q).tail)]


def msg_id(number: int, draw: int = 1) -> bytes:
    """Sixteen bytes of the router's choice, then the number of the message."""
    return draw.to_bytes(16, "big") + number.to_bytes(8, "big")


@pytest.mark.parametrize("notify", [True, False])
@pytest.mark.parametrize("notifier", [None, NOTIFIER], ids=["silent", "notified"])
def test_a_message_is_stored_pushed_and_told(notify: bool, notifier: Notifier | None) -> None:
    desk = Desk()
    desk.queue(Q, 0, None, notifier=notifier)
    sender, holder, notified = (desk.client(None) for _ in range(3))
    desk.state.queues.take_over(Q, holder)
    desk.state.notifiers.take_over(b"n", notified)
    desk.undo.forget()
    holder.subs.fill(Q, PUSH_IDLE)
    assert sent(desk, sender, b"one", b"two", notify=notify) == [OK()] * 2
    is_told = notify and notifier is not None
    first, second = rows(desk)
    assert first == StoredMessage(msg_id(0), NOW, notify, b"one")
    assert second == StoredMessage(msg_id(1, 3 if is_told else 2), NOW, notify, b"two")
    assert desk.turn.view.ends(Q) == Ends(0, 2)
    assert desk.events(holder) == [(Q, first)], "the other follows its ACK"
    assert holder.subs.get(Q) == Sub(SubKind.PUSH, Delivered(first.msg_id, 0, NOW, False, notify))
    told = [type(event) for _, event in desk.events(notified)]
    assert told == ([NMSG, NMSG] if is_told else [])
    counted = {Meter.SENT: 2, Meter.SENT_NTF: 2 * notify, Meter.NTFS: 2 * is_told}
    assert desk.counted == {meter: by for meter, by in counted.items() if by}
    assert desk.turn.in_use == [(Q, notify)] * 2


@pytest.mark.parametrize("version", [6, 8, 11])
def test_the_largest_message_depends_on_the_version(version: int) -> None:
    desk = Desk()
    desk.queue(Q, 0, None)
    client, most = desk.client(None, version=version), body_size_max(version)
    assert sent(desk, client, bytes(most)) == [OK()]
    assert sent(desk, client, bytes(most + 1)) == [ERR(Code.LARGE_MSG)]
    stays(desk, {Meter.SENT_LARGE: 1})


def test_a_blocked_queue_takes_no_messages() -> None:
    desk = Desk()
    desk.queue(Q, 0, None, status=BLOCKED_BY_OPERATOR)
    assert sent(desk, desk.client(None), b"body") == [ERR(BLOCKED_BY_OPERATOR)]
    stays(desk, {Meter.SENT_BLOCKED: 1})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("key", [None, SENDER], ids=["open", "secured"])
@pytest.mark.parametrize("link_id", [None, LINK], ids=["bare", "link"])
def test_the_first_message_of_a_secured_sender_removes_the_link(
    mode: QueueMode | None, key: PrivateKey | None, link_id: bytes | None
) -> None:
    desk = Desk()
    made = desk.queue(Q, 0, None, mode=mode, sender_key=key and key.public, link_id=link_id)
    assert sent(desk, desk.client(None), b"body", key=key) == [OK()]
    is_removed = mode is QueueMode.MESSAGING and key is not None and link_id is not None
    unlinked = made._replace(link_id=None)
    removed = [DeleteLink(LINK), PutQueue(unlinked, made)] if is_removed else []
    assert desk.turn.view.changes[:-2] == removed
    assert desk.turn.view.records.get(Q) == (unlinked if is_removed else made)


@pytest.mark.parametrize(
    ("on_send", "ttl_s", "left"),
    [(True, 5, 0), (True, 9, 2), (True, 20, 2), (True, None, 2), (False, 5, 2)],
)
def test_what_is_too_old_makes_room_if_the_operator_wants_it(
    on_send: bool, ttl_s: int | None, left: int
) -> None:
    """Both messages of the queue are nine seconds old."""
    desk = Desk(rules=RouterRules(quota=2, expire_on_send=on_send, message_ttl_s=ttl_s))
    desk.queue(Q, 2, None)
    (answer,) = sent(desk, desk.client(None), b"body")
    assert answer == (ERR(Code.QUOTA) if left else OK())
    expired = {} if left else {Meter.EXPIRED: 2, Meter.SENT: 1, Meter.SENT_NTF: 1}
    assert desk.counted == (expired or {Meter.SENT_QUOTA: 1, Meter.MARKERS: 1})
    assert desk.turn.view.ends(Q) == (Ends(0, 3, False) if left else Ends(2, 3))


def test_a_full_queue_gets_one_marker_and_is_open_again_when_it_is_empty() -> None:
    desk = Desk(rules=RouterRules(quota=2))
    desk.queue(Q, 0, None, notifier=NOTIFIER)
    client, quota = desk.client(None), ERR(Code.QUOTA)
    assert sent(desk, client, b"0", b"1", b"2", b"3") == [OK(), OK(), quota, quota]
    *_, marker = rows(desk)
    assert [one.body for one in rows(desk)] == [b"0", b"1", None]
    assert (marker.seconds, marker.notify, desk.turn.view.ends(Q)) == (NOW, False, Ends(0, 3, False))
    assert desk.counted == {
        Meter.SENT: 2,
        Meter.SENT_NTF: 2,
        Meter.SENT_QUOTA: 2,
        Meter.MARKERS: 1,
        Meter.NTF_NO_SUB: 2,
    }
    desk.queue(Q, 1, None)
    desk.closed.add(Q)
    assert sent(desk, client, b"4") == [quota], "while the marker waits, however much room there is"
    assert (desk.turn.view.changes, desk.counted) == ([], {Meter.SENT_QUOTA: 1})
    desk.queue(Q, 0, None)
    assert sent(desk, client, b"4") == [OK()], "a queue without messages is never closed"


def test_where_room_is_short_a_sender_is_told_to_try_later() -> None:
    desk = Desk()
    desk.queue(Q, 0, None)
    client = desk.client(None)
    desk.stored.look(desk.stored.limit - 2 * MESSAGE_BYTES)
    assert sent(desk, client, b"one", b"two") == [OK(), ERR(Code.QUOTA)], "it has its share"
    assert desk.counted == {Meter.SENT: 1, Meter.SENT_NTF: 1, Meter.SENT_QUOTA: 1}
    assert [one.body for one in rows(desk)] == [b"one"], "no marker: the queue is not full"
    assert (desk.stored.limit - desk.stored.total, desk.stored.largest()) == (MESSAGE_BYTES, [MESSAGE_BYTES])


def test_use_is_noted_once_a_day() -> None:
    desk = Desk()
    client, made = desk.client(None), desk.queue(Q, 0, None, updated_day=TODAY - 86_400)
    assert sent(desk, client, b"one", b"two") == [OK()] * 2
    first, *others = desk.turn.view.changes
    assert first == PutQueue(made._replace(updated_day=TODAY), made)
    assert not any(isinstance(change, PutQueue) for change in others)
    assert desk.turn.view.records.get(Q) == made._replace(updated_day=TODAY)
