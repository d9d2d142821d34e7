"""What is inside the ratchet, on the rows of a store: its place in the chain, what the program is told."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from blindpost.agent.connection import ReceivedMessage
from blindpost.agent.errors import AgentError, ConnError
from blindpost.agent.events import (
    Event,
    Failed,
    QueueHasRoom,
    ReceiptsReceived,
    ReceiptStatus,
    Received,
)
from blindpost.agent.messages import content
from blindpost.agent.messages.acking import acknowledge
from blindpost.agent.messages.content import Arrival, Fate
from blindpost.agent.messages.integrity import Awaited, MsgOk, MsgSkipped
from blindpost.agent.messages.sending import enqueue
from blindpost.agent.model import QueueStatus, RcvSwitch, SyncState
from blindpost.agent.store import awaited, connections, messages, queues, ratchets
from blindpost.agent.store import rotation as rotation_rows
from blindpost.agent.store.database import AgentStore
from blindpost.agent.store.messages import RcvMessage
from blindpost.wire.agent.messages import (
    AgentMessage,
    AMessage,
    AMsg,
    AQCont,
    ARcvd,
    EReady,
    Hello,
    QTest,
    QUse,
    Receipt,
    UsedQueue,
    write_agent_message,
)
from blindpost.wire.primitives import encode
from blindpost.wire.queue_addresses import SenderAddress
from tests.support.agent.parties import joined
from tests.support.agent.rows import CONFIG, CONN, NOW, ROUTER, Rows, rcv_queue, snd_queue

RETENTION = CONFIG.retention
OK, BAD = ReceiptStatus.OK, ReceiptStatus.BAD_MSG_HASH
OTHER = SenderAddress(ROUTER, b"other".ljust(24))


class Receiving(Rows):
    """A connection that works both ways, and what its peer says."""

    def __init__(
        self,
        store: AgentStore,
        *,
        duplex: bool = True,
        status: QueueStatus = QueueStatus.ACTIVE,
        receives: QueueStatus = QueueStatus.ACTIVE,
    ) -> None:
        super().__init__(store, snd_queue(status=status))
        self.room: list[int] = []
        self.acknowledged: list[int] = []
        self._work.room.listen(lambda key: self.room.append(key[1]))
        self._work.acknowledged.listen(lambda told: self.acknowledged.append(told[1]))
        self._said, self._hash = 0, b""
        self._rcv = rcv_queue(receives)
        if duplex:
            with self.step() as tx:
                queues.insert_rcv(tx, self._rcv)

    def said(self, message: AMessage, *, skip: int = 0, had_chain: bool = True, pq: bool = False) -> Fate:
        """The peer's next message, or a later one."""
        self._said += 1 + skip
        content_of = AgentMessage(self._said, self._hash, message)
        plain = encode(content_of, write_agent_message)
        self._hash = hashlib.sha256(plain).digest()
        encrypted_hash = hashlib.sha256(b"encrypted" + plain).digest()
        broker_id = b"broker %d" % self._said
        arrival = Arrival(self._rcv, broker_id, NOW - 1, encrypted_hash, had_chain, None)
        with self.step() as tx:
            fate = content.received(tx, self.whole, arrival, content_of, plain, pq=pq)
        record = connections.load(self._store.reading, CONN)
        assert (record.last_external_id, record.last_rcv_hash) == (self._said, self._hash)
        assert messages.is_known_hash(self._store.reading, CONN, encrypted_hash)
        return fate

    def rotates(self, switch: RcvSwitch) -> None:
        with self.step() as tx:
            queues.set_switch(tx, self._rcv, switch, NOW)

    def missed(self) -> None:
        """A message of the peer that does not come, or not yet."""
        plain = encode(AgentMessage(self._said + 1, self._hash, AMsg(b"late")), write_agent_message)
        self._said += 1
        self._hash = hashlib.sha256(plain).digest()

    @property
    def awaited(self) -> Awaited | None:
        return awaited.find(self._store.reading, CONN)

    def stored(self, internal_id: int) -> RcvMessage | None:
        return messages.find_rcv(self._store.reading, CONN, internal_id)

    def sent(self) -> Receipt:
        """Something that we sent, and the receipt for it."""
        self.send()
        record = connections.load(self._store.reading, CONN)
        self.events.clear()
        return Receipt(record.last_snd_id, record.last_snd_hash, b"")

    def redelivered(self, internal_id: int) -> Fate:
        stored = self.stored(internal_id)
        assert stored is not None
        with self.step() as tx:
            return content.redelivered(tx, self.whole, stored)

    def ack(self, internal_id: int, receipt: bytes | None = None, *, once: bool = False) -> None:
        with self.step() as tx:
            acknowledge(tx, CONN, internal_id, receipt, once=once)

    @property
    def commands(self) -> list[tuple[str, int | None]]:
        return list(self._store.reading.sql.execute("SELECT command_tag, internal_id FROM commands"))

    @property
    def only(self) -> Event:
        (event,) = self.events
        return event


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AgentStore]:
    with closing(AgentStore.open(tmp_path / "a.db")) as opened:
        yield opened


