"""A message through its layers, on the rows of a store: what opens it, what refuses it, what is stored."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import replace
from typing import Any

import pytest

from blindpost.agent import (
    AgentFailed,
    ContactRequested,
    Event,
    Failed,
    MsgOk,
    RatchetSync,
    Received,
    StoreFailedError,
    SyncState,
)
from blindpost.agent.handshake.confirming import Arrived
from blindpost.agent.links.values import invitation_link
from blindpost.agent.messages import content, receiving
from blindpost.agent.messages.acking import ack_later
from blindpost.agent.messages.content import Arrival, Fate
from blindpost.agent.messages.layers import open_delivery
from blindpost.agent.model import ConnMode, QueueStatus, RcvQueue, Whole
from blindpost.agent.notifications.model import PushMode, Token
from blindpost.agent.rotation import recipient
from blindpost.agent.routers.sessions import SessionKey
from blindpost.agent.store import connections, deletion, messages, ntf_tokens, queues, ratchets
from blindpost.agent.store.database import AgentStore
from blindpost.agent.store.grouping import Group
from blindpost.agent.store.intake import Came, Entry, Record
from blindpost.agent.work.retries import MESSAGE_FAST, Retry
from blindpost.agent.work.transactions import Tx
from blindpost.crypto.kem import KemLibrary
from blindpost.crypto.x3dh import proposed_params
from blindpost.testing.clock import run_virtual
from blindpost.wire.agent.envelopes import (
    AgentEnvelope,
    Confirmation,
    Invitation,
    MessageEnvelope,
    PublicHeader,
    RatchetKey,
)
from blindpost.wire.agent.messages import AMessage, AMsg, Hello
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.smp.messages import Message, QuotaMarker
from blindpost.wire.smp.responses import MSG
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.value import Buffer
from tests.support.agent.desk import KEYED, VERSION, Desk
from tests.support.agent.parties import joined
from tests.support.agent.ratchets import seeded
from tests.support.agent.rows import CONFIG, CONN, NOW, PEER_KEY, ROUTER, a_key, rcv_queue
from tests.support.ntf.routers import device_token

CONTACT, ACTIVE, NEW = QueueMode.CONTACT, QueueStatus.ACTIVE, QueueStatus.NEW


@pytest.fixture
def empty(store: AgentStore) -> Desk:
    """No queues yet."""
    return Desk(store)


@pytest.fixture
def desk(empty: Desk) -> Desk:
    empty.receives()
    return empty


# Whether it is taken at all


def test_a_message_is_stored_and_left_to_the_program(desk: Desk) -> None:
    desk.take(desk.said(AMsg(b"first")))
    assert desk.heard() == [b"first"]
    assert (desk.acks, desk.pairs.asked, desk.drains.queues) == (0, 0, [])


def test_what_comes_from_an_unknown_queue_is_left_alone(desk: Desk) -> None:
    desk.take(desk.said(AMsg(b"whose?")), b"unknown".ljust(24))
    assert (desk.events, desk.acks) == ([], 0)


def test_what_comes_from_a_queue_that_is_being_deleted_is_left_alone(desk: Desk) -> None:
    with desk.change() as tx:
        queues.set_rcv_deleted(tx, desk.queue)
    desk.take(desk.said(AMsg(b"late")))
    assert (desk.events, desk.acks) == ([], 0)


@pytest.mark.parametrize("status", [NEW, ACTIVE])
@pytest.mark.parametrize("replaces", [None, 7])
def test_only_the_first_message_of_a_new_queue_waits_for_the_old_one(
    empty: Desk, monkeypatch: pytest.MonkeyPatch, replaces: int | None, status: QueueStatus
) -> None:
    told: list[int | None] = []
    monkeypatch.setattr(recipient, "first_message", lambda _tx, _whole, new: told.append(new.replaces))
    empty.receives(replaces=replaces, status=status)
    is_first = replaces is not None and status is NEW
    empty.take(empty.said(AMsg(b"first")))
    assert empty.heard() == [b"first"]
    assert empty.drains.queues == ([1] if is_first else [])
    assert told == ([7] if is_first else [])
    assert empty.status is ACTIVE
    empty.take(empty.said(AMsg(b"second")))
    assert len(empty.drains.queues) == len(told) == is_first


def test_a_queue_becomes_active_although_its_rotation_makes_no_sense(empty: Desk) -> None:
    """It says that it replaces one that does not exist: told, and the message is taken."""
    empty.receives(replaces=7, status=NEW)
    empty.take(empty.said(AMsg(b"first")))
    failed, received = empty.events
    assert isinstance(failed, Failed)
    assert "replaces one that does not exist" in str(failed.error)
    assert isinstance(received, Received)
    assert (empty.status, empty.acks) == (ACTIVE, 0)


def refuse(desk: Desk, count: int) -> None:
    """Have no room for the next commits."""
    file, commit = desk.store._file, desk.store._file.commit
    refused: list[int] = []

    def full() -> None:
        if len(refused) < count:
            refused.append(1)
            file.rollback()
            raise StoreFailedError("the disk is full")
        commit()

    file.commit = full  # type: ignore[method-assign]


def test_a_store_that_has_no_room_for_a_moment(desk: Desk) -> None:
    """It is told, and the message is taken later."""
    refuse(desk, 2)
    told: list[Event] = []
    desk.ground.stream.put = lambda event, row=None: told.append(event)  # type: ignore[method-assign]
    assert desk.take(desk.said(AMsg(b"first"))) == 2 * MESSAGE_FAST.initial_us / 1e6
    failed = [event.error for event in told if isinstance(event, Failed)]
    assert [(str(error), error.temporary) for error in failed] == [("CRITICAL: the disk is full", True)] * 2
    assert (desk.heard(), desk.acks) == ([b"first"], 0)


def unreadable(desk: Desk) -> MSG:
    """Under a ratchet that is not ours."""
    stranger, _ = joined(seed="other")
    return desk.sealed(MessageEnvelope(VERSION, stranger.send(desk.plain(AMsg(b"old")))))


def test_a_message_that_came_again_meanwhile_is_not_tried_again(desk: Desk) -> None:
    """What it says about the ratchet was true when its copy was read; there may be another ratchet since."""
    msg = unreadable(desk)
    copy, state = replace(msg), desk.whole.record.sync_state

    async def main() -> None:
        refuse(desk, 1)
        first = asyncio.create_task(desk.bring(msg))
        await asyncio.sleep(MESSAGE_FAST.initial_us / 2e6)
        assert (desk.acks, desk.whole.record.sync_state) == (0, state)
        await desk.bring(copy)
        assert (desk.acks, desk.whole.record.sync_state) == (1, SyncState.REQUIRED)
        with desk.change() as tx:
            connections.set_sync_state(tx, CONN, SyncState.OK)
        await first

    run_virtual(main())
    assert (desk.acks, desk.whole.record.sync_state) == (1, SyncState.OK)
    assert desk.in_hand == 0


def test_the_copy_of_a_message_that_waits_takes_its_place(desk: Desk) -> None:
    """Both wait for the store; one of them is taken, once."""
    msg = unreadable(desk)

    async def main() -> None:
        refuse(desk, 3)
        await asyncio.gather(desk.bring(msg), desk.bring(replace(msg)), desk.bring(replace(msg)))

    run_virtual(main())
    assert (desk.acks, desk.in_hand) == (1, 0)


def test_a_message_of_another_queue_does_not_take_its_place(desk: Desk) -> None:
    refuse(desk, 1)
    msg, other = desk.said(AMsg(b"first")), desk.said(AMsg(b"whose?"))

    async def main() -> None:
        await asyncio.gather(desk.bring(msg), desk.bring(other, b"unknown".ljust(24)))

    run_virtual(main())
    assert (desk.heard(), desk.in_hand) == ([b"first"], 0)


ELSEWHERE = {
    "another user": SessionKey(2, ROUTER),
    "another connection": SessionKey(1, ROUTER, "other"),
    "another identity at the same place": SessionKey(1, replace(ROUTER, key_hash=b"o" * 32)),
}


@pytest.mark.parametrize("key", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_message_on_the_session_of_others_is_not_touched(
    desk: Desk, key: SessionKey, caplog: pytest.LogCaptureFixture
) -> None:
    """An acknowledgement would tell the router that both sessions are those of one program."""
    msg = desk.said(AMsg(b"first"))
    for _ in range(3):
        desk.take(msg, key=key)
    assert (desk.acks, desk.events) == (0, [])
    assert "speaks of a queue on a session that is not the queue's" in caplog.text
    desk.take(msg, key=SessionKey(1, ROUTER, CONN))
    assert (desk.acks, desk.heard()) == (0, [b"first"])


def test_a_message_on_the_session_of_others_does_not_take_the_place_of_the_true_one(desk: Desk) -> None:
    refuse(desk, 1)
    msg = desk.said(AMsg(b"first"))

    async def main() -> None:
        garbled = MSG(msg.msg_id, bytes(100))
        await asyncio.gather(desk.bring(msg), desk.bring(garbled, key=SessionKey(2, ROUTER)))

    run_virtual(main())
    assert (desk.heard(), desk.in_hand) == ([b"first"], 0)


def test_while_the_disk_cannot_be_read_a_message_waits(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not known whose it is."""
    found, failures = queues.find_rcv, [StoreFailedError("it cannot be read")] * 2

    def find_rcv(*which: Any) -> RcvQueue | None:
        if failures:
            raise failures.pop()
        return found(*which)

    monkeypatch.setattr(queues, "find_rcv", find_rcv)
    told: list[Event] = []
    desk.ground.stream.put = lambda event, row=None: told.append(event)  # type: ignore[method-assign]
    waited_us = MESSAGE_FAST.initial_us + Retry.first(MESSAGE_FAST).next().delay_us
    assert desk.take(desk.said(AMsg(b"first"))) == waited_us / 1e6
    failed = [event.error for event in told if isinstance(event, AgentFailed)]
    assert [(str(error), error.temporary) for error in failed] == [("CRITICAL: it cannot be read", True)] * 2
    assert desk.heard() == [b"first"]


