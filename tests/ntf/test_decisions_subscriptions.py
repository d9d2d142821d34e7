"""Every decision about subscriptions, with all that it changes, counts and asks for; and rolled back once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blindpost.engine.undo import Undo
from blindpost.ntf import subscriptions, tokens
from blindpost.ntf.machines import SubEvent
from blindpost.ntf.meters import Meter
from blindpost.ntf.model import Carrier, NtfRules, Service, SmpRouter, Subscription
from blindpost.ntf.ports import (
    AssociatedChanged,
    NmsgReceived,
    Notifier,
    ServiceKnown,
    ServiceMade,
    ServiceUnavailable,
    SubscriptionsChanged,
)
from blindpost.ntf.turn import Forget, Outgoing, Subscribe, Turn
from blindpost.ntf.view import SetChange, View
from blindpost.wire.addresses import Host, Server
from blindpost.wire.ntf.commands import SNEW
from blindpost.wire.ntf.responses import ERR, IDSUB, OK, SUB, Response
from blindpost.wire.ntf.status import SubState, SubStatus, TokenState
from blindpost.wire.smp.errors import SYNTAX
from tests.support.ntf.in_memory import (
    QUEUE_KEY,
    InMemory,
    a_client,
    a_notification,
    a_subscription,
    a_token,
    web_device,
)
from tests.support.ntf.routers import SMP, START, device_token
from tests.support.router.routers import new_key
from tests.support.transport.sessions import service_credentials

ELSEWHERE = Server((Host("other.example.org"),), "5223", b"o" * 32)
OWN = (device_token("ab").token,)
ACTIVE = SubStatus(SubState.ACTIVE)


def snew(number: int = 1, **fields: Any) -> SNEW:
    given = {"server": SMP, "notifier_id": a_subscription(number).notifier_id, **fields}
    return SNEW(b"t" * 24, notifier_key=given.pop("key", QUEUE_KEY).encoded, **given)


def subscribed(router: InMemory, command: SNEW) -> Response:
    token = router.tokens[command.token_id]
    return router.decide(lambda turn: subscriptions.subscribe(turn, token, command))


def test_a_new_subscription_is_stored_and_asked_for() -> None:
    router = InMemory().have(a_token(), SmpRouter(ELSEWHERE))
    for number, server in ((1, SMP), (2, SMP), (3, ELSEWHERE)):
        command = snew(number, server=server)
        answer = subscribed(router, command)
        assert isinstance(answer, IDSUB)
        made = router.subscriptions[answer.subscription_id]
        assert len(made.subscription_id) == 24
        assert made == Subscription(
            answer.subscription_id, b"t" * 24, server, command.notifier_id, QUEUE_KEY.encoded
        )
        notifier = Notifier(made.subscription_id, made.notifier_id, made.notifier_key)
        assert router.turn.effects == [Subscribe(server, notifier)]
        assert router.counted == {Meter.SUBSCRIPTIONS_CREATED: 1}
        is_new = number == 1
        assert [*router.turn.view.changed_routers] == ([SMP] if is_new else [])
    assert router.routers == {server: SmpRouter(server) for server in (SMP, ELSEWHERE)}


def test_the_same_again_is_the_same_and_another_key_or_token_is_refused() -> None:
    router = InMemory().have(a_token(), a_token(device=device_token("cd"), name=b"o"), a_subscription())
    assert subscribed(router, snew()) == IDSUB(a_subscription().subscription_id)
    assert subscribed(router, snew(key=new_key())) == tokens.AUTH
    assert subscribed(router, replace(snew(), token_id=b"o" * 24)) == tokens.AUTH
    assert router.turn.effects == []
    assert (router.counted, len(router.subscriptions), len(router.state.rates)) == ({}, 1, 0)


@pytest.mark.parametrize(
    "wrong", [{"notifier_id": b""}, {"server": replace(SMP, port="here")}], ids=["no id", "no port"]
)
def test_what_no_push_can_name_is_refused(wrong: dict[str, Any]) -> None:
    router = InMemory().have(a_token())
    assert subscribed(router, snew(**wrong)) == ERR(SYNTAX)
    assert router.subscriptions == {}


def test_a_token_has_a_limited_number_of_queues_and_names_them_at_a_limited_rate() -> None:
    for most in (1, 2):
        router = InMemory(NtfRules(token_subscriptions=most)).have(a_token())
        answers = [subscribed(router, snew(number)) for number in range(most + 1)]
        assert [type(answer) for answer in answers[:-1]] == [IDSUB] * most
        assert answers[-1] == tokens.QUOTA
        assert router.counted == {Meter.REFUSED_LIMIT: 1}
    router = InMemory(NtfRules(token_queues=2)).have(a_token())
    assert [type(subscribed(router, snew(number))) for number in (1, 2, 3)] == [IDSUB, IDSUB, ERR]
    assert router.counted == {Meter.REFUSED_LIMIT: 1}
    router.now += router.rules.token_window_s
    assert isinstance(subscribed(router, snew(3)), IDSUB)
    router = InMemory(NtfRules(token_routers=1)).have(a_token())
    assert isinstance(subscribed(router, snew(1)), IDSUB)
    assert isinstance(subscribed(router, snew(2)), IDSUB), "the same router"
    assert subscribed(router, snew(3, server=ELSEWHERE)) == tokens.QUOTA
    assert ELSEWHERE not in router.routers


def test_the_status_and_the_end_of_a_subscription() -> None:
    router = InMemory(own=OWN).have(a_token(), *(a_subscription(number, status=ACTIVE) for number in (1, 2)))
    router.have(a_notification(1), a_notification(2))
    assert subscriptions.check(a_subscription(1, status=ACTIVE)) == SUB(ACTIVE)
    for number in (1, 2):
        gone = a_subscription(number, status=ACTIVE)
        assert router.decide(lambda turn: subscriptions.unsubscribe(turn, gone)) == OK()  # noqa: B023
        assert router.turn.effects == [Forget(SMP, (gone.notifier_id,))]
        assert router.counted == {Meter.SUBSCRIPTIONS_DELETED: 1}
        assert router.told == [(b"%d" % number, "no_token")]
        assert router.turn.view.counted.get(b"t" * 24) == 2 - number
    assert (router.subscriptions, router.notifications) == ({}, {})
    assert router.states == {"dropped": 2}
    router.have(quiet := a_subscription(3))
    router.decide(lambda turn: subscriptions.unsubscribe(turn, quiet))
    assert (router.entered, router.subscriptions) == ({}, {})


def test_commands_of_one_batch_see_each_other() -> None:
    """Tokens by device, subscriptions by queue and by token, their number; and what was deleted is gone."""
    router = InMemory(NtfRules(token_subscriptions=3)).have(token := a_token(), a_subscription(1))
    moved, rival = replace(token, device=web_device()), a_token(name=b"r")

    def decision(turn: Turn) -> None:
        view = turn.view
        for _ in range(2):
            view.put_token(moved)
            view.put_token(rival)
        assert view.of_device(token.device) == (rival,), "one moved away, one came"
        assert view.of_device(moved.device) == (moved,)
        view.delete_token(rival)
        assert view.of_device(token.device) == ()
        made = subscriptions.subscribe(turn, moved, snew(2))
        assert subscriptions.subscribe(turn, moved, snew(2)) == made
        assert isinstance(subscriptions.subscribe(turn, moved, snew(3)), IDSUB)
        assert subscriptions.subscribe(turn, moved, snew(4)) == tokens.QUOTA
        first, second, third = view.owned(token.token_id)
        assert made == IDSUB(second.subscription_id)
        subscriptions.unsubscribe(turn, second)
        assert view.of_queue(SMP, second.notifier_id) is None
        assert view.owned(token.token_id) == (first, third)
        again = subscriptions.subscribe(turn, moved, snew(2))
        assert isinstance(again, IDSUB)
        assert again != made

    router.decide(decision)
    assert [one.notifier_id for one in router.subscriptions.values()] == [
        a_subscription(number).notifier_id for number in (1, 3, 2)
    ]


def test_a_deletion_needs_no_count_of_the_subscriptions() -> None:
    view = View(Undo(), 0)
    view.fill_subscription(queue := a_subscription())
    view.delete_subscription(queue)
    assert view.counted.get(queue.token_id) is None
    assert view.of_queue(SMP, queue.notifier_id) is None


# --- NMSG


def test_a_batch_of_notifications_is_numbered_without_gaps_and_pushed_once() -> None:
    router = InMemory().have(a_token(), a_subscription(1), a_subscription(2), a_notification(1, of=1))

    def decision(turn: Turn) -> None:
        for number, nonce in ((1, b"a"), (2, b"b"), (1, b"c")):
            subscriptions.notified(turn, nmsg(number, nonce * 24))

    router.decide(decision)
    assert [(one.number, one.nonce[:1]) for one in router.notifications.values()] == [(4, b"c"), (3, b"b")]
    assert [number for _, number in router.pushed().carried] == [3, 4]
    assert router.states == {"waiting": 2, "superseded": 2}
    assert len(router.turn.notified) == 3


def nmsg(number: int = 1, nonce: bytes = b"n" * 24, meta: bytes = b"m", server: Server = SMP) -> NmsgReceived:
    return NmsgReceived(server, a_subscription(number).notifier_id, nonce, meta)


@pytest.mark.parametrize("device", [device_token("ab"), web_device()])
def test_a_notification_is_stored_and_pushed(device: Any) -> None:
    router = InMemory(own=(device.token,)).have(a_token(device=device), a_subscription())
    router.decide(lambda turn: subscriptions.notified(turn, nmsg()))
    carrier = Carrier.of(device)
    assert [*router.notifications.values()] == [a_notification(1, nonce=b"n" * 24, carrier=carrier)]
    assert router.pushed().carried == ((a_subscription().subscription_id, 1),)
    assert router.counted == {Meter.RECEIVED: 1}
    assert router.turn.notified == [a_subscription().subscription_id]
    assert router.entered == {("received", "", carrier.value): 1, ("stored", "", carrier.value): 1}
    assert router.told == [(b"1", "received"), (b"1", "stored")]
    router.decide(lambda turn: subscriptions.notified(turn, nmsg()))
    assert router.counted == {}
    assert router.turn.notified == []
    assert len(router.turn.pushes) == 0
    assert router.entered == {("received", "", carrier.value): 1, ("replaced", "", carrier.value): 1}
    assert [one.state for one in router.turn.happened] == ["received", "replaced"]
    router.decide(lambda turn: subscriptions.notified(turn, nmsg(nonce=b"N" * 24)))
    assert router.counted == {Meter.RECEIVED: 1}
    assert router.states == {"waiting": 1, "superseded": 1}


@pytest.mark.parametrize(
    ("event", "state", "ends", "carrier"),
    [
        (nmsg(2), TokenState.ACTIVE, "no_token", "none"),
        (nmsg(server=ELSEWHERE), TokenState.ACTIVE, "no_token", "none"),
        *(
            (nmsg(), state, "token_inactive", "apns")
            for state in TokenState
            if state is not TokenState.ACTIVE
        ),
        (nmsg(nonce=b"n" * 23), TokenState.ACTIVE, "dropped", "apns"),
        (nmsg(nonce=b"n" * 25), TokenState.ACTIVE, "dropped", "apns"),
        (nmsg(meta=b""), TokenState.ACTIVE, "dropped", "apns"),
        (nmsg(meta=b"m" * 1025), TokenState.ACTIVE, "dropped", "apns"),
        (nmsg(meta=b"m" * 1024), TokenState.ACTIVE, "stored", "apns"),
    ],
)
@pytest.mark.parametrize("is_own", [True, False])
def test_a_notification_that_is_not_accepted_ends_at_once(
    event: NmsgReceived, state: TokenState, ends: str, carrier: str, is_own: bool
) -> None:
    router = InMemory(own=OWN if is_own else ()).have(a_token(state), a_subscription())
    router.now += 7
    router.decide(lambda turn: subscriptions.notified(turn, event))
    assert router.entered == {("received", "", carrier): 1, (ends, "", carrier): 1}
    assert router.counted == {Meter.RECEIVED if ends == "stored" else Meter.RECEIVED_AUTH: 1}
    assert len(router.turn.pushes) == (ends == "stored")
    assert len(router.notifications) == (ends == "stored")
    told = [(one.token_id, one.since, one.state) for one in router.turn.happened]
    is_told = is_own and carrier == "apns"
    assert told == ([(b"t" * 24, START + 7, each) for each in ("received", ends)] if is_told else [])
    assert len({one.name for one in router.turn.happened}) == is_told


def test_a_notification_for_a_token_that_is_gone() -> None:
    router = InMemory(own=OWN).have(a_subscription())
    router.decide(lambda turn: subscriptions.notified(turn, nmsg()))
    assert router.entered == {("received", "", "none"): 1, ("no_token", "", "none"): 1}
    assert router.counted == {Meter.RECEIVED_AUTH: 1}


# --- what the subscriber reports


def test_an_event_changes_the_queues_that_it_names() -> None:
    router = InMemory().have(a_token(), *(a_subscription(number) for number in (1, 2, 3)))
    ids = tuple(a_subscription(number).notifier_id for number in (1, 9, 2))
    event = SubscriptionsChanged(SMP, ids, SubEvent.REFUSED, b"why")
    router.decide(lambda turn: subscriptions.changed(turn, event))
    refused = SubStatus.failed(b"why")
    assert [one.status for one in router.subscriptions.values()] == [
        refused,
        refused,
        a_subscription().status,
    ]
    associated = SubscriptionsChanged(SMP, (a_subscription(3).notifier_id,), SubEvent.ASSOCIATED)
    router.decide(lambda turn: subscriptions.changed(turn, associated))
    assert router.subscriptions[a_subscription(3).subscription_id] == a_subscription(
        3, status=ACTIVE, is_associated=True
    )
    router.decide(lambda turn: subscriptions.changed(turn, associated))
    assert len(router.turn.view.changed_subscriptions) == 0, "nothing to write"
    refused_again = replace(associated, notifier_ids=(ids[0],))
    router.decide(lambda turn: subscriptions.changed(turn, refused_again))
    assert router.subscriptions[a_subscription(1).subscription_id].status == refused, "it is not tried again"


def test_an_event_of_the_service_changes_all_its_queues() -> None:
    rows = [
        a_subscription(1, status=ACTIVE, is_associated=True),
        a_subscription(2, status=ACTIVE),
        a_subscription(3, status=ACTIVE, is_associated=True, server=ELSEWHERE),
    ]
    router = InMemory().have(a_token(), *rows)
    event = AssociatedChanged(SMP, SubEvent.DISCONNECTED)
    router.decide(lambda turn: subscriptions.changed_together(turn, event))
    assert router.turn.view.set_changes == [SetChange(SMP, SubEvent.DISCONNECTED, only_associated=True)]
    first = replace(rows[0], status=SubStatus(SubState.INACTIVE))
    assert [*router.subscriptions.values()] == [first, *rows[1:]]


def test_a_certificate_is_made_known_renewed_and_lost() -> None:
    made, renewed = service_credentials(), service_credentials("another")
    queue = a_subscription(status=ACTIVE, is_associated=True)
    router = InMemory().have(a_token(), SmpRouter(SMP), queue, a_subscription(2, status=ACTIVE))

    def told(*events: ServiceMade | ServiceKnown | ServiceUnavailable) -> tuple[list[SetChange], int]:
        for event in events:
            match event:
                case ServiceMade():
                    router.decide(lambda turn: subscriptions.service_made(turn, event))  # noqa: B023
                case ServiceKnown():
                    router.decide(lambda turn: subscriptions.service_known(turn, event))  # noqa: B023
                case ServiceUnavailable():
                    router.decide(lambda turn: subscriptions.service_unavailable(turn, event))  # noqa: B023
        return router.turn.view.set_changes, len(router.turn.view.changed_routers)

    lost = SetChange(SMP, SubEvent.SERVICE_LOST, only_associated=False)
    assert told(ServiceKnown(SMP, b"id")) == ([], 0), "without a certificate there is no id"
    assert told(ServiceMade(SMP, made)) == ([], 1)
    assert router.routers[SMP] == SmpRouter(SMP, Service(made))
    assert told(ServiceKnown(SMP, b"id")) == ([], 1)
    assert router.routers[SMP] == SmpRouter(SMP, Service(made, b"id"))
    assert told(ServiceKnown(SMP, b"id")) == ([], 0)
    assert told(ServiceKnown(SMP, b"new id")) == ([lost], 1)
    assert router.routers[SMP] == SmpRouter(SMP, Service(made, b"new id"))
    inactive = SubStatus(SubState.INACTIVE)
    assert [(one.status, one.is_associated) for one in router.subscriptions.values()] == [
        (inactive, False)
    ] * 2
    assert told(ServiceMade(SMP, renewed)) == ([], 1)
    assert router.routers[SMP] == SmpRouter(SMP, Service(renewed)), "a new certificate has no id yet"
    router.have(queue)
    assert told(ServiceUnavailable(SMP)) == ([lost], 1)
    assert router.routers[SMP] == SmpRouter(SMP)
    assert router.subscriptions[queue.subscription_id].status == inactive
    strange = ServiceMade(ELSEWHERE, made), ServiceKnown(ELSEWHERE, b"id"), ServiceUnavailable(ELSEWHERE)
    for event in strange:
        assert told(event) == ([], 0)
    assert [*router.routers] == [SMP]


def test_routers_without_subscriptions_are_forgotten() -> None:
    router = InMemory().have(SmpRouter(SMP), SmpRouter(ELSEWHERE))
    router.decide(lambda turn: subscriptions.forget_unused(turn, [SMP, ELSEWHERE]))
    assert router.turn.view.unused_routers == [SMP, ELSEWHERE]


def test_an_answer_leaves_with_its_turn() -> None:
    router = InMemory()
    router.decide(lambda turn: turn.answer(a_client(), b"corr", b"entity", OK()))
    assert router.turn.outbox == [Outgoing(1, b"corr", b"entity", OK())]
