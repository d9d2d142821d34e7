"""What is pushed next, on rows in memory: one message in flight, none past a full outbox."""

from __future__ import annotations

import pytest

from blindpost.router import delivery
from blindpost.router.changes import DeleteMessage
from blindpost.router.meters import Meter
from blindpost.router.model import Domain, Ends
from blindpost.router.state import GET_IDLE, PUSH_IDLE, Delivered, RouterClient, Sub, SubKind, Walk
from blindpost.router.turn import Delivery
from blindpost.wire.smp.commands import ACK, SEND
from blindpost.wire.smp.responses import OK
from tests.support.router.in_memory import KNOWN, NOW, OWNER_KEY, SERVICE_ID, Desk, a_message, asked

Q, S = b"q", b"qs"
IN_FLIGHT = Sub(SubKind.PUSH, Delivered(a_message(Q).msg_id, 0, NOW, False, True))
SERVICES = pytest.mark.parametrize("service_id", [None, SERVICE_ID], ids=["plain", "service"])


def receiving(desk: Desk, service_id: bytes | None, held: Sub | None) -> RouterClient:
    """The connection that gets the messages of the queue."""
    client = desk.client(service_id)
    if service_id is None:
        desk.state.queues.take_over(Q, client)
    else:
        desk.state.services(Domain.MESSAGES).take_over(service_id, client)
    desk.undo.forget()
    if held is not None:
        client.subs.fill(Q, held)
    return client


@SERVICES
@pytest.mark.parametrize(
    "held", [None, PUSH_IDLE, GET_IDLE, IN_FLIGHT], ids=["none", "idle", "reads", "busy"]
)
@pytest.mark.parametrize("congested", [False, True])
def test_a_message_goes_to_whoever_is_free_for_it(
    service_id: bytes | None, held: Sub | None, congested: bool
) -> None:
    desk = Desk(KNOWN)
    desk.queue(Q, 0, service_id)
    client, sender = receiving(desk, service_id, held), desk.client(None)
    client.congested = congested
    assert desk.say(sender, asked(SEND(True, b"body"), S)) == [OK()]
    is_free = held is PUSH_IDLE or (held is None and service_id is not None)
    message = desk.turn.view.message(Q, 0)
    assert desk.events(client) == ([(Q, message)] if is_free and not congested else [])
    in_flight = Sub(SubKind.PUSH, Delivered(message.msg_id, 0, NOW, False, True))
    assert client.subs.get(Q) == (in_flight if is_free and not congested else held)
    waits = is_free and congested
    assert list(client.waiting) == ([Q] if waits and service_id is None else [])
    assert client.walks.get(Domain.MESSAGES) == (Walk() if waits and service_id else None)


def test_a_walk_under_way_is_followed_by_another() -> None:
    """It may have passed the queue that begins to wait."""
    desk = Desk(KNOWN)
    desk.queue(Q, 0)
    client = receiving(desk, SERVICE_ID, None)
    client.congested = True
    client.walks.fill(Domain.MESSAGES, Walk(b"start", announced=True))
    assert desk.say(desk.client(None), asked(SEND(True, b"body"), S)) == [OK()]
    assert client.walks.get(Domain.MESSAGES) == Walk(b"start", announced=True, again=True)


def test_a_message_that_nobody_receives_stays() -> None:
    desk = Desk()
    desk.queue(Q, 0, None)
    assert desk.say(desk.client(None), asked(SEND(False, b"body"), S)) == [OK()]
    assert len(desk.turn.outbox) == 1
    assert desk.turn.view.message(Q, 0).body == b"body"


def test_a_message_behind_one_that_waits_does_not_bring_it() -> None:
    """The turn that serves the connection does, once for all that waits there."""
    desk = Desk()
    desk.queue(Q, 1, None)
    client = receiving(desk, None, PUSH_IDLE)
    client.waiting.fill(Q, True)
    assert desk.say(desk.client(None), asked(SEND(False, b"body"), S)) == [OK()]
    assert desk.events(client) == []
    assert (client.subs.get(Q), list(client.waiting)) == (PUSH_IDLE, [Q])
    assert desk.turn.view.ends(Q) == Ends(0, 2)


