"""SUB, GET, ACK and what ends a subscription, on rows in memory: who has the queue, what is in flight."""

from __future__ import annotations

from typing import Any

import pytest

from blindpost.router import subscriptions
from blindpost.router.meters import Meter
from blindpost.router.model import Domain, Ends, QueueRecord
from blindpost.router.state import (
    GET_IDLE,
    PUSH_IDLE,
    Delivered,
    RouterClient,
    ServiceSub,
    Sub,
    SubKind,
    Walk,
)
from blindpost.router.turn import Delivery
from blindpost.wire.smp.errors import PROHIBITED, Code
from blindpost.wire.smp.responses import DELD, END, ERR, OK, SOK
from tests.support.router.in_memory import KNOWN, MEMBERS, NOW, SERVICE_ID, Desk, a_message

Q = b"q"
FIRST, SECOND = (Delivered(a_message(Q, n).msg_id, n, NOW, False, True) for n in (0, 1))
IN_FLIGHT = {kind: Sub(kind, FIRST) for kind in SubKind}


def holding(desk: Desk, client: RouterClient, held: Sub | None = PUSH_IDLE) -> RouterClient:
    """A connection that is subscribed to the queue."""
    desk.state.queues.take_over(Q, client)
    desk.undo.forget()
    if held is not None:
        client.subs.fill(Q, held)
    client.waiting.fill(Q, True)
    return client


def subscribed(desk: Desk, client: RouterClient, record: QueueRecord) -> None:
    desk.decide(lambda turn: subscriptions.sub(turn, client, b"corr", record))


def answers(desk: Desk, client: RouterClient) -> list[Any]:
    """What the connection gets: responses with their correlation id, events without one."""
    return [
        (one.corr_id, one.response.message if isinstance(one.response, Delivery) else one.response)
        for one in desk.turn.outbox
        if one.client_id == client.client_id
    ]


@pytest.mark.parametrize("messages", [0, 1])
@pytest.mark.parametrize("held", [None, PUSH_IDLE, IN_FLIGHT[SubKind.PUSH]])
def test_a_plain_connection_takes_a_queue_over(messages: int, held: Sub | None) -> None:
    desk = Desk(KNOWN)
    record = desk.queue(Q, messages, None)
    loser, client = holding(desk, desk.client(None), IN_FLIGHT[SubKind.PUSH]), desk.client(None)
    if held is not None:
        client.subs.fill(Q, held)
    subscribed(desk, client, record)
    event = [(b"", a_message(Q))] if messages else []
    assert answers(desk, client) == [(b"corr", SOK(None)), *event]
    assert answers(desk, loser) == [(b"", END())]
    assert (loser.subs.get(Q), loser.waiting.get(Q)) == (None, None)
    assert client.subs.get(Q) == (IN_FLIGHT[SubKind.PUSH] if messages else PUSH_IDLE)
    assert desk.state.queues.holder(Q) is client
    fresh = {Meter.SUBS: 1} if messages and held is None else {}
    again = {} if held is None else {Meter.SUB_DUPLICATE: 1}
    assert desk.counted == {Meter.SUB_ENDS: 1, **fresh, **again}
    subscribed(desk, client, record)
    assert answers(desk, client) == [(b"corr", SOK(None)), *event], "it is not ended by itself"
    assert desk.counted == {Meter.SUB_DUPLICATE: 1}


@pytest.mark.parametrize("own", [True, False])
def test_a_service_takes_a_queue_into_its_set_and_gets_its_message_again(own: bool) -> None:
    desk = Desk(KNOWN)
    record, client = desk.queue(Q), desk.client()
    client.service_subs.fill(Domain.MESSAGES, ServiceSub(True, MEMBERS))
    holder = holding(desk, client if own else desk.client(None), IN_FLIGHT[SubKind.PUSH])
    client.subs.fill(Q, Sub(SubKind.PUSH, SECOND))
    client.waiting.fill(Q, True)
    subscribed(desk, client, record)
    assert answers(desk, client) == [(b"corr", SOK(SERVICE_ID)), (b"", a_message(Q))]
    assert client.subs.get(Q) == IN_FLIGHT[SubKind.PUSH]
    assert client.waiting.get(Q) is None
    assert desk.state.queues.holder(Q) is None
    ended = {} if own else {Meter.SUB_ENDS: 1}
    assert desk.counted == {Meter.SUB_DUPLICATE: 1, Meter.RCV_ASSOC_DUPLICATE: 1, **ended}
    if not own:
        assert answers(desk, holder) == [(b"", END())]
        assert holder.subs.get(Q) is None
    desk.waiting[Q] = 0
    subscribed(desk, client, record)
    assert answers(desk, client) == [(b"corr", SOK(SERVICE_ID))]
    assert client.subs.get(Q) is None, "a service has an entry only for what is in flight"


def test_sub_and_get_of_one_connection_exclude_each_other() -> None:
    desk = Desk()
    record, client = desk.queue(Q, 1, None), desk.client(None)
    client.subs.fill(Q, GET_IDLE)
    subscribed(desk, client, record)
    assert answers(desk, client) == [(b"corr", ERR(PROHIBITED))]
    assert desk.counted == {Meter.SUB_PROHIBITED: 1}
    assert client.subs.get(Q) == GET_IDLE
    client.subs.fill(Q, PUSH_IDLE)
    assert desk.decide(lambda turn: subscriptions.get(turn, client, record)) == ERR(PROHIBITED)
    assert desk.counted == {Meter.GET_PROHIBITED: 1}
    assert client.subs.get(Q) == PUSH_IDLE