@pytest.fixture
def receiving(store: AgentStore) -> Receiving:
    return Receiving(store)


def shown(event: Event) -> ReceivedMessage:
    assert isinstance(event, Received | ReceiptsReceived)
    assert event.conn.id == CONN
    return event.msg


def error_of(event: Event) -> str:
    assert isinstance(event, Failed)
    return str(event.error)


def receipts(event: Event) -> list[tuple[int, ReceiptStatus]]:
    assert isinstance(event, ReceiptsReceived)
    return [(one.msg_id, one.status) for one in event.receipts]


# Messages for the program


def test_a_message_is_stored_and_shown(receiving: Receiving) -> None:
    assert receiving.said(AMsg(b"first"), pq=True) is Fate.PENDING
    message = shown(receiving.only)
    assert (message.body, message.integrity, message.sender_number) == (b"first", MsgOk(), 1)
    assert (message.broker_id, message.broker_ts, message.received_at) == (b"broker 1", NOW - 1, NOW)
    assert message.pq
    stored = receiving.stored(message.id)
    assert stored is not None
    assert (stored.body, stored.user_ack, stored.attempts) == (b"first", False, 0)
    assert receiving.awaited is None
    receiving.said(AMsg(b"second"))
    assert shown(receiving.events[1]).integrity == MsgOk()


def test_a_gap_is_told(receiving: Receiving) -> None:
    receiving.said(AMsg(b"first"))
    receiving.said(AMsg(b"fourth"), skip=2)
    assert shown(receiving.events[1]).integrity == MsgSkipped(2, 3)
    assert receiving.awaited is None


@pytest.mark.parametrize("switch", [RcvSwitch.SENDING_QUSE, RcvSwitch.RECEIVED_MESSAGE])
def test_a_gap_may_be_closed_while_there_are_two_queues(receiving: Receiving, switch: RcvSwitch) -> None:
    receiving.said(AMsg(b"first"))
    before = receiving._hash
    receiving.rotates(switch)
    receiving.missed()
    receiving.said(AMsg(b"third"))
    assert shown(receiving.events[1]).integrity == MsgOk()
    assert receiving.awaited == Awaited(2, 2, before)
    receiving.said(AMsg(b"fourth"))
    assert receiving.awaited == Awaited(2, 2, before)


def test_what_was_awaited_is_not_the_last(receiving: Receiving) -> None:
    receiving.said(AMsg(b"first"))
    receiving.rotates(RcvSwitch.SENDING_QUSE)
    late = AgentMessage(2, receiving._hash, AMsg(b"late"))
    receiving.missed()
    receiving.said(AMsg(b"third"))
    plain = encode(late, write_agent_message)
    with receiving.step() as tx:
        arrival = Arrival(receiving._rcv, b"late", NOW, b"h" * 32, True, None)
        content.received(tx, receiving.whole, arrival, late, plain, pq=False)
    assert shown(receiving.events[2]).integrity == MsgOk()
    assert receiving.awaited is None
    record = connections.load(receiving._store.reading, CONN)
    assert (record.last_external_id, record.last_rcv_hash) == (3, receiving._hash)


