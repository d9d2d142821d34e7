"""Putting a message into a store: what is refused, where it goes, what must be durable before it leaves."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from blindpost.agent import SyncState
from blindpost.agent.errors import CommandError, InternalError, OutOfStepError
from blindpost.agent.messages.sending import (
    Enqueued,
    enqueue,
    enqueue_confirmation,
    enqueue_ratchet_key,
    ratchet_info,
    targets,
)
from blindpost.agent.model import MessageKind, QueueStatus
from blindpost.agent.store import connections, messages, queues, ratchets
from blindpost.agent.store.database import AgentStore
from blindpost.crypto.x3dh import proposed_params
from blindpost.wire.agent.envelopes import RatchetKey, read_agent_envelope
from blindpost.wire.agent.messages import (
    AgentConnInfo,
    AgentMessage,
    AMsg,
    EReady,
    read_agent_message,
    write_agent_message,
)
from blindpost.wire.agent.sizes import padded_sizes
from blindpost.wire.primitives import decode_whole, encode
from tests.support.agent.parties import RecordedPairs, joined
from tests.support.agent.ratchets import seeded
from tests.support.agent.rows import CONN, ROUTER, Rows, snd_queue

CONFIRMED, ACTIVE, SECURED = QueueStatus.CONFIRMED, QueueStatus.ACTIVE, QueueStatus.SECURED


class Sending(Rows):
    """A connection that can send."""

    def is_like(self, version: int = 7, *, pq: bool = False, state: SyncState = SyncState.OK) -> None:
        with self.step() as tx:
            connections.set_version(tx, CONN, version)
            connections.set_pq_support(tx, CONN, pq)
            connections.set_sync_state(tx, CONN, state)

    def says(self, body: bytes = b"body", **options: Any) -> Enqueued:
        with self.step() as tx:
            enqueued = enqueue(tx, self.whole, AMsg(body), **options)
            self.names = set(tx.group.names)
        return enqueued

    def pending(self, number: int = 1) -> messages.PendingDelivery:
        found = messages.next_delivery(self._store.reading, CONN, number)
        assert found is not None
        return found


@pytest.fixture
def sending(store: AgentStore) -> Sending:
    return Sending(store)


@pytest.mark.parametrize("notify", [True, False, None])
def test_a_message_takes_its_number_and_its_place(sending: Sending, notify: bool | None) -> None:
    before = ratchets.find_ratchet(sending._store.reading, CONN)
    assert sending.says(b"first", notify=notify) == Enqueued(1, False)
    pending = sending.pending()
    assert (pending.kind, pending.notify, pending.pq) == (MessageKind.A_MSG, bool(notify), False)
    assert (pending.internal_id, pending.padded_size) == (1, padded_sizes(7, False).message)
    assert decode_whole(pending.body, read_agent_message) == AgentMessage(1, b"", AMsg(b"first"))
    record = sending.whole.record
    assert (record.last_snd_id, record.last_snd_hash) == (1, hashlib.sha256(pending.body).digest())
    assert ratchets.find_ratchet(sending._store.reading, CONN) != before
    assert (sending.woken, sending.names) == ([1], {(CONN, 1)})
    sending.says(b"second")
    second = decode_whole(_body(sending, 2), read_agent_message)
    assert second == AgentMessage(2, record.last_snd_hash, AMsg(b"second"))


def _body(sending: Sending, internal_id: int) -> bytes:
    with sending.step() as tx:
        tx.sql.execute("DELETE FROM snd_message_deliveries WHERE internal_id < ?", (internal_id,))
        tx.sql.forget_message(messages._READ_AHEAD, (CONN, 1))
    return sending.pending().body


def test_where_messages_go() -> None:
    """To the first queue always, to others once they can be used."""
    one = snd_queue(1, status=QueueStatus.NEW)
    others = [snd_queue(number, status=status) for number, status in enumerate(QueueStatus, 2)]
    usable = [queue for queue in others if queue.usable]
    assert 0 < len(usable) < len(others)
    assert targets([one, *others]) == [one, *usable]
    assert targets([]) == []


def test_a_message_for_all_queues_or_for_these(sending: Sending) -> None:
    second = replace(snd_queue(2, b"second".ljust(24)), server=ROUTER)
    with sending.step() as tx:
        queues.insert_snd(tx, second)
    sending.says()
    assert [(queue, number) for queue, number, _, _ in sending.deliveries] == [(1, 1), (2, 1)]
    sending.woken.clear()
    sending.says(queues=[second])
    assert [(queue, number) for queue, number, _, _ in sending.deliveries][2:] == [(2, 2)]
    assert sending.woken == [2]


@pytest.mark.parametrize("state", SyncState)
def test_nothing_is_sent_while_the_ratchets_are_not_in_step(sending: Sending, state: SyncState) -> None:
    """But that they are."""
    sending.is_like(state=state)
    with sending.step() as tx:
        enqueue(tx, sending.whole, EReady(0), despite_sync=True)
    if state.send_prohibited:
        with pytest.raises(OutOfStepError):
            sending.says()
        assert len(sending.deliveries) == 1
    else:
        sending.says()


@pytest.mark.parametrize(("version", "pq"), [(7, True), (7, False), (4, True), (5, True)])
def test_as_much_as_fits_and_no_more(sending: Sending, version: int, pq: bool) -> None:
    sending.is_like(version, pq=pq)
    most = padded_sizes(version, pq).message_max
    room = most - len(_plain(b""))
    with pytest.raises(CommandError, match=f"at most {padded_sizes(version, pq).body_max} bytes"):
        sending.says(b"x" * (room + 1))
    assert (sending.deliveries, sending.whole.record.last_snd_id) == ([], 0)
    sending.says(b"x" * room)
    assert sending.pending().padded_size == padded_sizes(version, pq).message


def _plain(body: bytes) -> bytes:
    return encode(AgentMessage(1, b"", AMsg(body)), write_agent_message)


@pytest.mark.parametrize(
    ("version", "wish", "support"),
    [(7, True, True), (5, True, True), (4, True, False), (7, False, False), (7, None, False)],
)
def test_a_wish_for_post_quantum_secrets(
    sending: Sending, version: int, wish: bool | None, support: bool
) -> None:
    """It is kept for the connection, if the peer's version knows them; the message has room for them."""
    sending.is_like(version)
    sending.says(pq_wish=wish)
    assert sending.whole.record.pq_support is support
    assert sending.pending().padded_size == padded_sizes(version, support).message
    ratchet = ratchets.find_ratchet(sending._store.reading, CONN)
    assert ratchet is not None
    assert ratchet.enable_kem is support


