"""Who is subscribed to what, in memory: one holder each, and nothing is left of a connection that ended."""

from __future__ import annotations

import pytest

from blindpost.engine.undo import Undo
from blindpost.router.changes import Change, DeleteLink, DeleteMessage, DeleteQueue, DeleteService
from blindpost.router.model import Domain, Ends
from blindpost.router.state import (
    GET_IDLE,
    PUSH_IDLE,
    Delivered,
    Registry,
    RouterClient,
    ServiceSub,
    SessionKeys,
    Sub,
    SubKind,
    Walk,
)
from blindpost.router.weights import (
    LINK,
    LINK_BYTES,
    MESSAGE_BYTES,
    QUEUE,
    QUEUE_BYTES,
    SERVICE,
    SERVICE_BYTES,
    left,
)
from blindpost.serving.stored import Place, Stored
from blindpost.wire.keys import Algorithm
from tests.support.router.in_memory import KNOWN, NOW, PRINT, SERVICE_ID, Desk
from tests.support.router.routers import new_key

Q, N, L = b"q", b"n", b"l"
MESSAGE = Delivered(b"id", 4, NOW, False, True)


def test_the_box_of_a_session_is_made_once() -> None:
    own, peer = new_key(Algorithm.X25519), new_key(Algorithm.X25519)
    keys = SessionKeys(own, peer.public)
    assert keys.box is keys.box


def test_a_holder_leaves_only_what_it_holds() -> None:
    desk, registry = Desk(), Registry(Undo())
    first, second = desk.client(None), desk.client(None)
    assert registry.take_over(Q, first) is None
    assert registry.take_over(Q, first) is None
    assert registry.take_over(Q, second) is first
    registry.leave(Q, first)
    assert registry.holder(Q) is second
    registry.leave(Q, second)
    assert registry.holder(Q) is None
    assert len(registry) == 0


@pytest.mark.parametrize("table", ["waiting", "waiting_notifiers", "walks"])
def test_a_connection_has_work(table: str) -> None:
    client = Desk().client()
    assert not client.has_work
    getattr(client, table).put(Domain.MESSAGES if table == "walks" else Q, True)
    assert client.has_work


def test_who_counts_as_subscribed() -> None:
    desk = Desk(KNOWN)
    reader, pushed, notified, served, displaced = (desk.client() for _ in range(5))
    alone = desk.client(None)
    reader.subs.put(Q, GET_IDLE)
    pushed.subs.put(Q, PUSH_IDLE)
    notified.notifier_ids.put(N, True)
    desk.state.services(Domain.NOTIFICATIONS).take_over(SERVICE_ID, displaced)
    desk.state.services(Domain.NOTIFICATIONS).take_over(SERVICE_ID, served)
    subscribed = [
        desk.state.is_subscribed(one) for one in (reader, pushed, notified, served, displaced, alone)
    ]
    assert subscribed == [False, True, True, True, False, False]


def filled(desk: Desk, client: RouterClient) -> None:
    """Everything that a connection can have."""
    client.subs.put(Q, PUSH_IDLE)
    client.notifier_ids.put(N, True)
    client.waiting.put(Q, True)
    client.waiting_notifiers.put(N, True)
    desk.state.queues.take_over(Q, client)
    desk.state.notifiers.take_over(N, client)
    for domain in Domain:
        client.walks.put(domain, Walk())
        client.service_subs.put(domain, ServiceSub(True))
        if client.service is not None:
            desk.state.services(domain).take_over(SERVICE_ID, client)


def tables(client: RouterClient) -> list[int]:
    of = (client.subs, client.notifier_ids, client.waiting, client.waiting_notifiers)
    return [len(table) for table in (*of, client.walks, client.service_subs)]


@pytest.mark.parametrize("service_id", [SERVICE_ID, None], ids=["service", "single"])
def test_nothing_is_left_of_a_connection_that_ended(service_id: bytes | None) -> None:
    desk = Desk(KNOWN)
    client = desk.client(service_id)
    desk.decide(lambda _: filled(desk, client))
    desk.decide(lambda _: desk.state.disconnect(client))
    assert tables(client) == [0] * 6
    assert (desk.state.queues.holder(Q), desk.state.notifiers.holder(N)) == (None, None)
    assert [desk.state.services(domain).holder(SERVICE_ID) for domain in Domain] == [None, None]


def test_a_connection_that_ended_takes_nothing_from_the_next() -> None:
    desk = Desk(KNOWN)
    old, new = desk.client(), desk.client()
    desk.decide(lambda _: filled(desk, old))
    desk.decide(lambda _: filled(desk, new))
    desk.decide(lambda _: desk.state.disconnect(old))
    assert (desk.state.queues.holder(Q), desk.state.notifiers.holder(N)) == (new, new)
    assert [desk.state.services(domain).holder(SERVICE_ID) for domain in Domain] == [new, new]
    assert tables(new) == [1, 1, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("before", "kind"),
    [(None, SubKind.PUSH), (PUSH_IDLE, SubKind.PUSH), (GET_IDLE, SubKind.GET)],
    ids=["service", "push", "get"],
)
def test_a_message_in_flight_waits_no_more(before: Sub | None, kind: SubKind) -> None:
    desk = Desk()
    client = desk.client(None)
    client.waiting.put(Q, True)
    client.waiting.put(b"other", True)
    if before is not None:
        client.subs.put(Q, before)
    desk.undo.forget()
    desk.decide(lambda _: desk.state.delivered(client, Q, MESSAGE))
    assert client.subs.get(Q) == Sub(kind, MESSAGE)
    assert list(client.waiting) == [b"other"]
    client.waiting.put(Q, True)
    desk.undo.forget()
    desk.decide(lambda _: desk.state.drop_sub(client, Q))
    assert (client.subs.get(Q), list(client.waiting)) == (None, [b"other"])


# What leaves the store counts against nobody

DESK = Desk()
RECORD = DESK.queue(Q, 2, None)


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        (DeleteMessage(Q, 7), {(Q, 7): MESSAGE_BYTES}),
        (DeleteLink(L), {(L, LINK): LINK_BYTES}),
        (DeleteService(SERVICE_ID, PRINT), {(SERVICE_ID, SERVICE): SERVICE_BYTES}),
        (
            DeleteQueue(RECORD, Ends(7, 9, True)),
            {(Q, QUEUE): QUEUE_BYTES, (Q, 7): MESSAGE_BYTES, (Q, 8): MESSAGE_BYTES},
        ),
        (
            DeleteQueue(RECORD._replace(link_id=L), Ends(7, 7, True)),
            {(Q, QUEUE): QUEUE_BYTES, (L, LINK): LINK_BYTES},
        ),
    ],
    ids=["message", "link", "service", "queue", "queue with a link"],
)
def test_what_is_deleted_counts_no_more(change: Change, gone: dict[Place, int]) -> None:
    undo = Undo()
    stored = Stored(2 << 20, undo)
    every = {(Q, number): MESSAGE_BYTES for number in (6, 7, 8, 9)}
    every |= {(Q, QUEUE): QUEUE_BYTES, (L, LINK): LINK_BYTES, (SERVICE_ID, SERVICE): SERVICE_BYTES}
    stored.look((1 << 20) + 1)
    before = stored.total
    for place, size in every.items():
        stored.add(b"somebody", place, size)
    undo.forget()
    left(stored, [change])
    kept = sum(every.values()) - sum(gone.values())
    assert (stored.total - before, stored.largest()) == (kept, [kept])
    for place, size in every.items():
        if place not in gone:
            stored.gone(place, size)
    assert stored.largest() == [], "nothing else was taken for it"