@pytest.mark.parametrize("switch", [RcvSwitch.SWITCH_STARTED, RcvSwitch.SENDING_QADD])
def test_before_that_a_gap_is_one(receiving: Receiving, switch: RcvSwitch) -> None:
    receiving.rotates(switch)
    receiving.said(AMsg(b"second"), skip=1)
    assert shown(receiving.only).integrity == MsgSkipped(1, 1)


def test_the_ratchet_is_stored_with_the_message(receiving: Receiving) -> None:
    stepped = replace(joined()[0].ratchet, ns=7)
    message = AgentMessage(1, b"", AMsg(b"first"))
    plain = encode(message, write_agent_message)
    with receiving.step() as tx:
        arrival = Arrival(receiving._rcv, b"b", NOW, b"h" * 32, True, stepped)
        content.received(tx, receiving.whole, arrival, message, plain, pq=False)
    assert ratchets.find_ratchet(receiving._store.reading, CONN) == stepped


# Messages between agents


def test_what_agents_say_takes_its_place_and_is_not_kept(receiving: Receiving) -> None:
    assert receiving.said(QTest((OTHER,))) is Fate.ACK
    assert (receiving.events, receiving.messages) == ([], [])
    receiving.said(AMsg(b"next"))
    assert shown(receiving.only).integrity == MsgOk()


def test_what_they_say_wrongly_takes_its_place_too(receiving: Receiving) -> None:
    assert receiving.said(QUse((UsedQueue(OTHER, True),))) is Fate.ACK
    assert error_of(receiving.only).startswith("AGENT A_QUEUE: QUSE: switched queue address not found")
    receiving.said(AMsg(b"next"))
    assert shown(receiving.events[1]).integrity == MsgOk()


@pytest.mark.parametrize(
    ("snd", "told", "answered"),
    [(QueueStatus.ACTIVE, ["CON"], []), (QueueStatus.CONFIRMED, [], ["H"])],
    ids=["both ways", "not yet"],
)
def test_hello_completes_a_connection(
    store: AgentStore, snd: QueueStatus, told: list[str], answered: list[str]
) -> None:
    receiving = Receiving(store, status=snd, receives=QueueStatus.CONFIRMED)
    assert receiving.said(Hello(), pq=True) is Fate.ACK
    assert [event.name for event in receiving.events] == told
    assert [one[2] for one in receiving.deliveries] == answered


def test_a_queue_has_room(receiving: Receiving) -> None:
    assert receiving.said(AQCont(receiving.queue().sender_address)) is Fate.ACK
    assert receiving.room == [1]
    assert isinstance(receiving.only, QueueHasRoom)


def test_room_in_a_queue_that_was_left_is_no_news(receiving: Receiving) -> None:
    with receiving.step() as tx:
        rotation_rows.remember_left(tx, snd_queue(9, OTHER.sender_id))
    receiving.said(AQCont(OTHER))
    assert (receiving.events, receiving.room) == ([], [])


def test_room_in_an_unknown_queue_is_an_error(receiving: Receiving) -> None:
    receiving.said(AQCont(OTHER))
    assert error_of(receiving.only) == "AGENT A_QUEUE: QCONT: queue address not found"
    assert receiving.room == []


@pytest.mark.parametrize("had_chain", [True, False])
def test_a_new_ratchet_is_answered_by_who_could_not_speak(receiving: Receiving, had_chain: bool) -> None:
    assert receiving.said(EReady(0), had_chain=had_chain) is Fate.ACK
    assert [one[2] for one in receiving.deliveries] == ([] if had_chain else ["E"])


def test_nothing_is_awaited_before_a_new_ratchet(receiving: Receiving) -> None:
    receiving.rotates(RcvSwitch.SENDING_QUSE)
    receiving.said(EReady(0), skip=1)
    assert receiving.awaited is None


