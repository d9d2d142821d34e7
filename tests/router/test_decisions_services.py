"""Decisions about services on rows in memory: who is known, what SUBS changes, how a walk goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blindpost.crypto.ids_hash import QueueSet
from blindpost.engine.loop import StoreFailedError
from blindpost.router import services
from blindpost.router.association import SERVICE_METERS
from blindpost.router.delivery import push_head
from blindpost.router.meters import Meter
from blindpost.router.model import DAY_S, Domain, QueueRecord, ServiceRecord
from blindpost.router.state import PUSH_IDLE, RouterClient, ServiceSub, Walk
from blindpost.router.turn import Delivery, Turn
from blindpost.router.view import DAMAGED
from blindpost.router.weights import SERVICE_BYTES
from blindpost.wire.smp.commands import NSUBS, SUBS, UNKNOWN_COUNT
from blindpost.wire.smp.errors import STORE, Code
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import ALLS, ENDS, ERR, SOKS
from tests.support.router.in_memory import KNOWN, MEMBERS, PRINT, SERVICE_ID, TODAY, Desk

MESSAGES = Domain.MESSAGES


def found(desk: Desk, role: ServiceRole, fingerprint: bytes, account: bytes = b"addr") -> bytes | None:
    def asked(service_id: bytes | None) -> None: ...

    desk.decide(lambda turn: services.find_service(turn, asked, role, fingerprint, (b"cert",), account))
    ((told, service_id),) = desk.turn.found
    assert told is asked
    return service_id


def test_a_certificate_leads_to_its_service_a_new_one_or_none() -> None:
    desk = Desk(KNOWN)
    assert found(desk, ServiceRole.MESSAGING, PRINT) == SERVICE_ID
    assert found(desk, ServiceRole.NOTIFIER, PRINT) is None
    assert desk.turn.view.changes == []
    made = found(desk, ServiceRole.NOTIFIER, b"g" * 32)
    assert made == services.service_id_of(b"g" * 32)
    assert made is not None
    assert desk.known[made] == ServiceRecord(made, ServiceRole.NOTIFIER, b"g" * 32, (b"cert",), TODAY)
    assert found(desk, ServiceRole.NOTIFIER, b"g" * 32) == made
    assert len(desk.turn.view.changes) == 0


def test_new_services_count_for_their_address_where_room_is_short() -> None:
    desk = Desk(room=SERVICE_BYTES * 1000)
    desk.stored.look(SERVICE_BYTES * 600)
    made = [found(desk, ServiceRole.MESSAGING, bytes([number]) * 32) for number in range(3)]
    assert [one is None for one in made] == [False, True, True]
    assert found(desk, ServiceRole.MESSAGING, b"n" * 32, b"another") is not None
    assert found(desk, ServiceRole.MESSAGING, bytes(32)) == made[0], "known ones need no room"


@pytest.mark.parametrize(
    ("record", "before_day", "is_kept"),
    [
        (replace(KNOWN, queues=QueueSet(), notifiers=QueueSet()), TODAY, True),
        (replace(KNOWN, queues=QueueSet(), notifiers=QueueSet()), TODAY + DAY_S, False),
        (replace(KNOWN, queues=QueueSet()), TODAY + DAY_S, True),
        (replace(KNOWN, notifiers=QueueSet()), TODAY + DAY_S, True),
    ],
)
def test_a_service_without_queues_is_forgotten_in_time(
    record: ServiceRecord, before_day: int, is_kept: bool
) -> None:
    desk = Desk(record)
    desk.decide(lambda turn: services.expire_service(turn, SERVICE_ID, before_day))
    assert (SERVICE_ID in desk.known) is is_kept
    desk.decide(lambda turn: services.expire_service(turn, b"unknown", before_day))
    assert desk.turn.view.changes == []


def subscribed(
    desk: Desk, client: RouterClient, domain: Domain, given: QueueSet | None, of: bytes = SERVICE_ID
) -> Any:
    count = UNKNOWN_COUNT if given is None else given.count
    command = (SUBS if domain is MESSAGES else NSUBS)(count, given.ids_hash if given else bytes(16))
    return desk.decide(lambda turn: services.subscribe_service(turn, client, domain, of, command))


@pytest.mark.parametrize("domain", Domain)
@pytest.mark.parametrize(
    ("given", "meter", "total"),
    [
        (None, "drift_ok", 0),
        (MEMBERS, "drift_ok", 0),
        (QueueSet(0, bytes(16)), "drift_more", 2),
        (QueueSet(1, MEMBERS.ids_hash), "drift_more", 1),
        (QueueSet(5, MEMBERS.ids_hash), "drift_fewer", 3),
        (QueueSet(2, bytes(16)), "drift_diff", 0),
    ],
)
def test_a_service_subscribes_whatever_it_believes_and_the_difference_is_counted(
    domain: Domain, given: QueueSet | None, meter: str, total: int
) -> None:
    desk = Desk(KNOWN)
    client, meters = desk.client(), SERVICE_METERS[domain]
    assert subscribed(desk, client, domain, given) == SOKS(2, MEMBERS.ids_hash)
    counted = {getattr(meters, meter): 1, meters.subscribed: 1, meters.queues: 2}
    if total:
        counted[getattr(meters, f"{meter}_total")] = total
    assert desk.counted == counted
    assert desk.turn.compared == [(SERVICE_ID, domain, meter == "drift_ok")]
    assert client.service_sub(domain) == ServiceSub(True, MEMBERS)
    assert client.walks.get(domain) == Walk(announced=domain is MESSAGES)
    assert desk.turn.to_serve == [client]
    assert desk.state.services(domain).holder(SERVICE_ID) is client
    assert subscribed(desk, client, domain, given) == SOKS(2, MEMBERS.ids_hash)
    assert (desk.counted, desk.turn.to_serve) == ({meters.duplicate: 1}, [])
    other = desk.client()
    assert subscribed(desk, other, domain, given) == SOKS(2, MEMBERS.ids_hash)
    assert desk.sent == [(client.client_id, SERVICE_ID, ENDS(2, MEMBERS.ids_hash))]
    assert other.walks.get(domain) == Walk(announced=domain is MESSAGES), "one walk is enough"
    assert client.walks.get(domain) is None


def test_only_the_service_itself_subscribes_and_only_if_it_is_known() -> None:
    desk = Desk()
    assert subscribed(desk, desk.client(None), MESSAGES, None) == ERR(Code.SERVICE)
    assert subscribed(desk, desk.client(b"o" * 24), MESSAGES, None) == ERR(Code.SERVICE)
    assert subscribed(desk, desk.client(), MESSAGES, None) == ERR(Code.AUTH)
    assert (desk.counted, desk.turn.to_serve) == ({}, [])


@pytest.mark.parametrize(
    ("held", "fresh", "queues"), [(QueueSet.of([b"a"]), 0, 1), (QueueSet.of([b"a", b"b", b"c"]), 0, 0)]
)
def test_queues_that_joined_before_subs_are_counted_once(held: QueueSet, fresh: int, queues: int) -> None:
    desk = Desk(KNOWN)
    client, meters = desk.client(), SERVICE_METERS[MESSAGES]
    client.service_subs.fill(MESSAGES, ServiceSub(False, held))
    subscribed(desk, client, MESSAGES, None)
    assert desk.counted.get(meters.subscribed, 0) == fresh
    assert desk.counted.get(meters.queues, 0) == queues


# --- walks


def walking(desk: Desk, walk: Walk | None) -> RouterClient:
    client = desk.client()
    desk.state.services(MESSAGES).take_over(SERVICE_ID, client)
    desk.undo.forget()
    if walk is not None:
        client.walks.fill(MESSAGES, walk)
    return client


def walked(desk: Desk, client: RouterClient, *ids: bytes, following: bytes | None = None) -> Walk | None:
    desk.decide(lambda turn: services.walk_step(turn, client, MESSAGES, ids, following))
    return client.walks.get(MESSAGES)


def test_a_walk_hands_over_what_waits_and_ends_with_alls() -> None:
    desk = Desk(KNOWN)
    client = walking(desk, Walk(announced=True, errors=((b"x", Code.INTERNAL),)))
    for name in (b"a", b"b"):
        desk.queue(name)
    desk.damaged = {b"d"}
    client.subs.fill(b"b", PUSH_IDLE._replace(delivered=None))
    after = walked(desk, client, b"a", b"gone", b"d", following=b"next")
    assert after == Walk(b"next", announced=True, errors=((b"x", Code.INTERNAL), (b"d", STORE(DAMAGED)))), (
        "errors are told at the end"
    )
    ((_, queue, delivery),) = desk.sent
    assert queue == b"a"
    assert isinstance(delivery, Delivery)
    assert desk.counted == {Meter.RCV_WALK_MESSAGES: 1}
    assert walked(desk, client, b"a", b"b") is None
    assert [one for one in desk.sent if not isinstance(one[2], Delivery)] == [
        (client.client_id, b"x", ERR(Code.INTERNAL)),
        (client.client_id, b"d", ERR(STORE(DAMAGED))),
        (client.client_id, b"", ALLS()),
    ]
    assert desk.counted == {Meter.RCV_WALK_MESSAGES: 1, Meter.RCV_WALK_DUPLICATES: 1}, "a is in flight"


def test_a_walk_that_was_not_announced_ends_silently_and_may_begin_again() -> None:
    desk = Desk(KNOWN)
    client = walking(desk, Walk(errors=((b"x", Code.INTERNAL),), again=True))
    assert walked(desk, client) == Walk()
    assert desk.sent == []
    assert walked(desk, client) is None


def test_a_walk_ends_when_another_connection_serves() -> None:
    desk = Desk(KNOWN)
    desk.queue(b"a")
    client = walking(desk, Walk(announced=True))
    walking(desk, None)
    assert walked(desk, client, b"a", following=b"next") is None
    assert desk.sent == []
    alone = walking(desk, None)
    assert walked(desk, alone, following=b"next") is None
    stranger = desk.client(None)
    stranger.walks.fill(MESSAGES, Walk())
    assert walked(desk, stranger, b"a") is None
    assert desk.sent == []


def test_a_bug_in_one_queue_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(KNOWN)
    client = walking(desk, Walk(announced=True))
    for name in (b"a", b"b"):
        desk.queue(name)

    def broken(turn: Turn, to: RouterClient, record: QueueRecord) -> None:
        push_head(turn, to, record)
        if record.recipient_id == b"a":
            raise RuntimeError("a bug")

    monkeypatch.setattr(services, "push_head", broken)
    walked(desk, client, b"a", b"b")
    assert [(queue, type(one)) for _, queue, one in desk.sent] == [(b"b", Delivery), (b"a", ERR), (b"", ALLS)]
    assert desk.sent[1][2] == ERR(Code.INTERNAL)
    assert client.subs.get(b"a") is None, "rolled back"
    assert desk.counted == {Meter.INTERNAL_ERRORS: 1, Meter.RCV_WALK_MESSAGES: 1}


def test_a_walk_over_notifiers_hands_over_their_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(KNOWN)
    client = desk.client()
    desk.state.services(Domain.NOTIFICATIONS).take_over(SERVICE_ID, client)
    desk.undo.forget()
    handed: list[bytes] = []
    monkeypatch.setattr(services, "deliver_pending", lambda turn, to, notifier_id: handed.append(notifier_id))
    desk.queue(b"n")
    desk.decide(lambda turn: services.walk_step(turn, client, Domain.NOTIFICATIONS, (b"n",), None))
    assert handed == [b"n"] * 2, "and once more, after the first time was rolled back"
    assert (desk.sent, desk.counted) == ([], {})


def test_a_store_that_cannot_be_read_is_told_once_and_the_walk_waits() -> None:
    desk = Desk(KNOWN)
    client = walking(desk, Walk(b"here", announced=True, errors=((b"x", Code.INTERNAL),)))
    error = StoreFailedError("full")
    for told in ([(client.client_id, b"", ERR(STORE("full")))], []):
        desk.decide(lambda turn: services.walk_failed(turn, client, MESSAGES, error))
        assert desk.sent == told
        assert client.walks.get(MESSAGES) == Walk(b"here")
    idle = walking(desk, None)
    desk.decide(lambda turn: services.walk_failed(turn, idle, MESSAGES, error))
    assert (desk.sent, idle.walks.get(MESSAGES)) == ([], None)