def test_a_store_that_breaks_meanwhile_tells_so_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = StoreFailedError("the log cannot be synced")

    def breaks() -> None:
        desk.store._break(failure)
        raise failure

    monkeypatch.setattr(desk.store._file, "begin", breaks)
    told: list[Event] = []
    desk.ground.stream.put = lambda event, row=None: told.append(event)  # type: ignore[method-assign]
    assert desk.take(desk.said(AMsg(b"first"))) == 0
    assert [type(event) for event in told] == [AgentFailed]


# What an agent finds that did not end by itself


def left(desk: Desk, msg: MSG, *done: MSG) -> Record:
    return Record(desk.called(msg), tuple(desk.called(one) for one in done), msg.enc_body)


def bodies(desk: Desk) -> list[bytes]:
    """Of the messages that the program has not acknowledged."""
    db = desk.store.reading
    found = [messages.find_rcv(db, *key) for key in messages.unacknowledged(db)]
    return [stored.body for stored in found if stored is not None]


def test_what_was_left_is_stored_and_told_nobody(desk: Desk) -> None:
    """It will be shown again, with all that is not acknowledged: its router may not have it."""
    one, two = desk.said(AMsg(b"one")), desk.said(AMsg(b"two"))
    desk.start(left(desk, one), left(desk, two))
    assert bodies(desk) == [b"one", b"two"]
    assert (desk.events, desk.acks, desk.hurried) == ([], 0, [])
    assert desk.store.unsure == set(messages.unacknowledged(desk.store.reading))
    assert desk.store.intake.left == ()
    assert desk.store._group is None, "it is durable"
    desk.take(desk.said(AMsg(b"three")))
    (event,) = desk.events
    assert isinstance(event, Received)
    assert (event.msg.body, event.msg.integrity) == (b"three", MsgOk())