# Receipts


def test_receipts_are_told_and_kept(receiving: Receiving) -> None:
    first, second = receiving.sent(), receiving.sent()
    assert receiving.said(ARcvd((first, second))) is Fate.PENDING
    (one, one_status), (two, two_status) = receipts(receiving.only)
    assert (one_status, two_status, two - one) == (OK, OK, 1)
    assert receiving.stored(shown(receiving.only).id) is not None


def test_a_receipt_for_other_bytes(receiving: Receiving) -> None:
    wrong = replace(receiving.sent(), msg_hash=b"w" * 32)
    assert receiving.said(ARcvd((wrong,))) is Fate.PENDING
    assert [status for _, status in receipts(receiving.only)] == [BAD]
    right = replace(wrong, msg_hash=connections.load(receiving._store.reading, CONN).last_snd_hash)
    receiving.said(ARcvd((right,)))
    assert [status for _, status in receipts(receiving.events[1])] == [OK], "a better one is told"


def test_a_receipt_that_came_before_is_no_news(receiving: Receiving) -> None:
    receipt = receiving.sent()
    receiving.said(ARcvd((receipt,)))
    receiving.events.clear()
    assert receiving.said(ARcvd((receipt,))) is Fate.ACK
    assert receiving.events == []


def test_receipts_for_what_is_not_known_or_has_none(receiving: Receiving) -> None:
    """Each is told, and those that are good count."""
    with receiving.step() as tx:
        enqueue(tx, receiving.whole, QTest((OTHER,)))
    hello = Receipt(1, b"", b"")
    good, unknown = receiving.sent(), Receipt(99, b"", b"")
    assert receiving.said(ARcvd((unknown, hello, good))) is Fate.PENDING
    *wrong, told = receiving.events
    assert [error_of(event) for event in wrong] == [
        "INTERNAL: a receipt for a message that is not known",
        "AGENT A_PROHIBITED: RCVD: not a user message",
    ]
    assert [status for _, status in receipts(told)] == [OK]
    receiving.events.clear()
    assert receiving.said(ARcvd((unknown,))) is Fate.ACK
    assert len(receiving.events) == 1


def test_receipts_on_a_connection_of_one_way(store: AgentStore) -> None:
    receiving = Receiving(store, duplex=False)
    receipt = receiving.sent()
    assert receiving.said(ARcvd((receipt,))) is Fate.ACK
    assert error_of(receiving.only) == "AGENT A_PROHIBITED: RCVD: connection is not duplex"


# Once more from the router


def test_a_message_that_nobody_acknowledged_is_shown_again(receiving: Receiving) -> None:
    receiving.said(AMsg(b"body"))
    first = shown(receiving.only)
    for attempts in (1, 2):
        assert receiving.redelivered(first.id) is Fate.PENDING
        stored = receiving.stored(first.id)
        assert stored is not None
        assert stored.attempts == attempts
    assert [shown(event) for event in receiving.events] == [first] * 3
    assert {type(event) for event in receiving.events} == {Received}


def test_receipts_are_shown_again(receiving: Receiving) -> None:
    receiving.said(ARcvd((receiving.sent(), receiving.sent())))
    told = receipts(receiving.only)
    assert receiving.redelivered(shown(receiving.only).id) is Fate.PENDING
    assert receipts(receiving.events[1]) == told
    assert shown(receiving.events[1]) == shown(receiving.events[0])
    assert len(told) == 2


def test_a_message_that_was_acknowledged_is_not_shown_again(receiving: Receiving) -> None:
    receiving.said(AMsg(b"body"))
    message = shown(receiving.only)
    receiving.ack(message.id)
    assert receiving.redelivered(message.id) is Fate.ACK
    assert len(receiving.events) == 1