def test_get_reads_the_same_message_until_it_is_acknowledged() -> None:
    desk = Desk()
    record, client = desk.queue(Q, 0, None), desk.client(None)
    assert desk.decide(lambda turn: subscriptions.get(turn, client, record)) == OK()
    assert desk.counted == {Meter.GETS_EMPTY: 1}
    assert client.subs.get(Q) == GET_IDLE
    desk.waiting[Q] = 2
    for meter in (Meter.GETS, Meter.GET_DUPLICATE):
        given = desk.decide(lambda turn: subscriptions.get(turn, client, record))
        assert given == Delivery(record.secret, a_message(Q))
        assert desk.counted == {meter: 1}
        assert client.subs.get(Q) == IN_FLIGHT[SubKind.GET]
    desk.waiting[Q] = 0
    assert desk.decide(lambda turn: subscriptions.get(turn, client, record)) == OK()
    assert client.subs.get(Q) == IN_FLIGHT[SubKind.GET], "it expired, and may still be acknowledged"


def acked(desk: Desk, client: RouterClient, record: QueueRecord, msg_id: bytes) -> Any:
    return desk.decide(lambda turn: subscriptions.ack(turn, client, record, msg_id))


@pytest.mark.parametrize("held", [None, PUSH_IDLE, GET_IDLE, Sub(SubKind.PUSH, SECOND)])
def test_an_ack_of_what_is_not_in_flight_changes_nothing(held: Sub | None) -> None:
    desk = Desk()
    record, client = desk.queue(Q, 2, None), desk.client(None)
    if held is not None:
        client.subs.fill(Q, held)
    assert acked(desk, client, record, FIRST.msg_id) == ERR(Code.NO_MSG)
    assert (client.subs.get(Q), desk.counted, desk.turn.view.changes) == (held, {}, [])


@pytest.mark.parametrize("kind", SubKind)
@pytest.mark.parametrize("messages", [1, 2])
@pytest.mark.parametrize("service_id", [None, SERVICE_ID])
@pytest.mark.parametrize("msg_id", [FIRST.msg_id, b""])
@pytest.mark.parametrize("congested", [True, False])
def test_an_ack_removes_the_message_and_brings_the_next(
    kind: SubKind, messages: int, service_id: bytes | None, msg_id: bytes, congested: bool
) -> None:
    """An empty id removes nothing, and brings the same again."""
    desk = Desk(KNOWN)
    record, client = desk.queue(Q, messages, service_id), desk.client(service_id)
    client.subs.fill(Q, Sub(kind, FIRST._replace(seconds=NOW - 4)))
    client.congested = congested
    answer = acked(desk, client, record, msg_id)
    left = messages - bool(msg_id)
    is_next = kind is SubKind.PUSH and left > 0
    following = a_message(Q, 1 if msg_id else 0)
    assert answer == (Delivery(record.secret, following) if is_next and not congested else OK())
    assert desk.turn.view.ends(Q) == Ends(messages - left, messages)
    by_service = service_id is not None and kind is SubKind.PUSH
    idle = None if by_service else Sub(kind)
    next_one = Sub(SubKind.PUSH, SECOND if msg_id else FIRST)
    assert client.subs.get(Q) == (next_one if is_next and not congested else idle)
    waits = is_next and congested
    assert (Q in client.waiting) is (waits and service_id is None)
    assert client.walks.get(Domain.MESSAGES) == (Walk() if waits and service_id else None)
    got = {Meter.RECEIVED_GET: 1} if kind is SubKind.GET else {}
    assert desk.counted == ({Meter.RECEIVED: 1, Meter.RECEIVED_NTF: 1, **got} if msg_id else {})
    assert desk.turn.in_use == ([(Q, True)] if msg_id else [])
    assert desk.meters.ack_s.total == (4.0 if msg_id else 0.0)


def test_an_ack_of_a_message_that_expired_meanwhile_removes_no_other() -> None:
    desk = Desk()
    record, client = desk.queue(Q, 1, None), desk.client(None)
    client.subs.fill(Q, Sub(SubKind.PUSH, SECOND))
    assert acked(desk, client, record, SECOND.msg_id) == Delivery(record.secret, a_message(Q))
    assert desk.counted == {}
    desk.waiting[Q] = 0
    client.subs.fill(Q, Sub(SubKind.PUSH, FIRST))
    assert acked(desk, client, record, FIRST.msg_id) == OK()
    assert (desk.counted, client.subs.get(Q)) == ({}, PUSH_IDLE)


@pytest.mark.parametrize("who", ["holder", "another", "operator"])
@pytest.mark.parametrize("service_id", [None, SERVICE_ID])
def test_a_deleted_queue_is_told_to_whoever_had_it(who: str, service_id: bytes | None) -> None:
    desk = Desk(KNOWN)
    record, holder, other = desk.queue(Q, 1, service_id), desk.client(service_id), desk.client(None)
    if service_id is None:
        holding(desk, holder, IN_FLIGHT[SubKind.PUSH])
    else:
        desk.state.services(Domain.MESSAGES).take_over(SERVICE_ID, holder)
        desk.undo.forget()
        holder.subs.fill(Q, IN_FLIGHT[SubKind.PUSH])
    other.subs.fill(Q, GET_IDLE)
    client = {"holder": holder, "another": other, "operator": None}[who]
    desk.decide(lambda turn: subscriptions.queue_gone(turn, client, record))
    assert holder.subs.get(Q) is None
    assert other.subs.get(Q) == (None if who == "another" else GET_IDLE)
    assert desk.state.queues.holder(Q) is None
    is_told = who != "holder"
    assert answers(desk, holder) == ([(b"", DELD())] if is_told else [])
    assert desk.counted == ({Meter.SUB_ENDS: 1} if is_told else {})
    desk.decide(lambda turn: subscriptions.queue_gone(turn, other, record._replace(service_id=None)))
    assert (desk.turn.outbox, desk.counted) == ([], {}), "nobody has it any more"