@pytest.mark.parametrize("is_done", [False, True])
def test_what_was_left_and_is_stored_is_left_as_it_is(desk: Desk, is_done: bool) -> None:
    msg = desk.said(AMsg(b"one"))
    desk.take(msg)
    (key,) = messages.unacknowledged(desk.store.reading)
    if is_done:
        with desk.change() as tx:
            messages.acknowledged(tx, *key)
    attempts = "SELECT receive_attempts FROM rcv_messages"
    before = desk.store.reading.sql.execute(attempts).fetchall()
    assert desk.heard() == [b"one"]
    desk.start(left(desk, msg))
    assert bodies(desk) == ([] if is_done else [b"one"])
    assert (desk.events, desk.acks) == ([], 0)
    assert desk.store.reading.sql.execute(attempts).fetchall() == before
    assert desk.store.unsure == set(), "what is stored was looked for when the store was opened"


@pytest.mark.parametrize("is_stored", [False, True])
def test_what_the_program_was_done_with_is_not_shown_again(desk: Desk, is_stored: bool) -> None:
    one, two = desk.said(AMsg(b"one")), desk.said(AMsg(b"two"))
    if is_stored:
        desk.take(one)
        desk.store.unsure.update(messages.unacknowledged(desk.store.reading))
        assert desk.heard() == [b"one"]
    desk.start(left(desk, one), left(desk, two, one, desk.said(AMsg(b"unknown"))))
    assert bodies(desk) == [b"two"]
    assert desk.store.unsure == set(messages.unacknowledged(desk.store.reading))


def test_what_is_being_acknowledged_stays_for_its_command(desk: Desk) -> None:
    one, two = desk.said(AMsg(b"one")), desk.said(AMsg(b"two"))
    desk.take(one)
    ((_, internal_id),) = messages.unacknowledged(desk.store.reading)
    with desk.change() as tx:
        ack_later(tx, desk.queue, one.msg_id, internal_id)
    desk.start(left(desk, two, one))
    stored = messages.find_rcv(desk.store.reading, CONN, internal_id)
    assert stored is not None
    assert (stored.user_ack, desk.acks, bodies(desk)) == (True, 1, [b"two"])