def test_a_wish_against_them_does_not_change_the_connection(sending: Sending) -> None:
    sending.is_like(pq=True)
    sending.says(pq_wish=False)
    assert sending.whole.record.pq_support is True


def test_post_quantum_secrets_that_are_in_use(store: AgentStore) -> None:
    sending = Sending(store)
    own, _ = joined(pq_s=True, pq_r=True)
    sending.is_like(pq=True)
    with sending.step() as tx:
        ratchets.set_ratchet(tx, CONN, own.ratchet)
    assert sending.says().pq is True
    assert sending.pending().pq is True


def test_a_connection_without_a_ratchet(sending: Sending) -> None:
    with sending.step() as tx:
        ratchets.delete_ratchet(tx, CONN)
    with pytest.raises(InternalError, match="has no ratchet yet"):
        sending.says()
    assert sending.deliveries == []


def test_nothing_is_sent_before_something_was_received(sending: Sending) -> None:
    """The ratchet of who was joined begins with a message of the joiner."""
    with sending.step() as tx:
        ratchets.set_ratchet(tx, CONN, joined()[1].ratchet)
    with pytest.raises(CommandError, match="before a message was received"):
        sending.says()
    assert sending.deliveries == []


# Confirmations and ratchet keys


@pytest.mark.parametrize("pq", [True, False])
def test_a_confirmation(sending: Sending, pq: bool) -> None:
    sending.is_like(pq=pq)
    with sending.step() as tx:
        enqueued = enqueue_confirmation(tx, sending.whole.record, sending.queue(), AgentConnInfo(b"info"))
        assert (CONN, enqueued.internal_id) in tx.group.names
    pending = sending.pending()
    assert (pending.kind, pending.notify, pending.body) == (MessageKind.CONN_INFO, True, b"Iinfo")
    assert pending.padded_size == padded_sizes(7, pq).conn_info
    ratchet = ratchets.find_ratchet(sending._store.reading, CONN)
    assert ratchet is not None
    assert ratchet.enable_kem is pq


@pytest.mark.parametrize("pq", [True, False])
def test_a_confirmation_that_is_too_long(sending: Sending, pq: bool) -> None:
    sending.is_like(pq=pq)
    room = padded_sizes(7, pq).conn_info_max - 1
    with pytest.raises(CommandError, match="too long"), sending.step() as tx:
        enqueue_confirmation(tx, sending.whole.record, sending.queue(), AgentConnInfo(b"x" * (room + 1)))
    assert sending.deliveries == []
    with sending.step() as tx:
        enqueue_confirmation(tx, sending.whole.record, sending.queue(), AgentConnInfo(b"x" * room))


def test_ratchet_keys_take_a_number_and_no_ratchet(sending: Sending) -> None:
    sending.is_like(state=SyncState.REQUIRED)
    keys = proposed_params(3, pq=False, entropy=seeded("own"), kem=RecordedPairs()).public(3)
    before = ratchets.find_ratchet(sending._store.reading, CONN)
    with sending.step() as tx:
        assert enqueue_ratchet_key(tx, sending.whole, keys, b"about") == Enqueued(1, False)
        assert (CONN, 1) in tx.group.names
    assert ratchets.find_ratchet(sending._store.reading, CONN) == before
    pending = sending.pending()
    envelope = decode_whole(pending.body, read_agent_envelope)
    assert isinstance(envelope, RatchetKey)
    assert (envelope.e2e, envelope.info, pending.body_key) == (keys, ratchet_info(b"about"), None)
    record = sending.whole.record
    assert (record.last_snd_id, record.last_snd_hash) == (1, hashlib.sha256(ratchet_info(b"about")).digest())
    assert sending.woken == [1]
