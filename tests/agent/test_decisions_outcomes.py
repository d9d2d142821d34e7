"""What follows from the answer to a SEND, on the rows of a store: what stays, what is told, what is woken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from blindpost.agent.errors import AgentError, BrokerError, ConnError, network_error, refused_with
from blindpost.agent.events import Connected, Event, Failed, SendDelayed, SendFailed, SendsFailed, Sent
from blindpost.agent.failures import Kind
from blindpost.agent.messages import outcomes
from blindpost.agent.messages.sending import enqueue, enqueue_confirmation
from blindpost.agent.messages.verdicts import Again
from blindpost.agent.model import QueueStatus, SndSwitch
from blindpost.agent.queues.deletion import DELIVERY_S
from blindpost.agent.store import connections, deletion, messages, queues
from blindpost.agent.store.database import AgentStore
from blindpost.agent.store.messages import PendingDelivery
from blindpost.client.errors import RefusedError, ResponseTimeoutError
from blindpost.wire.addresses import Host, Server
from blindpost.wire.agent.messages import (
    AgentConnInfo,
    AgentConnInfoReply,
    AMessage,
    AMsg,
    Hello,
    KeyedQueue,
    QKey,
    QTest,
)
from blindpost.wire.queue_addresses import QueueAddress, QueueInfo
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.values import QueueMode
from tests.support.agent.rows import CONFIG, CONN, NOW, PEER_KEY, ROUTER, Rows, rcv_queue, snd_queue

SECOND = b"second queue".ljust(24)
PROXY = Server((Host("proxy.example"),), "5223", b"p" * 32)
ACTIVE, CONFIRMED, SECURED = QueueStatus.ACTIVE, QueueStatus.CONFIRMED, QueueStatus.SECURED
QUOTA_S, UNDELIVERED_S = CONFIG.retention.quota_s, CONFIG.retention.undelivered_s


def refused(code: Code) -> AgentError:
    return network_error(ROUTER, RefusedError(code))


def away() -> AgentError:
    return BrokerError(ROUTER, ResponseTimeoutError())


class Sending(Rows):
    """What routers answer."""

    def pending(self, number: int = 1) -> PendingDelivery:
        found = messages.next_delivery(self._store.reading, CONN, number)
        assert found is not None
        return found

    def put(self, message: AMessage, numbers: tuple[int, ...] = (1,)) -> int:
        with self.step() as tx:
            chosen = [self.queue(number) for number in numbers]
            return enqueue(tx, self.whole, message, queues=chosen).internal_id

    def second(self, status: QueueStatus = SECURED) -> None:
        """A queue that is to replace the first."""
        with self.step() as tx:
            queues.insert_snd(tx, snd_queue(2, SECOND, replaces=1, status=status))

    def receiving(self, status: QueueStatus = ACTIVE) -> None:
        with self.step() as tx:
            queues.insert_rcv(tx, rcv_queue(status))

    def confirmation(self, content: AgentConnInfo | AgentConnInfoReply) -> None:
        with self.step() as tx:
            enqueue_confirmation(tx, connections.load(tx, CONN), self.queue(), content)

    def delivered(self, number: int = 1, proxy: Server | None = None) -> None:
        with self.step() as tx:
            outcomes.delivered(tx, self.whole, self.queue(number), self.pending(number), proxy)

    def failed(self, error: AgentError, number: int = 1, *, news: bool = True) -> Again:
        return self.failed_one(self.pending(number), error, number, news=news)

    def failed_one(self, pending: PendingDelivery, error: AgentError, number: int, *, news: bool) -> Again:
        with self.step() as tx:
            return outcomes.failed(tx, self.whole, self.queue(number), pending, error, news=news)

    def body(self, internal_id: int) -> bytes:
        """What is stored of a message itself."""
        query = "SELECT msg_body FROM messages WHERE internal_id = ?"
        ((found,),) = self._store.reading.sql.execute(query, (internal_id,))
        return bytes(found)

    def delete_when_delivered(self) -> None:
        with self.step() as tx:
            deletion.mark_waiting(tx, CONN, NOW)

    @property
    def is_there(self) -> bool:
        return connections.find(self._store.reading, CONN, deleted=True) is not None

    def names(self) -> list[str]:
        return [event.name for event in self.events]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AgentStore]:
    with closing(AgentStore.open(tmp_path / "a.db")) as opened:
        yield opened


@pytest.fixture
def sending(store: AgentStore) -> Sending:
    return Sending(store)


def only(events: list[Event]) -> Event:
    (event,) = events
    return event


# Taken


def test_a_message_is_sent(sending: Sending) -> None:
    first, second = sending.send(), sending.send()
    sending.forget_signals()
    sending.delivered(proxy=PROXY)
    sent = only(sending.events)
    assert isinstance(sent, Sent)
    assert (sent.conn.id, sent.msg_id, sent.proxy) == (CONN, first, PROXY)
    assert sending.deliveries == [(1, second, "M", 0)]
    assert sending.messages == [(first, "M"), (second, "M")], "a receipt may come"
    assert len(sending.body(first)) < len(sending.body(second))


def test_what_agents_say_to_each_other_is_forgotten(sending: Sending) -> None:
    sending.put(QTest((sending.queue().sender_address,)))
    sending.forget_signals()
    sending.delivered()
    assert (sending.deliveries, sending.messages, sending.events) == ([], [], [])


def test_a_message_through_two_queues_is_sent_once(sending: Sending) -> None:
    sending.second()
    sent = sending.put(AMsg(b"both"), (1, 2))
    sending.delivered(2)
    assert sending.names() == ["SENT"]
    assert sending.deliveries == [(1, sent, "M", 0)]
    left = sending.pending(1)
    assert (left.body_key is not None, len(left.body) > 4) == (True, True), "it is whole for the other"
    sending.delivered(1)
    assert sending.names() == ["SENT"]
    assert sending.deliveries == []
    assert sending.messages == [(sent, "M")]


def test_what_a_queue_took_while_its_recipient_leaves_it_is_kept(sending: Sending) -> None:
    with sending.step() as tx:
        queues.set_switch(tx, sending.queue(), SndSwitch.SENDING_QKEY, NOW)
    sending.second(QueueStatus.NEW)
    early = sending.send()
    sending.delivered()
    assert sending.deliveries == []
    offered = QueueAddress(ROUTER, SECOND, PEER_KEY.public)
    key = sending.put(QKey((KeyedQueue(QueueInfo(4, offered), sending.queue().key.public),)))
    later = sending.send()
    sending.forget_signals()
    sending.delivered()
    assert sending.names() == ["SWITCH"]
    sending.delivered()
    assert sending.deliveries == [(1, key, "QK", 2), (1, later, "M", 2)]
    assert [event.name for event in sending.events] == ["SWITCH", "SENT"]
    assert sending.messages == [(early, "M"), (key, "QK"), (later, "M")]


def test_a_queue_in_a_rotation_keeps_nothing_after_it(sending: Sending) -> None:
    """The old one is alone again, with its state: the slower way has the same outcome."""
    with sending.step() as tx:
        queues.set_switch(tx, sending.queue(), SndSwitch.SENDING_QTEST, NOW)
    sent = sending.send()
    sending.delivered()
    assert (sending.deliveries, sending.names()) == ([], ["SENT"])
    assert sending.messages == [(sent, "M")]


@pytest.mark.parametrize(
    ("mode", "status", "told"),
    [(QueueMode.MESSAGING, ACTIVE, ["CON"]), (QueueMode.CONTACT, CONFIRMED, []), (None, CONFIRMED, [])],
    ids=["secured by us", "contact", "old"],
)
def test_a_confirmation_arrived(
    store: AgentStore, mode: QueueMode | None, status: QueueStatus, told: list[str]
) -> None:
    sending = Sending(store, snd_queue(mode=mode, status=SECURED))
    sending.confirmation(AgentConnInfo(b"info"))
    with sending.step() as tx:
        tx.sql.execute(
            "INSERT INTO conn_confirmations (confirmation_id, conn_id, e2e_snd_pub_key, sender_conn_info,"
            " smp_reply_queues, smp_client_version) VALUES ('c', ?, x'', x'', x'', 4)",
            (CONN,),
        )
    sending.delivered()
    assert sending.rows[1][1] is status
    assert sending.names() == told
    assert (sending.deliveries, sending.messages) == ([], [])
    left = store.reading.sql.execute("SELECT count(*) FROM conn_confirmations").fetchone()
    assert left == (0,)


def test_a_confirmation_with_our_queues_arrived(store: AgentStore) -> None:
    """What the peer answers is still to come."""
    sending = Sending(store, snd_queue(status=SECURED))
    reply = QueueInfo(4, QueueAddress(ROUTER, SECOND, PEER_KEY.public))
    sending.confirmation(AgentConnInfoReply((reply,), b"info"))
    sending.delivered()
    assert sending.rows[1][1] is CONFIRMED
    assert (sending.events, sending.deliveries, sending.messages) == ([], [], [])


@pytest.mark.parametrize(
    ("receives", "told"),
    [(None, []), (QueueStatus.CONFIRMED, []), (ACTIVE, ["CON"])],
    ids=["one way", "not yet", "both ways"],
)
def test_hello_arrived(store: AgentStore, receives: QueueStatus | None, told: list[str]) -> None:
    sending = Sending(store, snd_queue(status=CONFIRMED))
    if receives is not None:
        sending.receiving(receives)
    sending.put(Hello())
    sending.delivered()
    assert sending.rows[1][1] is ACTIVE
    assert sending.names() == told
    if told:
        connected = only(sending.events)
        assert isinstance(connected, Connected)
        assert connected.pq is False


def test_a_connection_that_waited_for_its_last_message_is_deleted(sending: Sending) -> None:
    sending.send()
    sending.send()
    sending.delete_when_delivered()
    sending.forget_signals()
    sending.delivered()
    assert sending.is_there
    sending.delivered()
    assert not sending.is_there
    assert sending.names() == ["SENT", "SENT", "DEL_CONNS"]


# Not taken


@pytest.mark.parametrize("news", [True, False])
def test_a_full_queue_is_told_each_time(sending: Sending, news: bool) -> None:
    sent = sending.send()
    sending.forget_signals()
    assert sending.failed(refused(Code.QUOTA), news=news) is Again.SLOW
    delayed = only(sending.events)
    assert isinstance(delayed, SendDelayed)
    assert (delayed.msg_id, refused_with(delayed.error, Code.QUOTA)) == (sent, True)
    assert sending.deliveries == [(1, sent, "M", 0)]


def test_a_router_that_is_away_is_tried_again_in_silence(sending: Sending) -> None:
    sent = sending.send()
    sending.forget_signals()
    assert sending.failed(away()) is Again.FAST
    assert (sending.events, sending.deliveries) == ([], [(1, sent, "M", 0)])


def test_a_host_that_is_wrong_is_told_when_it_is_news(sending: Sending) -> None:
    sent = sending.send()
    sending.forget_signals()
    wrong = away()
    wrong.kind = Kind.HOST
    assert sending.failed(wrong, news=False) is Again.FAST
    assert sending.events == []
    assert sending.failed(wrong) is Again.FAST
    delayed = only(sending.events)
    assert isinstance(delayed, SendDelayed)
    assert delayed.msg_id == sent


def test_a_message_that_is_refused_has_failed(sending: Sending) -> None:
    sent, other = sending.send(), sending.send()
    sending.forget_signals()
    assert sending.failed(refused(Code.AUTH)) is Again.NO
    failed = only(sending.events)
    assert isinstance(failed, SendFailed)
    assert (failed.msg_id, refused_with(failed.error, Code.AUTH)) == (sent, True)
    assert sending.deliveries == [(1, other, "M", 0)]
    assert sending.messages == [(other, "M")]


def test_what_agents_say_is_told_as_an_error_of_the_connection(sending: Sending) -> None:
    sending.receiving()
    sending.put(Hello())
    sending.forget_signals()
    assert sending.failed(refused(Code.AUTH)) is Again.NO
    failed = only(sending.events)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ConnError)
    assert (sending.deliveries, sending.messages, sending.woken) == ([], [], [])


def test_without_qtest_both_queues_go_on(sending: Sending) -> None:
    sending.second()
    sending.put(QTest((sending.queue(2).sender_address,)), (2,))
    sending.forget_signals()
    assert sending.failed(refused(Code.AUTH), 2) is Again.NO
    assert sending.names() == ["ERR"]
    assert sending.woken == [1, 2]


def test_a_message_that_goes_elsewhere_has_not_failed(sending: Sending) -> None:
    """Refused by the old queue, while it waits for the new one; then by the new one, which is the last."""
    sending.second()
    sent = sending.put(AMsg(b"both"), (1, 2))
    sending.forget_signals()
    assert sending.failed(refused(Code.AUTH)) is Again.NO
    assert sending.events == []
    assert sending.deliveries == [(2, sent, "M", 0)]
    assert sending.failed(refused(Code.AUTH), 2) is Again.NO
    assert sending.names() == ["MERR"]
    assert sending.messages == []


def test_a_message_that_went_elsewhere_has_not_failed(sending: Sending) -> None:
    sending.second()
    sent = sending.put(AMsg(b"both"), (1, 2))
    sending.delivered(2)
    sending.forget_signals()
    assert sending.failed(refused(Code.AUTH)) is Again.NO
    assert (sending.events, sending.deliveries) == ([], [])
    assert sending.messages == [(sent, "M")], "its receipt may come"


def test_what_is_not_wanted_any_more_has_not_failed(sending: Sending) -> None:
    sending.send()
    pending = sending.pending()
    with sending.step() as tx:
        messages.delivered(tx, CONN, pending.delivery_id, pending.internal_id, keep=True)
    sending.delete_when_delivered()
    sending.forget_signals()
    assert sending.failed_one(pending, refused(Code.AUTH), 1, news=True) is Again.NO
    assert sending.names() == ["DEL_CONNS"]
    assert not sending.is_there


# Too old

AGES: list[tuple[Callable[[], AgentError], int]] = [
    (lambda: refused(Code.QUOTA), QUOTA_S),
    (away, UNDELIVERED_S),
]


@pytest.mark.parametrize(("error", "age_s"), AGES, ids=["full", "away"])
def test_what_has_waited_too_long_goes_with_all_that_has(
    sending: Sending, error: Callable[[], AgentError], age_s: int
) -> None:
    first, second, third = sending.send(), sending.send(), sending.send()
    sending.put(Hello())
    sending.now += 1
    young = sending.send()
    sending.forget_signals()
    sending.now = NOW + age_s
    assert sending.failed(error(), news=False) is not Again.NO
    sending.forget_signals()
    sending.now += 1
    assert sending.failed(error()) is Again.NO
    one, others = sending.events
    assert isinstance(one, SendFailed)
    assert isinstance(others, SendsFailed)
    assert (one.msg_id, others.msg_ids) == (first, (second, third)), "no message of ours but those"
    assert sending.messages == [(young, "M")]
    assert sending.deliveries == [(1, young, "M", 0)]


def test_what_is_too_old_for_one_queue_may_have_gone_through_the_other(sending: Sending) -> None:
    """The old queue's router is away for days; the new queue took one message, and another waits for it."""
    sending.second()
    lost, taken, waits = (sending.put(AMsg(b"both"), numbers) for numbers in ((1,), (1, 2), (1, 2)))
    sending.delivered(2)
    sending.forget_signals()
    sending.now += UNDELIVERED_S + 1
    assert sending.failed(away()) is Again.NO
    failed = only(sending.events)
    assert isinstance(failed, SendFailed)
    assert failed.msg_id == lost
    assert sending.deliveries == [(2, waits, "M", 0)]
    assert sending.messages == [(taken, "M"), (waits, "M")]
    sending.delivered(2)
    assert sending.names() == ["MERR", "SENT"]


def test_a_connection_whose_last_messages_are_too_old_is_deleted(sending: Sending) -> None:
    sending.send()
    sending.send()
    sending.delete_when_delivered()
    sending.forget_signals()
    sending.now += UNDELIVERED_S + 1
    assert DELIVERY_S <= UNDELIVERED_S
    assert sending.failed(away()) is Again.NO
    assert sending.names() == ["MERR", "MERRS", "DEL_CONNS"]
    assert not sending.is_there