def handed(desk: Desk, client: RouterClient) -> None:
    client.waiting.fill(Q, True)
    desk.decide(lambda turn: delivery.deliver_waiting(turn, client, Q))


@SERVICES
@pytest.mark.parametrize("messages", [0, 1])
def test_what_waited_is_handed_over_while_it_is_due(service_id: bytes | None, messages: int) -> None:
    desk = Desk(KNOWN)
    client = receiving(desk, service_id, None if service_id else PUSH_IDLE)
    desk.queue(Q, messages, service_id)
    idle = client.subs.get(Q)
    for is_full in (True, False):
        client.congested = is_full
        handed(desk, client)
        is_pushed = messages and not is_full
        assert desk.events(client) == ([(Q, a_message(Q))] if is_pushed else [])
        waits = messages and is_full
        assert list(client.waiting) == ([Q] if waits and service_id is None else [])
        assert client.walks.get(Domain.MESSAGES) == (Walk() if messages and service_id else None)
        assert client.subs.get(Q) == (IN_FLIGHT if is_pushed else idle)


@SERVICES
def test_what_waited_is_not_handed_over_when_it_is_no_longer_due(service_id: bytes | None) -> None:
    desk = Desk(KNOWN)
    idle = None if service_id else PUSH_IDLE
    client = receiving(desk, service_id, idle)
    handed(desk, client)
    assert (desk.turn.outbox, list(client.waiting)) == ([], []), "the queue is gone"
    desk.queue(Q, 1, service_id)
    client.subs.fill(Q, IN_FLIGHT)
    handed(desk, client)
    assert (desk.turn.outbox, list(client.waiting)) == ([], []), "it was delivered otherwise"
    if idle is None:
        client.subs.pop(Q)
    else:
        client.subs.fill(Q, idle)
    receiving(desk, service_id, idle)
    handed(desk, client)
    assert (desk.turn.outbox, list(client.waiting)) == ([], []), "another connection has it"


def test_queues_that_failed_wait_again_while_they_are_subscribed() -> None:
    desk = Desk()
    client = desk.client(None)
    client.subs.fill(Q, PUSH_IDLE)
    desk.decide(lambda _: delivery.wait_again(client, (b"other", Q)))
    assert list(client.waiting) == [Q]


@pytest.mark.parametrize("kind", SubKind)
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_marker_leaves_like_a_message_but_is_none(kind: SubKind, is_closed: bool) -> None:
    """A queue that refused a message is open again with its last one gone, not before."""
    desk = Desk()
    record, client = desk.queue(Q, 2, None), desk.client(None)
    if is_closed:
        desk.closed.add(Q)
    client.subs.fill(Q, Sub(kind, Delivered(a_message(Q, 0).msg_id, 0, NOW - 3, False, False)))
    second = a_message(Q, 1)
    if is_closed:
        second = second._replace(body=None, notify=False)
    ack = asked(ACK(a_message(Q).msg_id), Q, OWNER_KEY)
    following = Delivery(record.secret, second)
    assert desk.say(client, ack) == [following if kind is SubKind.PUSH else OK()]
    assert desk.turn.view.ends(Q) == Ends(1, 2, not is_closed)
    assert DeleteMessage(Q, 0) in desk.turn.view.changes
    got = {Meter.RECEIVED_GET: 1} if kind is SubKind.GET else {}
    assert desk.counted == {Meter.RECEIVED: 1, **got}
    assert (desk.turn.in_use, desk.meters.ack_s.total) == ([(Q, False)], 3.0)
    client.subs.fill(Q, Sub(kind, Delivered(a_message(Q, 0).msg_id, 0, NOW, is_closed, True)))
    desk.waiting[Q] = 1
    assert desk.say(client, ack) == [OK()]
    assert desk.turn.view.ends(Q) == Ends(1, 1, True)
    message = {Meter.RECEIVED: 1, Meter.RECEIVED_NTF: 1, **got}
    assert desk.counted == ({Meter.MARKERS_GONE: 1} if is_closed else message)
    assert desk.turn.in_use == ([] if is_closed else [(Q, True)])
