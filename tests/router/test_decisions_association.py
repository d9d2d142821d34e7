"""Decisions about which queue belongs to which service, on rows in memory: who counts it, who is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.secret import Secret
from blindpost.router import association
from blindpost.router.association import SERVICE_METERS
from blindpost.router.meters import Meter
from blindpost.router.model import NO_QUEUES, Domain, Notifier, QueueRecord
from blindpost.router.state import GET_IDLE, PUSH_IDLE, RouterClient, ServiceSub, Walk
from blindpost.wire.smp.responses import DELD, END, ENDS
from tests.support.router.in_memory import KNOWN, MEMBERS, SERVICE_ID, Desk
from tests.support.router.routers import new_key

MESSAGES, NOTIFICATIONS = Domain.MESSAGES, Domain.NOTIFICATIONS
OTHER_ID = b"o" * 24
OTHER = replace(KNOWN, service_id=OTHER_ID, fingerprint=b"g" * 32)
ONE = QueueSet.of([b"a"])
NOTIFIER = Notifier(b"a", new_key().public, Secret(bytes(32)), None)


def serving(
    desk: Desk, service_id: bytes, domain: Domain = MESSAGES, members: QueueSet = MEMBERS
) -> RouterClient:
    """A connection that serves a service and counts these queues."""
    client = desk.client(service_id)
    desk.state.services(domain).take_over(service_id, client)
    desk.undo.forget()
    client.service_subs.fill(domain, ServiceSub(True, members))
    return client


def a_queue(desk: Desk, service_id: bytes | None = None, notifier: bytes | None = None) -> QueueRecord:
    record = desk.queue(b"a", 1, service_id)._replace(notifier=replace(NOTIFIER, service_id=notifier))
    desk.queues[b"a"] = record
    return record


@pytest.mark.parametrize("domain", Domain)
def test_a_takeover_ends_what_the_service_had_but_not_what_the_connection_has_itself(domain: Domain) -> None:
    desk = Desk(KNOWN)
    loser, client = serving(desk, SERVICE_ID, domain), desk.client()
    loser.walks.fill(domain, Walk(b"here"))
    for name, sub in ((b"in flight", PUSH_IDLE), (b"own", PUSH_IDLE), (b"read", GET_IDLE)):
        loser.subs.fill(name, sub)
        loser.waiting.fill(name, True)
    desk.state.queues.take_over(b"own", loser)
    desk.undo.forget()
    desk.decide(lambda turn: association.register(turn, client, domain))
    assert desk.state.services(domain).holder(SERVICE_ID) is client
    assert loser.service_sub(domain) == ServiceSub(True, NO_QUEUES)
    assert loser.walks.get(domain) is None
    kept = [b"own", b"read"] if domain is MESSAGES else [b"in flight", b"own", b"read"]
    assert list(loser.subs) == list(loser.waiting) == kept
    assert desk.sent == [(loser.client_id, SERVICE_ID, ENDS(2, MEMBERS.ids_hash))]
    assert desk.counted == {SERVICE_METERS[domain].ended: 2, Meter.SUB_ENDS: 1}
    assert client.walks.get(domain) == Walk(), "what was in flight comes again"
    assert desk.turn.to_serve == [client]
    desk.decide(lambda turn: association.register(turn, client, domain))
    assert (desk.sent, desk.counted, desk.turn.to_serve) == ([], {}, [])


@pytest.mark.parametrize("domain", Domain)
@pytest.mark.parametrize("subscribed", [False, True])
def test_a_connection_that_serves_its_service_again_gets_what_nobody_got(
    domain: Domain, subscribed: bool
) -> None:
    desk = Desk(KNOWN)
    client = desk.client()
    client.service_subs.fill(domain, ServiceSub(subscribed, NO_QUEUES))
    desk.decide(lambda turn: association.register(turn, client, domain))
    assert desk.state.services(domain).holder(SERVICE_ID) is client
    assert client.walks.get(domain) == (Walk() if subscribed else None), "before SUBS nothing is due"
    assert desk.turn.to_serve == ([client] if subscribed else [])
    assert (desk.sent, desk.counted) == ([], {})
    client.walks.fill(domain, Walk(b"here"))
    desk.decide(lambda turn: association.register(turn, client, domain))
    assert client.walks.get(domain) == Walk(b"here")
    assert desk.turn.to_serve == []


@pytest.mark.parametrize("domain", Domain)
@pytest.mark.parametrize("event", [END(), DELD()])
def test_a_queue_that_leaves_is_told_to_its_service_unless_that_caused_it(
    domain: Domain, event: END | DELD
) -> None:
    for acts in (True, False):
        desk = Desk(KNOWN)
        holder = serving(desk, SERVICE_ID, domain)
        holder.subs.fill(b"a", PUSH_IDLE)
        acting = holder if acts else None
        desk.decide(
            lambda turn: association.queue_left(turn, acting, domain, SERVICE_ID, b"a", event)  # noqa: B023
        )
        assert holder.service_sub(domain) == ServiceSub(True, QueueSet.of([b"b"]))
        assert desk.sent == ([] if acts else [(holder.client_id, b"a", event)])
        assert desk.counted == ({} if acts else {Meter.SUB_ENDS: 1})
        assert (b"a" in holder.subs) is (acts or domain is NOTIFICATIONS)
    desk = Desk(KNOWN)
    desk.decide(lambda turn: association.queue_left(turn, None, domain, SERVICE_ID, b"a", event))
    assert (desk.sent, desk.counted) == ([], {}), "nobody serves it"


def of_messages(desk: Desk, client: RouterClient, record: QueueRecord) -> QueueRecord:
    return desk.decide(lambda turn: association.associate_queue(turn, client, record))


def of_notifications(desk: Desk, client: RouterClient, record: QueueRecord) -> QueueRecord:
    return desk.decide(lambda turn: association.associate_notifier(turn, client, record))


@pytest.mark.parametrize("domain", Domain)
@pytest.mark.parametrize("members", [NO_QUEUES, QueueSet.of([b"z"])])
@pytest.mark.parametrize("before", [None, OTHER_ID, SERVICE_ID])
def test_a_queue_joins_the_service_that_subscribes_it(
    domain: Domain, members: QueueSet, before: bytes | None
) -> None:
    desk = Desk(KNOWN, OTHER)
    former, client = serving(desk, OTHER_ID, domain), desk.client()
    client.service_subs.fill(domain, ServiceSub(False, members))
    is_messages = domain is MESSAGES
    record = a_queue(desk, before) if is_messages else a_queue(desk, None, before)
    joined = (of_messages if is_messages else of_notifications)(desk, client, record)
    assert joined.notifier is not None
    assert (joined.service_id if is_messages else joined.notifier.service_id) == SERVICE_ID
    assert (desk.turn.view.records.get(b"a") == joined) is True
    assert (len(desk.turn.view.changes) == 0) is (before == SERVICE_ID)
    meters = SERVICE_METERS[domain]
    prefix = "RCV" if is_messages else "NTF"
    kind = {None: "NEW", OTHER_ID: "UPDATED", SERVICE_ID: "DUPLICATE"}[before]
    counted = {Meter[f"{prefix}_ASSOC_{kind}"]: 1}
    is_counted = before != SERVICE_ID or not members.count
    if is_counted:
        counted[meters.queues] = 1
        if not members.count:
            counted[meters.subscribed] = 1
    if before == OTHER_ID:
        counted[Meter.SUB_ENDS] = 1
    assert desk.counted == counted
    after = members + ONE if is_counted else members
    assert client.service_sub(domain) == ServiceSub(False, after)
    assert (desk.state.services(domain).holder(SERVICE_ID) is client) is is_counted
    assert desk.sent == ([(former.client_id, b"a", END())] if before == OTHER_ID else [])


@pytest.mark.parametrize("domain", Domain)
@pytest.mark.parametrize("before", [None, OTHER_ID])
def test_a_plain_connection_takes_a_queue_out_of_its_service(domain: Domain, before: bytes | None) -> None:
    desk = Desk(KNOWN, OTHER)
    former, plain = serving(desk, OTHER_ID, domain), desk.client(None)
    is_messages = domain is MESSAGES
    record = a_queue(desk, before) if is_messages else a_queue(desk, None, before)
    if is_messages:
        after = desk.decide(lambda turn: association.dissociate_queue(turn, plain, record))
    else:
        after = of_notifications(desk, plain, record)
    assert after.notifier is not None
    assert (after.service_id, after.notifier.service_id) == (None, None)
    assert desk.turn.view.records.get(b"a") == after
    assert (len(desk.turn.view.changes) == 0) is (before is None)
    removed = Meter.RCV_ASSOC_REMOVED if is_messages else Meter.NTF_ASSOC_REMOVED
    assert desk.counted == ({} if before is None else {removed: 1, Meter.SUB_ENDS: 1})
    assert desk.sent == ([] if before is None else [(former.client_id, b"a", END())])
    left = MEMBERS if before is None else QueueSet.of([b"b"])
    assert former.service_sub(domain).members == left