@pytest.mark.parametrize("queue", ["deleted", "unknown"])
def test_what_was_left_by_a_queue_that_is_gone_is_left_alone(
    desk: Desk, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    record = left(desk, desk.said(AMsg(b"late")))
    if queue == "deleted":
        with desk.change() as tx:
            queues.set_rcv_deleted(tx, desk.queue)
    else:
        record = replace(record, came=record.came._replace(queue_number=7))
    desk.start(record)
    assert (bodies(desk), desk.events, desk.acks) == ([], [], 0)
    assert caplog.text == ""


def test_what_is_not_for_the_program_is_left_to_its_router(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes again, and is acknowledged then: nothing of it is stored now. What follows it is read."""
    hello, after = desk.said(Hello()), desk.said(AMsg(b"after"))
    garbled = MSG(b"garbled", bytes(16_000))
    before = desk.whole
    desk.start(left(desk, hello), left(desk, garbled))
    assert (desk.whole, desk.events, desk.acks, caplog.text) == (before, [], 0, "")
    desk.start(left(desk, hello), left(desk, garbled), left(desk, after))
    assert bodies(desk) == [b"after"]
    assert (desk.events, desk.acks) == ([], 0)


def test_a_defect_in_what_was_left_keeps_no_agent_from_starting(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = desk.said(AMsg(b"one")), desk.said(AMsg(b"two"))
    opened, seen = open_delivery, list[None]()

    def once(queue: RcvQueue, msg: MSG) -> object:
        seen.append(None)
        if len(seen) == 1:
            raise LookupError("a bug")
        return opened(queue, msg)

    monkeypatch.setattr(receiving, "open_delivery", once)
    desk.start(left(desk, one), left(desk, two))
    assert bodies(desk) == [b"two"]
    assert "a message that came before the start could not be processed" in caplog.text


def test_a_disk_without_room_keeps_what_was_left(desk: Desk) -> None:
    record = left(desk, desk.said(AMsg(b"one")))
    refuse(desk, 1)
    with pytest.raises(StoreFailedError, match="the disk is full"):
        desk.start(record)
    assert desk.store.intake.left == (record,)
    desk.start(record)
    assert bodies(desk) == [b"one"]


# As it came


class Notes:
    """What is noted of messages before they are opened."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch, *, room: bool = True) -> None:
        self.added: list[tuple[Came, bytes]] = []
        self.released: list[Came] = []
        self._desk, self._room = desk, room
        desk.flow.acknowledged(CONN)
        for _ in range(2):
            desk.flow.answered(CONN, MSG(b"", b""), 0.0)
        monkeypatch.setattr(desk.store, "came", self._came)
        monkeypatch.setattr(desk.store.intake, "release", lambda entry: self.released.append(entry.came))

    def _came(self, came: Came, body: Buffer) -> Entry | None:
        assert not self._desk.events
        self.added.append((came, bytes(body)))
        return Entry(came) if self._room else None


@pytest.mark.parametrize("room", [True, False])
def test_messages_that_follow_each_other_are_noted_as_they_came(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, room: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Until the store has them for good; without a note somebody waits for the store."""
    notes = Notes(desk, monkeypatch, room=room)
    awaited: list[bool] = []
    monkeypatch.setattr(Group, "at_once", lambda _, *, awaited: waits(awaited))

    def waits(is_awaited: bool) -> None:
        awaited.append(is_awaited)
        assert notes.released == []

    msg = desk.said(AMsg(b"one"))
    desk.take(msg)
    assert desk.heard() == [b"one"]
    assert notes.added == [(desk.called(msg), msg.enc_body)]
    assert notes.released == ([desk.called(msg)] if room else [])
    assert awaited == [not room]
    assert caplog.text == ""


@pytest.mark.parametrize("room", [True, False])
def test_what_could_not_be_stored_is_noted_once_more(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    notes = Notes(desk, monkeypatch, room=room)
    begin, refused = desk.store._file.begin, list[None]()

    def full() -> None:
        if not refused:
            refused.append(None)
            raise StoreFailedError("the disk is full")
        begin()

    monkeypatch.setattr(desk.store._file, "begin", full)
    msg = desk.said(AMsg(b"one"))
    desk.take(msg)
    assert desk.heard() == [b"one"]
    assert [came for came, _ in notes.added] == [desk.called(msg)] * 2
    assert notes.released == ([desk.called(msg)] * 2 if room else [])


def test_other_messages_are_not_noted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes(desk, monkeypatch)
    desk.flow.acknowledged("another")
    desk.take(desk.said(AMsg(b"one")))
    assert (desk.heard(), notes.added) == ([b"one"], [])


def test_a_broken_store_takes_nothing(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """The router keeps it for the next start; what is told of the store is told once."""
    msg = desk.said(AMsg(b"first"))
    told: list[Event] = []
    desk.ground.stream.put = lambda event, row=None: told.append(event)  # type: ignore[method-assign]
    desk.store._break(StoreFailedError("the log cannot be synced"))
    assert len(told) == 1
    desk.take(msg)
    assert (len(told), desk.events) == (1, [])
    assert "could not be processed" not in caplog.text


def test_a_message_waits_while_the_agent_is_suspended(desk: Desk) -> None:
    msg = desk.said(AMsg(b"first"))

    async def main() -> None:
        await desk.ground.operations.suspend(1)
        taking = asyncio.create_task(desk.bring(msg))
        await asyncio.sleep(60)
        assert desk.events == []
        desk.ground.operations.resume()
        await taking

    run_virtual(main())
    assert desk.heard() == [b"first"]


def test_one_message_at_a_time(desk: Desk) -> None:
    msg = desk.said(AMsg(b"first"))

    async def main() -> None:
        async with desk.ground.locked(CONN):
            taking = asyncio.create_task(desk.bring(msg))
            await asyncio.sleep(60)
            assert desk.events == []
        await taking

    run_virtual(main())
    assert desk.heard() == [b"first"]


# Whether a KEM key pair could be needed


@pytest.mark.parametrize("pq", [True, False])
def test_a_key_pair_is_in_hand_if_the_ratchet_takes_one(desk: Desk, pq: bool) -> None:
    ratchet = ratchets.find_ratchet(desk.store.reading, CONN)
    assert ratchet is not None
    with desk.change() as tx:
        connections.set_pq_support(tx, CONN, not pq)
        ratchets.set_ratchet(tx, CONN, replace(ratchet, enable_kem=pq))
    desk.take(desk.delivered(QuotaMarker(NOW)))
    assert desk.pairs.asked == pq


@pytest.mark.parametrize("mode", [QueueMode.MESSAGING, CONTACT, None])
@pytest.mark.parametrize("pq", [True, False])
def test_a_key_pair_is_in_hand_for_the_first_message_of_a_connection(
    empty: Desk, pq: bool, mode: QueueMode | None
) -> None:
    with empty.change() as tx:
        ratchets.delete_ratchet(tx, CONN)
        connections.set_pq_support(tx, CONN, pq)
    empty.receives(mode=mode, duplex=False)
    empty.take(empty.delivered(QuotaMarker(NOW)))
    assert empty.pairs.asked == (pq and mode is not CONTACT)


# What has happened to its queue


def test_a_queue_that_went_meanwhile(desk: Desk) -> None:
    desk.process(replace(desk.queue, number=9), desk.said(AMsg(b"late")))
    assert (desk.events, desk.acks) == ([], 1)


def test_a_connection_that_was_deleted_meanwhile(desk: Desk) -> None:
    with desk.change() as tx:
        ratchets.delete_ratchet(tx, CONN)
        deletion.mark(tx, CONN)
    desk.process(desk.queue, desk.said(AMsg(b"late")))
    assert (desk.events, desk.acks, desk.pairs.asked) == ([], 1, 0)


def test_the_queue_is_looked_at_again(desk: Desk) -> None:
    """What was found before the lock may be older than what the message meets."""
    desk.process(replace(desk.queue, e2e_secret=None), desk.said(AMsg(b"first")))
    assert desk.heard() == [b"first"]


def test_a_bug_in_one_message_is_told_and_passed_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object, **__: object) -> Fate:
        raise ValueError("a bug")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(content, "received", bug)
        desk.take(desk.said(AMsg(b"first")))
    assert desk.refused() == "INTERNAL: ValueError('a bug')"
    assert "a message could not be processed" in caplog.text


# The queue was full


@pytest.mark.parametrize("state", [SyncState.OK, SyncState.REQUIRED])
@pytest.mark.parametrize("duplex", [True, False])
def test_the_peer_is_told_that_there_is_room(empty: Desk, duplex: bool, state: SyncState) -> None:
    """If it can be told now; what waits for its queue is tried at once."""
    empty.receives(duplex=duplex)
    if duplex:
        empty.take(empty.said(AMsg(b"first")))
        assert empty.heard() == [b"first"], "now our ratchet can send"
    with empty.change() as tx:
        connections.set_sync_state(tx, CONN, state)
    empty.take(empty.delivered(QuotaMarker(NOW)))
    told = duplex and state is SyncState.OK
    assert empty.sent == (["QC"] if told else [])
    assert empty.hurried == ([1] if told else [])
    assert (empty.events, empty.acks) == ([], 1)


def test_a_message_is_known_to_notifications_if_the_device_has_any(desk: Desk) -> None:
    def known() -> int | None:
        query = "SELECT last_broker_ts FROM rcv_queues"
        found: int | None = desk.store.reading.sql.execute(query).fetchone()[0]
        return found

    desk.take(desk.said(AMsg(b"first")))
    assert known() is None
    token = Token(device_token("ab"), ROUTER, a_key("n"), a_key("d", Algorithm.X25519), PushMode.INSTANT)
    with desk.change() as tx:
        ntf_tokens.put(tx, token)
    desk.take(desk.said(AMsg(b"second")))
    assert known() == NOW - 1
    desk.take(desk.delivered(QuotaMarker(NOW + 5)))
    assert known() == NOW + 5


# The layers around it


@pytest.mark.parametrize(
    ("version", "of_queue", "taken"),
    [(1, 4, True), (4, 1, True), (5, 4, False), (5, 5, True), (0, 4, True), (6, 5, False)],
)
def test_the_version_of_its_sender(empty: Desk, version: int, of_queue: int, taken: bool) -> None:
    """One that we know, or at most the one that was agreed for the queue."""
    empty.receives(client_version=of_queue)
    empty.take(empty.sealed(empty.envelope(AMsg(b"first")), header=PublicHeader(version)))
    if taken:
        assert empty.heard() == [b"first"]
    else:
        assert empty.refused().startswith("AGENT A_VERSION")


def test_what_the_router_delivered_does_not_open(desk: Desk) -> None:
    desk.take(MSG(b"broker", bytes(16100)))
    assert desk.refused().startswith("AGENT A_CRYPTO DECRYPT_CB")


def test_what_the_router_delivered_cannot_be_read(desk: Desk) -> None:
    desk.take(desk.delivered(Message(NOW, True, b"?")))
    assert desk.refused().startswith("AGENT A_MESSAGE")


def test_the_box_of_the_queue_does_not_open(desk: Desk) -> None:
    desk.take(desk.sealed(desk.envelope(AMsg(b"first")), secret=b"x" * 32))
    assert desk.refused().startswith("AGENT A_CRYPTO DECRYPT_CB")


def test_what_is_in_the_box_cannot_be_read(desk: Desk) -> None:
    desk.take(desk.sealed(b"\x00\x07?"))
    assert desk.refused().startswith("AGENT A_MESSAGE")


def test_a_message_for_a_queue_without_a_secret(empty: Desk) -> None:
    empty.receives(e2e_secret=None)
    empty.take(empty.sealed(empty.envelope(AMsg(b"first"))))
    assert "msg: no key and no secret" in empty.refused()


def test_a_confirmation_that_comes_again_is_dropped(desk: Desk) -> None:
    desk.take(desk.sealed(Confirmation(VERSION, None, b"info"), header=KEYED))
    assert (desk.events, desk.acks) == ([], 1)


def test_another_message_with_a_key_for_a_queue_that_has_a_secret(desk: Desk) -> None:
    desk.take(desk.sealed(desk.envelope(AMsg(b"first")), header=KEYED))
    assert "msg: key on a queue with a secret" in desk.refused()


# The start of a connection


def an_invitation() -> Invitation:
    own = proposed_params(3, pq=False, entropy=seeded("inviter"), kem=KemLibrary())
    link = invitation_link(CONFIG.versions, rcv_queue().address, own, with_kem=False)
    return Invitation(VERSION, link, b"who I am")


@pytest.mark.parametrize("mode", [QueueMode.MESSAGING, CONTACT, None])
@pytest.mark.parametrize("sender_key", [None, a_key("sender").public])
def test_a_confirmation_brings_the_key_that_the_queue_is_secured_with(
    empty: Desk, monkeypatch: pytest.MonkeyPatch, mode: QueueMode | None, sender_key: PublicKey | None
) -> None:
    """Unless its sender has secured it."""
    came: list[Arrived] = []

    def confirmed(_tx: Tx, _whole: Whole, queue: RcvQueue, arrived: Arrived) -> None:
        assert queue == empty.queue
        came.append(arrived)

    monkeypatch.setattr(receiving, "confirmation_received", confirmed)
    empty.receives(e2e_secret=None, mode=mode, duplex=False)
    confirmation = Confirmation(VERSION, None, b"info")
    empty.take(empty.sealed(confirmation, header=KEYED, sender_key=sender_key))
    if sender_key is None and mode is not QueueMode.MESSAGING:
        assert "handshake: missing sender key" in empty.refused()
        assert came == []
    else:
        assert came == [Arrived(KEYED, PEER_KEY.public, sender_key, confirmation)]
        assert (empty.events, empty.acks) == ([], 1)


def test_a_request_to_an_address(store: AgentStore) -> None:
    desk = Desk(store)
    with desk.change() as tx:
        connections.delete(tx, CONN)
        connections.insert(tx, CONN, 1, ConnMode.CONTACT, agent_version=7, pq_support=False, auto_allow=False)
    desk.receives(e2e_secret=None, mode=CONTACT, duplex=False)
    desk.take(desk.sealed(an_invitation(), header=KEYED))
    (event,) = desk.events
    assert isinstance(event, ContactRequested)
    assert (event.request.info, desk.acks) == (b"who I am", 1)
    desk.take(desk.sealed(an_invitation(), header=KEYED))
    assert (len(desk.events), desk.acks) == (1, 2), "again: the same one"


def test_a_request_with_a_key_to_secure_the_queue_with(empty: Desk) -> None:
    empty.receives(e2e_secret=None, mode=CONTACT, duplex=False)
    empty.take(empty.sealed(an_invitation(), header=KEYED, sender_key=a_key("sender").public))
    assert "handshake: incorrect state" in empty.refused()


def test_a_message_under_a_ratchet_does_not_start_a_connection(empty: Desk) -> None:
    empty.receives(e2e_secret=None, duplex=False)
    empty.take(empty.sealed(empty.envelope(AMsg(b"first")), header=KEYED))
    assert "handshake: incorrect state" in empty.refused()


# Under the queue's secret


def test_a_message_that_brings_a_key_for_the_router(desk: Desk) -> None:
    desk.take(desk.sealed(desk.envelope(AMsg(b"first")), sender_key=a_key("sender").public))
    assert "msg: bad client msg" in desk.refused()


@pytest.mark.parametrize("envelope", [Confirmation(VERSION, None, b""), an_invitation()])
def test_a_handshake_does_not_happen_again(desk: Desk, envelope: AgentEnvelope) -> None:
    desk.take(desk.sealed(envelope))
    assert "msg: bad client msg" in desk.refused()


def test_ratchet_keys_of_the_peer(desk: Desk) -> None:
    keys = proposed_params(3, pq=False, entropy=seeded("peer's keys"), kem=KemLibrary()).public(3)
    with desk.change() as tx:
        connections.set_version(tx, CONN, 5)
    desk.take(desk.sealed(RatchetKey(VERSION, keys, b"")))
    assert desk.whole.record.sync_state is SyncState.AGREED
    assert desk.whole.record.agent_version == VERSION
    assert [type(event) for event in desk.events] == [RatchetSync]
    assert desk.acks == 1


@pytest.mark.parametrize(
    ("before", "said", "after"),
    [(5, 7, 7), (5, 6, 6), (5, 5, 5), (5, 4, 4 + 1), (5, 9, 7), (1, 2, 2), (1, 1, 1), (0, 1, 0), (7, 9, 7)],
)
def test_a_peer_that_speaks_a_newer_version_is_spoken_to_in_it(
    desk: Desk, before: int, said: int, after: int
) -> None:
    """There is no way back, and none to a version that we do not know."""
    with desk.change() as tx:
        connections.set_version(tx, CONN, before)
    desk.take(desk.said(AMsg(b"first"), said))
    assert desk.whole.record.agent_version == after


# Under the ratchet


def test_a_connection_without_a_ratchet(desk: Desk) -> None:
    with desk.change() as tx:
        ratchets.delete_ratchet(tx, CONN)
    desk.take(desk.said(AMsg(b"first")))
    assert "msg: no ratchet" in desk.refused()


def test_messages_come_in_another_order(desk: Desk) -> None:
    """The keys of those that are missing are kept, and go when they come."""
    first, second, third = (desk.said(AMsg(b"%d" % number)) for number in (1, 2, 3))
    desk.take(third)
    assert len(ratchets.skipped_keys(desk.store.reading, CONN)) == 1
    for msg in (first, second):
        desk.take(msg)
    assert sorted(desk.heard()) == [b"1", b"2", b"3"]
    assert not any(ratchets.skipped_keys(desk.store.reading, CONN).values())


def test_the_router_delivers_it_again(desk: Desk) -> None:
    """As long as the program has not acknowledged it, it is shown again."""
    msg = desk.said(AMsg(b"first"))
    for _ in range(2):
        desk.take(msg)
    assert desk.heard() == [b"first", b"first"]
    assert desk.acks == 0


def test_a_router_that_uses_an_id_again(desk: Desk) -> None:
    """What can be read is new, whatever the router calls it."""
    desk.take(desk.said(AMsg(b"first")))
    desk._sent = 0
    desk.take(desk.said(AMsg(b"second")))
    assert desk.heard() == [b"first", b"second"]


def test_a_copy_of_it_is_dropped(desk: Desk) -> None:
    envelope = desk.envelope(AMsg(b"first"))
    desk.take(desk.sealed(envelope))
    desk.take(desk.sealed(envelope))
    assert desk.heard() == [b"first"]
    assert desk.acks == 1, "of the copy"


def test_an_earlier_message_whose_content_is_not_known_is_told(desk: Desk) -> None:
    first, other = desk.envelope(AMsg(b"first")), desk.envelope(AMsg(b"second"))
    desk.take(desk.sealed(first))
    with desk.change() as tx:
        tx.sql.execute("DELETE FROM encrypted_rcv_message_hashes")
    desk.take(desk.sealed(other))
    assert desk.heard() == [b"first", b"second"]
    desk.take(desk.sealed(first))
    assert [type(event) for event in desk.events] == [RatchetSync]
    assert desk.acks == 1


def test_the_same_message_number_again_is_told_as_a_duplicate(desk: Desk) -> None:
    envelope = desk.envelope(AMsg(b"first"))
    desk.take(desk.sealed(envelope))
    assert desk.heard() == [b"first"]
    with desk.change() as tx:
        tx.sql.execute("DELETE FROM encrypted_rcv_message_hashes")
    desk.take(desk.sealed(envelope))
    assert desk.refused().startswith("AGENT A_DUPLICATE")
    assert desk.whole.record.sync_state is SyncState.OK


def test_what_is_not_a_ratchet_message(desk: Desk) -> None:
    desk.take(desk.sealed(MessageEnvelope(VERSION, b"?")))
    assert desk.refused().startswith("AGENT A_MESSAGE: not a ratchet message")


def test_a_message_of_another_ratchet(desk: Desk) -> None:
    desk.take(unreadable(desk))
    (event,) = desk.events
    assert isinstance(event, RatchetSync)
    assert (event.state, desk.acks) == (SyncState.REQUIRED, 1)


@pytest.mark.parametrize("plain", [b"?", b""])
def test_what_is_inside_the_ratchet_cannot_be_read(desk: Desk, plain: bytes) -> None:
    """The ratchet has made its step all the same: the next one is read."""
    desk.take(desk.sealed(MessageEnvelope(VERSION, desk.peer.send(plain))))
    assert desk.refused().startswith("AGENT A_MESSAGE")
    desk.take(desk.said(AMsg(b"next")))
    assert desk.heard() == [b"next"]


def test_what_belongs_to_a_handshake_is_not_said_inside_the_ratchet(desk: Desk) -> None:
    desk.take(desk.sealed(MessageEnvelope(VERSION, desk.peer.send(b"Iwho I am"))))
    assert "msg: bad agent msg" in desk.refused()


def test_reading_a_message_ends_a_synchronisation(desk: Desk) -> None:
    with desk.change() as tx:
        connections.set_sync_state(tx, CONN, SyncState.AGREED)
    desk.take(desk.said(AMsg(b"first")))
    synced, received = desk.events
    assert isinstance(synced, RatchetSync)
    assert (synced.state, desk.whole.record.sync_state) == (SyncState.OK, SyncState.OK)
    assert isinstance(received, Received)


class Taken:
    """What is handed to those who read the content."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrival: Arrival
        self.pq: bool
        self._received = content.received
        monkeypatch.setattr(content, "received", self._note)

    def _note(self, tx: Tx, whole: Whole, arrival: Arrival, *what: Any, pq: bool) -> Fate:
        self.arrival, self.pq = arrival, pq
        self.ratchet = ratchets.find_ratchet(tx, CONN)
        return self._received(tx, whole, arrival, *what, pq=pq)


def test_how_it_came(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    envelope = desk.envelope(AMsg(b"first"))
    desk.take(desk.sealed(envelope))
    arrival = taken.arrival
    assert (arrival.queue, arrival.broker_id, arrival.broker_ts) == (desk.queue, b"broker 1", NOW - 1)
    assert arrival.encrypted_hash == hashlib.sha256(envelope.encrypted_message).digest()
    assert (arrival.had_chain, taken.pq) == (False, False)
    desk.take(desk.said(AMsg(b"second")))
    assert taken.arrival.had_chain, "we could send since the first one"


@pytest.mark.parametrize("pq", [True, False])
def test_whether_it_came_under_a_post_quantum_secret(
    store: AgentStore, monkeypatch: pytest.MonkeyPatch, pq: bool
) -> None:
    desk, taken = Desk(store), Taken(monkeypatch)
    desk.receives()
    desk.peer, own = joined(pq_s=pq, pq_r=pq)
    with desk.change() as tx:
        ratchets.set_ratchet(tx, CONN, own.ratchet)
    desk.take(desk.said(AMsg(b"first")))
    assert taken.pq is pq
    assert desk.pairs.asked == pq


@pytest.mark.parametrize(
    ("message", "state", "together"),
    [
        (AMsg(b"body"), SyncState.OK, True),
        (AMsg(b"body"), SyncState.AGREED, False),
        (Hello(), SyncState.OK, False),
    ],
)
def test_the_step_of_the_ratchet_is_stored_with_the_message_or_before_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, message: AMessage, state: SyncState, together: bool
) -> None:
    """Before it where somebody looks at the ratchet: the message says something to us, or ends a
    synchronisation."""
    taken = Taken(monkeypatch)
    before = ratchets.find_ratchet(desk.store.reading, CONN)
    with desk.change() as tx:
        connections.set_sync_state(tx, CONN, state)
    desk.take(desk.said(message))
    assert (taken.arrival.ratchet is not None) == together
    assert (taken.ratchet == before) == together
    assert ratchets.find_ratchet(desk.store.reading, CONN) != before
    desk.events.clear()
    desk.take(desk.said(AMsg(b"next")))
    assert desk.heard() == [b"next"]
