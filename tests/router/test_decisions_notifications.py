"""NKEY, NDEL, NSUB and NMSG on rows in memory: who is notified, what waits, who is told of an end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.secret import Secret
from blindpost.router import notifications
from blindpost.router.changes import AddNotification, DeleteNotifications, PutQueue
from blindpost.router.config import NOTIFICATION_TTL_S
from blindpost.router.meters import Meter
from blindpost.router.model import Domain, Notification, Notifier, ServiceRecord
from blindpost.router.state import RouterClient, ServiceSub, Walk
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import NDEL, NKEY, NSUB, SEND
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.messages import NMsgMeta, read_nmsg_meta
from blindpost.wire.smp.responses import DELD, END, NID, NMSG, OK, SOK
from blindpost.wire.smp.values import NtfCreds
from tests.support.router.in_memory import KNOWN, NOW, OWNER_KEY, SERVICE_ID, Desk, asked
from tests.support.router.routers import new_key

Q, S, N = b"q", b"qs", b"n"
KEY, DH = new_key(), new_key(Algorithm.X25519)
PLAIN = Notifier(N, KEY.public, Secret(b"k" * 32), None)
OURS = replace(PLAIN, service_id=SERVICE_ID)
MEMBERS = QueueSet.of([N])
NOTIFYING = ServiceRecord(
    SERVICE_ID, ServiceRole.NOTIFIER, KNOWN.fingerprint, KNOWN.chain, KNOWN.created_day, notifiers=MEMBERS
)
BOTH = pytest.mark.parametrize("notifier", [PLAIN, OURS], ids=["plain", "service"])


def waiting(number: int, age: int = 0) -> Notification:
    return Notification(N, number, NOW - age, b"nonce%d" % number, b"meta%d" % number)


def nmsg(number: int) -> tuple[bytes, NMSG]:
    return N, NMSG(b"nonce%d" % number, b"meta%d" % number)


def a_desk(notifier: Notifier | None, *pending: Notification) -> Desk:
    desk = Desk(NOTIFYING)
    desk.queue(Q, 0, None, notifier=notifier)
    if pending:
        desk.pending[N] = pending
    return desk


def notified(desk: Desk, notifier: Notifier) -> RouterClient:
    """The connection that is notified."""
    client = desk.client(notifier.service_id, role=ServiceRole.NOTIFIER)
    if notifier.service_id is None:
        desk.state.notifiers.take_over(N, client)
        client.notifier_ids.fill(N, True)
    else:
        desk.state.services(Domain.NOTIFICATIONS).take_over(SERVICE_ID, client)
        client.service_subs.fill(Domain.NOTIFICATIONS, ServiceSub(True, MEMBERS))
    desk.undo.forget()
    return client


def sent(desk: Desk) -> None:
    assert desk.say(desk.client(None), asked(SEND(True, b"body"), S)) == [OK()]


def added(desk: Desk) -> list[Notification]:
    """The rows of notifications that the last turn added."""
    return [change.notification for change in desk.turn.view.changes if isinstance(change, AddNotification)]


def due(client: RouterClient) -> tuple[Walk | None, list[bytes]]:
    """What is handed over once the connection has drained: a walk of a service, or single notifiers."""
    return client.walks.get(Domain.NOTIFICATIONS), list(client.waiting_notifiers)


def due_of(notifier: Notifier) -> tuple[Walk | None, list[bytes]]:
    return (None, [N]) if notifier.service_id is None else (Walk(), [])


@BOTH
def test_a_subscriber_is_told_which_message_came(notifier: Notifier) -> None:
    desk = a_desk(notifier)
    client = notified(desk, notifier)
    sent(desk)
    ((entity_id, event),) = desk.events(client)
    assert entity_id == N
    assert isinstance(event, NMSG)
    meta = BoxKey(b"k" * 32).open_padded(event.nonce, event.enc_meta)
    assert read_nmsg_meta(Reader(meta)) == NMsgMeta(desk.turn.view.message(Q, 0).msg_id, NOW)
    assert (added(desk), due(client)) == ([], (None, []))
    assert desk.counted == {Meter.SENT: 1, Meter.SENT_NTF: 1, Meter.NTFS: 1}


@BOTH
def test_what_nobody_can_be_told_now_waits(notifier: Notifier) -> None:
    desk = a_desk(notifier)
    sent(desk)
    (kept,) = added(desk)
    assert (kept.notifier_id, kept.number, kept.seconds) == (N, 0, NOW)
    assert BoxKey(b"k" * 32).open_padded(kept.nonce, kept.enc_meta)
    assert desk.counted == {Meter.SENT: 1, Meter.SENT_NTF: 1, Meter.NTF_NO_SUB: 1}
    client = notified(desk, notifier)
    client.congested = True
    sent(desk)
    assert (desk.events(client), len(added(desk))) == ([], 1)
    assert due(client) == due_of(notifier)
    assert desk.counted == {Meter.SENT: 1, Meter.SENT_NTF: 1}


def handed_over(desk: Desk, client: RouterClient) -> None:
    desk.decide(lambda turn: notifications.deliver_pending(turn, client, N))


@BOTH
def test_what_waited_is_handed_over_in_order_unless_it_is_too_old(notifier: Notifier) -> None:
    pending = (waiting(2), waiting(1, NOTIFICATION_TTL_S), waiting(0, NOTIFICATION_TTL_S + 1))
    desk = a_desk(notifier, *pending)
    client, other = notified(desk, notifier), desk.client(None)
    client.waiting_notifiers.fill(N, True)
    for asking, is_full in ((other, False), (client, True)):
        asking.congested = is_full
        handed_over(desk, asking)
        assert (desk.turn.outbox, desk.turn.view.changes, desk.counted) == ([], [], {})
    assert client.walks.get(Domain.NOTIFICATIONS) == due_of(notifier)[0]
    assert list(client.waiting_notifiers) == due_of(notifier)[1]
    client.congested = False
    client.waiting_notifiers.fill(N, True)
    handed_over(desk, client)
    assert desk.events(client) == [nmsg(1), nmsg(2)]
    assert desk.counted == {Meter.NTFS: 2, Meter.NTF_EXPIRED: 1}
    assert DeleteNotifications(N) in desk.turn.view.changes
    assert list(client.waiting_notifiers) == []


def test_a_notifier_that_is_gone_or_has_nothing_is_passed_over() -> None:
    for notifier in (None, PLAIN):
        desk = a_desk(notifier)
        client = notified(desk, PLAIN)
        client.waiting_notifiers.fill(N, True)
        handed_over(desk, client)
        assert (desk.turn.outbox, desk.turn.view.changes, list(client.waiting_notifiers)) == ([], [], [])


def subscribed(desk: Desk, client: RouterClient) -> list[Any]:
    by_service = client.service is not None
    return desk.say(client, asked(NSUB(), N, KEY, by_service=by_service))


@BOTH
@pytest.mark.parametrize("congested", [False, True])
def test_nsub_takes_over_and_gets_what_waited(notifier: Notifier, congested: bool) -> None:
    desk = a_desk(notifier, waiting(0))
    client = desk.client(None) if notifier is PLAIN else notified(desk, OURS)
    loser = desk.client(None)
    desk.state.notifiers.take_over(N, loser)
    desk.undo.forget()
    loser.notifier_ids.fill(N, True)
    loser.waiting_notifiers.fill(N, True)
    client.congested = congested
    assert subscribed(desk, client) == [SOK(notifier.service_id)]
    assert desk.events(loser) == [(N, END())]
    assert (list(loser.notifier_ids), list(loser.waiting_notifiers)) == ([], [])
    assert desk.events(client) == ([] if congested else [nmsg(0)])
    assert next(one.corr_id for one in desk.turn.outbox if one.client_id == client.client_id) == b"corr"
    assert due(client) == (due_of(notifier) if congested else (None, []))
    given = {} if congested else {Meter.NTFS: 1}
    again = {} if notifier is PLAIN else {Meter.NTF_ASSOC_DUPLICATE: 1}
    assert desk.counted == {Meter.NTF_SUBS: 1, Meter.SUB_ENDS: 1, **given, **again}
    assert desk.state.notifiers.holder(N) is (client if notifier is PLAIN else None)
    assert list(client.notifier_ids) == ([N] if notifier is PLAIN else [])
    desk.pending.clear()
    assert subscribed(desk, client) == [SOK(notifier.service_id)]
    assert (len(desk.turn.outbox), desk.state.notifiers.holder(N)) == (
        1,
        client if notifier is PLAIN else None,
    )
    repeated = Meter.NTF_SUB_DUPLICATE if notifier is PLAIN else Meter.NTF_SUBS
    assert desk.counted == {repeated: 1, **again}


def test_a_service_that_takes_its_own_single_subscription_in_is_not_told_of_an_end() -> None:
    desk = a_desk(OURS)
    client = notified(desk, OURS)
    desk.state.notifiers.take_over(N, client)
    desk.undo.forget()
    client.notifier_ids.fill(N, True)
    assert subscribed(desk, client) == [SOK(SERVICE_ID)]
    assert len(desk.turn.outbox) == 1
    assert desk.counted == {Meter.NTF_SUB_DUPLICATE: 1, Meter.NTF_ASSOC_DUPLICATE: 1}


@BOTH
@pytest.mark.parametrize("pending", [0, 1])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_whoever_was_notified_is_told_when_credentials_go(
    notifier: Notifier, pending: int, own: bool, replaced: bool
) -> None:
    """By NKEY, which brings others, or by NDEL; not the connection that asked for it."""
    desk = a_desk(notifier, *(waiting(number) for number in range(pending)))
    made, client = desk.queues[Q], desk.client(None)
    loser = notified(desk, notifier)
    if own and notifier is PLAIN:
        client = loser
    loser.waiting_notifiers.fill(N, True)
    command = NKEY(NtfCreds(KEY.public, DH.public)) if replaced else NDEL()
    (answer,) = desk.say(client, asked(command, Q, OWNER_KEY))
    record = desk.turn.view.records.get(Q)
    assert record is not None
    if replaced:
        assert isinstance(answer, NID)
        assert record.notifier is not None
        assert answer.creds.notifier_id == record.notifier.notifier_id != N
        assert record.notifier.key == KEY.public
        assert record.notifier.secret.raw == DH.agree(answer.creds.dh_key)
    else:
        assert (answer, record) == (OK(), made._replace(notifier=None))
    assert desk.events(loser) == ([] if client is loser else [(N, DELD())])
    ended = {} if client is loser else {Meter.SUB_ENDS: 1}
    assert desk.counted == {Meter.NTF_CREATED if replaced else Meter.NTF_DELETED: 1, **ended}
    assert desk.state.notifiers.holder(N) is None
    assert (list(loser.notifier_ids), list(loser.waiting_notifiers)) == ([], [N] if notifier is OURS else [])
    if notifier is OURS:
        assert loser.service_sub(Domain.NOTIFICATIONS).members.count == 0
        assert desk.known[SERVICE_ID].notifiers.count == 0
    assert (DeleteNotifications(N) in desk.turn.view.changes) is bool(pending)
    assert desk.turn.view.pending(N) == ()
    assert desk.turn.view.notifiers.get(N) is None


def test_credentials_of_a_queue_that_had_none() -> None:
    desk = a_desk(None)
    client = desk.client(None)
    assert desk.say(client, asked(NDEL(), Q, OWNER_KEY)) == [OK()]
    assert (desk.turn.view.changes, desk.counted) == ([], {})
    (answer,) = desk.say(client, asked(NKEY(NtfCreds(KEY.public, DH.public)), Q, OWNER_KEY))
    assert isinstance(answer, NID)
    (change,) = desk.turn.view.changes
    assert isinstance(change, PutQueue)
    assert change.record.notifier is not None
    assert change.record.notifier.notifier_id == answer.creds.notifier_id
    assert desk.counted == {Meter.NTF_CREATED: 1}