@pytest.mark.parametrize(
    ("attempts", "age_s", "dropped"),
    [
        (RETENTION.dropped_attempts - 1, RETENTION.dropped_after_s, True),
        (RETENTION.dropped_attempts, RETENTION.dropped_after_s + 1, True),
        (RETENTION.dropped_attempts - 2, RETENTION.dropped_after_s, False),
        (RETENTION.dropped_attempts - 1, RETENTION.dropped_after_s - 1, False),
    ],
)
def test_a_message_that_is_never_acknowledged_is_given_up(
    receiving: Receiving, attempts: int, age_s: int, dropped: bool
) -> None:
    receiving.said(AMsg(b"body"))
    message = shown(receiving.only)
    with receiving.step() as tx:
        tx.sql.execute("UPDATE rcv_messages SET receive_attempts = ?", (attempts,))
    receiving.events.clear()
    receiving.now += age_s
    assert receiving.redelivered(message.id) is (Fate.ACK if dropped else Fate.PENDING)
    if dropped:
        told = f"AGENT A_DUPLICATE: a message of {NOW - 1} was dropped after {attempts + 1} attempts"
        assert error_of(receiving.only) == told
    else:
        assert shown(receiving.only) == message
    assert (receiving.stored(message.id) is None) is dropped


# Acknowledgements of the program


def test_an_acknowledged_message_goes_with_its_command(receiving: Receiving) -> None:
    receiving.said(AMsg(b"body"))
    message = shown(receiving.only)
    receiving.ack(message.id)
    stored = receiving.stored(message.id)
    assert stored is not None
    assert stored.user_ack
    assert receiving.commands == [("ACK", message.id)]
    assert receiving.acknowledged == [message.id]
    assert receiving.deliveries == [], "no receipt was wanted"


def test_a_second_acknowledgement(receiving: Receiving) -> None:
    """It does nothing but ask the router once more; in a transaction of the program it is an error."""
    receiving.said(AMsg(b"body"))
    message = shown(receiving.only)
    receiving.ack(message.id, b"read")
    receiving.ack(message.id, b"read")
    assert len(receiving.deliveries) == 1
    assert receiving.acknowledged == [message.id]
    with pytest.raises(ConnError):
        receiving.ack(message.id, once=True)
    with pytest.raises(ConnError):
        receiving.ack(99)
    assert receiving.commands == [("ACK", message.id)] * 2


@pytest.mark.parametrize(
    ("version", "state", "sends"),
    [(4, SyncState.OK, True), (3, SyncState.OK, False), (7, SyncState.STARTED, False)],
    ids=["old enough", "too old", "out of step"],
)
def test_when_a_receipt_is_sent(receiving: Receiving, version: int, state: SyncState, sends: bool) -> None:
    receiving.said(AMsg(b"body"))
    with receiving.step() as tx:
        tx.sql.execute("UPDATE connections SET smp_agent_version = ?", (version,))
        connections.set_sync_state(tx, CONN, state)
    receiving.ack(shown(receiving.only).id, b"read")
    assert [one[2] for one in receiving.deliveries] == (["V"] if sends else [])
    assert len(receiving.commands) == 1


def test_receipts_have_no_receipts(receiving: Receiving) -> None:
    receiving.said(ARcvd((receiving.sent(),)))
    message = shown(receiving.only)
    with pytest.raises(AgentError, match="receipts"):
        receiving.ack(message.id, b"read")
    assert receiving.commands == []


def test_what_has_its_receipt_is_forgotten_when_the_program_knows(receiving: Receiving) -> None:
    good, bad = receiving.sent(), receiving.sent()
    receiving.said(ARcvd((good, replace(bad, msg_hash=b"w" * 32))))
    told, (sent, other) = shown(receiving.only), [one for one, _ in receipts(receiving.only)]
    receiving.ack(told.id)
    kept = [internal_id for internal_id, _ in receiving.messages]
    assert sent not in kept
    assert other in kept


def test_a_message_of_a_queue_that_is_gone_goes_at_once(receiving: Receiving) -> None:
    receiving.said(AMsg(b"body"))
    message = shown(receiving.only)
    with receiving.step() as tx:
        queues.delete(tx, receiving._rcv)
    receiving.ack(message.id)
    assert (receiving.commands, receiving.stored(message.id)) == ([], None)
