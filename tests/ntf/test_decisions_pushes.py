"""Every decision about notifications and pushes, with all that it changes and counts; rolled back once."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from blindpost.engine.undo import Undo
from blindpost.ntf import ledger, outcomes, pushes, subscriptions, tokens
from blindpost.ntf.ledger import FUNNEL
from blindpost.ntf.machines import LEDGER_TABLE, LedgerEvent
from blindpost.ntf.meters import Meter
from blindpost.ntf.model import Carrier, LedgerState, NtfRules, PushKind, Token
from blindpost.ntf.ports import Accepted, Failed, PushOutcome, RetryLater, TokenInvalid
from blindpost.ntf.rates import Rates
from blindpost.ntf.state import Job, Jobs, NtfState
from blindpost.ntf.turn import Push, PushLater, Turn
from blindpost.wire.ntf.commands import TRPL
from blindpost.wire.ntf.pushes import PushItem, encode_items
from blindpost.wire.ntf.status import InvalidReason, TokenState, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from tests.support.ntf.in_memory import (
    CODE,
    NULL_DEVICE,
    InMemory,
    Row,
    a_client,
    a_notification,
    a_subscription,
    a_token,
    web_device,
)
from tests.support.ntf.routers import SMP, START, device_token

S = TokenState
CODE_PUSH, MESSAGE, CHECK = PushKind.VERIFICATION, PushKind.MESSAGE, PushKind.CHECK
OWN = (device_token("ab").token,)
NO = InvalidReason.UNREGISTERED


def with_queues(router: InMemory, *numbers: int) -> InMemory:
    return router.have(*(a_subscription(number) for number in numbers))


def requested(router: InMemory, token: Token, *kinds: PushKind) -> None:
    def decision(turn: Turn) -> None:
        for kind in kinds:
            pushes.request(turn, token, kind)

    router.decide(decision)


def pushing(router: InMemory, kind: PushKind = MESSAGE) -> Push:
    """Push to the only token."""
    requested(router, router.token, kind)
    return router.pushed(kind)


def job_of(router: InMemory, kind: PushKind = MESSAGE) -> Job | None:
    return router.state.jobs.get((b"t" * 24, kind))


def repeated(router: InMemory, number: int, kind: PushKind = MESSAGE, token_id: bytes = b"t" * 24) -> None:
    """The pause of this push has ended."""
    router.decide(lambda turn: pushes.again(turn, token_id, kind, number))


def done(router: InMemory, push: Push, outcome: PushOutcome) -> None:
    router.decide(lambda turn: outcomes.done(turn, push, outcome))


# --- the ledger


@pytest.mark.parametrize("event", LedgerEvent)
@pytest.mark.parametrize("is_own", [True, False])
def test_a_notification_ends_once_in_the_state_of_its_row(event: LedgerEvent, is_own: bool) -> None:
    before = a_notification(carrier=Carrier.WEB)
    router = with_queues(InMemory(own=OWN if is_own else (b"another",)).have(a_token(), before), 1)
    router.decide(lambda turn: ledger.settle(turn, before, event, "why"))
    assert router.notifications == {before.subscription_id: replace(before, is_waiting=False)}
    state = LEDGER_TABLE[LedgerState.WAITING, event]
    assert dict(+router.ledger) == {(Carrier.WEB, state): 1}
    assert router.entered == {(FUNNEL[event], "why", "webpush"): 1}
    assert router.told == ([(b"1", FUNNEL[event])] if is_own else [])
    (ended,) = router.notifications.values()
    router.decide(lambda turn: ledger.settle(turn, ended, event, "why"))
    assert router.entered == {}
    assert router.told == []
    assert len(router.turn.view.changed_notifications) == 0
    router.decide(lambda turn: ledger.remove(turn, ended, event))
    assert router.notifications == {}
    assert (router.entered, dict(+router.ledger)) == ({}, {(Carrier.WEB, state): 1})


def test_an_own_device_is_known_however_it_spells_its_token() -> None:
    """The configuration has it in small letters."""
    router = with_queues(InMemory(own=OWN).have(a_token(device=device_token("AB")), a_notification()), 1)
    router.decide(lambda turn: ledger.settle(turn, a_notification(), LedgerEvent.PUSH_ACCEPTED))
    assert len(router.told) == 1


def test_an_event_of_an_own_notification_names_it_and_its_arrival() -> None:
    before = a_notification(7, seconds=START - 5)
    router = with_queues(InMemory(own=OWN).have(a_token(), before), 7)
    router.decide(lambda turn: ledger.remove(turn, before, LedgerEvent.DELETED))
    (told,) = router.turn.happened
    assert told == (b"t" * 24, before.name, START - 5, "no_token")
    assert router.entered == {("no_token", "", "apns"): 1}
    router.decide(lambda turn: turn.tell(replace(before, token_id=b"gone"), "no_token"))
    assert router.turn.happened == []


@pytest.mark.parametrize("before", [None, "waiting", "ended"])
def test_a_notification_takes_the_place_of_the_previous_one_of_its_queue(before: str | None) -> None:
    router = with_queues(InMemory(own=OWN).have(a_token()), 1, 2)
    router.have(a_notification(1, of=2))
    if before is not None:
        router.have(a_notification(2, of=1, is_waiting=before == "waiting"))
    number = 2 if before is None else 3
    router.now += 9
    queue = a_subscription(1)
    router.decide(lambda turn: ledger.accept(turn, queue, Carrier.APPLE, b"n" * 24, b"new"))
    kept = router.notifications[queue.subscription_id]
    assert kept == a_notification(number, of=1, nonce=b"n" * 24, encrypted_meta=b"new", seconds=START + 9), (
        "numbers have no gaps"
    )
    replaced = before == "waiting"
    assert router.told == ([(b"1", "replaced")] if replaced else []) + [(b"1", "received"), (b"1", "stored")]
    assert router.entered == {
        **({("replaced", "", "apns"): 1} if replaced else {}),
        ("stored", "", "apns"): 1,
    }
    ends: dict[str | None, dict[str, int]] = {"waiting": {"superseded": 1}, "ended": {"accepted": 1}}
    assert router.states == {"waiting": 2, **ends.get(before, {})}


def test_the_oldest_queues_make_room_whether_they_wait_or_not() -> None:
    router = with_queues(InMemory(NtfRules(push_items=2), own=OWN).have(a_token()), 1, 2, 3, 4)
    router.have(*(a_notification(number, is_waiting=number != 1) for number in (1, 2, 3)))
    router.decide(lambda turn: ledger.accept(turn, a_subscription(4), Carrier.APPLE, b"n" * 24, b"m"))
    assert [one.number for one in router.notifications.values()] == [3, 4]
    assert router.entered == {("stored", "", "apns"): 1, ("dropped", "", "apns"): 1}
    assert router.told == [(b"4", "received"), (b"4", "stored"), (b"2", "dropped")]


def test_only_what_waited_too_long_expires() -> None:
    router = with_queues(InMemory(NtfRules(notification_ttl_s=10), own=OWN).have(a_token()), 1, 2, 3)
    router.have(a_notification(1, seconds=START - 11), a_notification(2, seconds=START - 10))
    router.have(a_notification(3, seconds=START - 11, is_waiting=False))
    router.decide(lambda turn: ledger.expire(turn, b"t" * 24))
    assert [one.number for one in router.notifications.values()] == [2, 3]
    assert router.told == [(b"1", "expired")]
    assert router.states == {"waiting": 1, "accepted": 1, "expired": 1}


# --- which pushes are made


@pytest.mark.parametrize("state", TokenState)
@pytest.mark.parametrize("kind", PushKind)
def test_what_is_pushed_to_a_token_in_which_state(state: TokenState, kind: PushKind) -> None:
    token = a_token(state, period_minutes=20, period_due=START, key_name=b"k")
    router = with_queues(InMemory().have(token, a_notification()), 1)
    requested(router, token, kind)
    allowed = (S.REGISTERED, S.CONFIRMED, S.ACTIVE) if kind is CODE_PUSH else (S.ACTIVE,)
    if state not in allowed:
        assert len(router.turn.pushes) == len(router.state.jobs) == 0
        return
    push, job = router.pushed(kind), job_of(router, kind)
    assert job == Job(push.job)
    content = {CODE_PUSH: CODE, CHECK: b"", MESSAGE: push.content}[kind]
    plain = Push(token.token_id, kind, push.job, token.device, token.secret, content, key_name=b"k")
    if kind is MESSAGE:
        carried = ((a_subscription().subscription_id, 1),)
        plain = replace(plain, carried=carried, waiting=(Carrier.APPLE,), since=float(START))
    assert push == plain
    assert (router.counted, router.entered) == ({}, {})


@pytest.mark.parametrize(
    ("minutes", "due", "is_pushed"),
    [(20, START, True), (20, START + 1, False), (20, None, False), (0, START, False), (20, START - 9, True)],
)
def test_a_check_is_pushed_when_it_is_due(minutes: int, due: int | None, is_pushed: bool) -> None:
    router = InMemory().have(token := a_token(period_minutes=minutes, period_due=due))
    requested(router, token, CHECK)
    assert (len(router.turn.pushes) == 1) is is_pushed


@pytest.mark.parametrize("allowed", [True, False])
def test_a_test_device_gets_pushes_only_where_it_is_enabled(allowed: bool) -> None:
    token = a_token(device=device_token("ab", PushProvider.APNS_TEST))
    router = InMemory(NtfRules(test_provider=allowed)).have(token)
    requested(router, token, CODE_PUSH)
    assert (len(router.turn.pushes) == 1) is allowed


def test_a_push_carries_all_queues_in_order_and_names_those_that_wait() -> None:
    router = with_queues(InMemory().have(a_token()), 1, 2, 3)
    router.have(
        a_notification(3, of=1, seconds=START + 3),
        a_notification(1, of=2, seconds=START + 1, is_waiting=False),
        a_notification(2, of=3, seconds=START + 2, carrier=Carrier.WEB),
    )
    push = pushing(router)
    queues = {number: a_subscription(number) for number in (1, 2, 3)}
    items = [
        PushItem(SMP, queues[of].notifier_id, START + number, b"%24d" % number, b"m")
        for number, of in ((1, 2), (2, 3), (3, 1))
    ]
    assert push.content == encode_items(items)
    assert push.carried == tuple(
        (queues[of].subscription_id, number) for number, of in ((1, 2), (2, 3), (3, 1))
    )
    assert push.waiting == (Carrier.WEB, Carrier.APPLE)
    assert push.since == START + 3


def test_what_does_not_fit_is_dropped_from_the_oldest_on_and_nothing_is_no_push() -> None:
    rows: tuple[Row, ...] = (a_token(), *(a_subscription(number) for number in (1, 2)))
    news = tuple(a_notification(number, encrypted_meta=b"m" * 100) for number in (1, 2))
    one = len(pushing(InMemory().have(*rows, news[1])).content)
    both = len(pushing(InMemory().have(*rows, *news)).content)
    for size, carried, dropped in ((both + 2, 2, 0), (both + 1, 1, 1), (one + 2, 1, 1), (one + 1, 0, 2)):
        router = InMemory(NtfRules(padded_size=size)).have(*rows, *news)
        requested(router, router.token, MESSAGE)
        if carried:
            assert len(router.pushed().carried) == len(router.pushed().waiting) == carried
        else:
            assert len(router.turn.pushes) == len(router.state.jobs) == 0
        assert router.states == {k: n for k, n in (("waiting", carried), ("dropped", dropped)) if n}
        assert router.entered == ({("dropped", "", "apns"): dropped} if dropped else {})
        assert len(router.notifications) == carried
    ended = tuple(replace(each, is_waiting=False) for each in news)
    router = InMemory().have(*rows, *ended)
    requested(router, router.token, MESSAGE)
    assert len(router.turn.pushes) == 0


def test_within_one_batch_a_push_is_renewed_and_after_it_repeated_once_it_is_answered() -> None:
    router = with_queues(InMemory().have(a_token(), a_notification(1)), 1, 2)

    def twice(turn: Turn) -> None:
        pushes.request(turn, router.token, MESSAGE)
        ledger.accept(turn, a_subscription(2), Carrier.APPLE, b"2" * 24, b"m")
        pushes.request(turn, router.token, MESSAGE)

    router.decide(twice)
    push = router.pushed()
    assert len(push.carried) == 2
    assert job_of(router) == Job(push.job)
    requested(router, router.token, MESSAGE)
    assert len(router.turn.pushes) == 0
    assert job_of(router) == Job(push.job, again=True)
    done(router, push, Failed("no"))
    assert job_of(router) is None, "nothing waits any more"
    later = pushing(router.have(a_notification(3, of=1)))
    requested(router, router.token, MESSAGE)
    router.have(a_notification(4, of=2))
    done(router, later, Accepted())
    assert router.pushed().carried[-1] == (a_subscription(2).subscription_id, 4)
    assert job_of(router) == Job(router.pushed().job)


def test_a_batch_keeps_the_attempts_of_a_push_that_it_renews() -> None:
    router = with_queues(InMemory().have(a_token(), a_notification(1)), 1)
    done(router, pushing(router), RetryLater(""))
    paused = job_of(router)
    assert paused is not None

    def again(turn: Turn) -> None:
        pushes.again(turn, b"t" * 24, MESSAGE, paused.number)
        pushes.request(turn, router.token, MESSAGE)

    router.decide(again)
    assert job_of(router) == Job(router.pushed().job, attempts=2)


@pytest.mark.parametrize("kind", PushKind)
def test_a_push_that_waits_for_its_repetition_is_left_alone_unless_it_is_a_code_or_hurried(
    kind: PushKind,
) -> None:
    token = a_token(period_minutes=20, period_due=START)
    router = with_queues(InMemory().have(token, a_notification(1)), 1)
    done(router, pushing(router, kind), RetryLater(""))
    paused = job_of(router, kind)
    router.decide(lambda turn: pushes.ensure(turn, token, kind))
    assert len(router.turn.pushes) == 0
    requested(router, token, kind)
    assert len(router.turn.pushes) == (kind is CODE_PUSH)
    if kind is not CODE_PUSH:
        assert job_of(router, kind) is paused
    router.decide(lambda turn: pushes.cancel(turn, token, kind))
    router.decide(lambda turn: pushes.ensure(turn, token, kind))
    done(router, router.pushed(kind), RetryLater(""))
    router.decide(lambda turn: pushes.hurry(turn, token, kind))
    assert job_of(router, kind) == Job(router.pushed(kind).job), "as if for the first time"
    router.decide(lambda turn: pushes.hurry(turn, token, kind))
    assert len(router.turn.pushes) == 0
    job = job_of(router, kind)
    assert job is not None
    assert job.again, "one is in flight already"


def test_only_messages_wait_in_the_store_while_memory_is_full() -> None:
    token = a_token(period_minutes=20, period_due=START)
    router = with_queues(InMemory(NtfRules(push_queue=0)).have(token, a_notification(1)), 1)
    requested(router, token, *PushKind)
    assert {kind for _, kind in router.turn.pushes} == {CODE_PUSH, CHECK}
    assert router.counted == {Meter.DEFERRED: 1}
    router.rules = NtfRules(push_queue=3)
    requested(router, token, MESSAGE)
    assert router.pushed()
    assert router.counted == {}


def test_a_push_that_has_nothing_left_to_say_is_taken_back() -> None:
    token = a_token(period_minutes=20, period_due=START)
    router = InMemory().have(token)

    def turned_off(turn: Turn) -> None:
        pushes.request(turn, token, CHECK)
        pushes.request(turn, replace(token, period_minutes=0), CHECK)

    router.decide(turned_off)
    assert len(router.turn.pushes) == len(router.state.jobs) == 0
    router = with_queues(router.have(a_notification(1)), 1)
    done(router, pushing(router), RetryLater(""))
    router.have(replace(token, status=TokenStatus(S.REGISTERED)))
    job = job_of(router)
    assert job is not None
    repeated(router, job.number)
    assert len(router.turn.pushes) == len(router.state.jobs) == 0


@pytest.mark.parametrize("others", [0, 1])
def test_what_is_deleted_in_the_batch_that_would_push_it_is_not_pushed(others: int) -> None:
    router = with_queues(InMemory().have(token := a_token(), a_notification(1)), 1, 2)
    router.have(*[a_notification(2)] * others)

    def deleted(turn: Turn) -> None:
        pushes.request(turn, token, MESSAGE)
        subscriptions.unsubscribe(turn, a_subscription(1))

    router.decide(deleted)
    carried = [push.carried for _, push in router.turn.pushes.items()]
    assert carried == [((b"%24d" % 2, 2),)] * others
    assert len(router.state.jobs) == others
    assert router.entered == {("no_token", "", "apns"): 1}


def test_a_push_under_way_is_not_made_again_when_something_is_deleted() -> None:
    """What it carries is in the hands of the push service; the rest is pushed after its outcome."""
    router = with_queues(InMemory().have(token := a_token(), a_notification(1), a_notification(2)), 1, 2)
    router.decide(lambda turn: pushes.request(turn, token, MESSAGE))
    jobs = dict(router.state.jobs.items())
    router.decide(lambda turn: subscriptions.unsubscribe(turn, a_subscription(1)))
    assert len(router.turn.pushes) == 0
    assert dict(router.state.jobs.items()) == jobs


def test_a_device_that_is_left_in_the_same_batch_gets_no_message_or_check() -> None:
    token = a_token(period_minutes=20, period_due=START)
    router = with_queues(InMemory().have(token, a_notification(1)), 1)

    def moved(turn: Turn) -> None:
        for kind in (MESSAGE, CHECK):
            pushes.request(turn, token, kind)
        tokens.replace_device(turn, a_client(), token, TRPL(device_token("cd")))

    router.decide(moved)
    assert router.pushed(CODE_PUSH).device == device_token("cd")
    assert router.states == {"waiting": 1}, "it is pushed once the other device has shown its code"


@pytest.mark.parametrize(
    ("most", "others", "service", "has_room"),
    [
        (2, {"": 1}, "", True),
        (2, {"": 2}, "", False),
        (2, {"": 2}, "a", False),
        (32, {"a": 2}, "a", False),
        (32, {"a": 1}, "a", True),
        (32, {"a": 2}, "b", True),
        (32, {"a": 2}, "", True),
        (36, {"a": 2}, "a", False),
        (32, dict.fromkeys("abcdefgh", 2), "i", False),
        (32, {**dict.fromkeys("abcdefg", 2), "h": 1}, "i", True),
        (32, dict.fromkeys("abcdefgh", 2), "", True),
        (1, {}, "a", True),
        (0, {}, "a", False),
        (2, {"a": 1}, "b", False),
        (4, {"a": 1}, "a", False),
        (4, {"a": 1}, "b", True),
    ],
)
def test_half_of_the_room_is_for_web_push_and_an_eighth_of_it_for_each_service(
    most: int, others: dict[str, int], service: str, has_room: bool
) -> None:
    undo = Undo()
    jobs, numbers = Jobs(undo), itertools.count()
    for host, count in others.items():
        for _ in range(count):
            number = next(numbers)
            for again in (False, True):  # each is renewed once, and counts once
                jobs.put((b"%d" % number, MESSAGE), Job(number, again=again, service=host))
    gone = Job(99, service=service)
    jobs.put((b"gone", MESSAGE), gone)
    assert jobs.pop((b"gone", MESSAGE)) is gone
    assert jobs.pop((b"gone", MESSAGE)) is None
    assert (service in jobs._crowds) is (service in others and service != ""), "nothing is kept of the rest"
    assert jobs.has_room(service, most) is has_room
    undo.rollback()
    assert len(jobs._crowds) == 0
    assert jobs.has_room(service, 1)


def test_a_job_knows_the_push_service_of_its_device() -> None:
    state = NtfState(Undo())
    jobs = state.new_job(web_device("A.example.org.")), state.new_job(device_token("ab"), 3)
    assert jobs == (Job(1, service="a.example.org"), Job(2, attempts=3)), "a service has one share"


def test_counts_are_forgotten_when_their_window_has_ended() -> None:
    rates = Rates(Undo())
    assert rates.take([(("codes", "a"), 1)], 10.0, 100.0)
    assert rates.take([(("codes", "b"), 1)], 10.0, 105.0)
    for now, kept in ((109.0, 2), (110.0, 1), (114.0, 1), (115.0, 0)):
        rates.forget(now)
        assert len(rates) == kept


def test_counts_of_a_clock_that_was_ahead_limit_nobody_once_it_is_right() -> None:
    """It would be for as long as it was ahead, which may be years."""
    rates, asked = Rates(Undo()), [(("codes", "a"), 1)]
    assert rates.take(asked, 10.0, 1e9)
    assert not rates.take(asked, 10.0, 1e9)
    assert rates.take(asked, 10.0, 100.0)
    assert not rates.take(asked, 10.0, 109.0)
    rates.forget(100.0)
    assert len(rates) == 1
    rates.forget(99.0)
    assert len(rates) == 0


def test_the_end_of_a_pause_counts_only_for_the_push_that_it_was_for() -> None:
    router = with_queues(InMemory().have(a_token(), a_notification(1)), 1)
    done(router, pushing(router), RetryLater(""))
    (later,) = router.turn.effects
    assert isinstance(later, PushLater)
    repeated(router, later.job + 1)
    assert len(router.turn.pushes) == 0
    repeated(router, later.job, token_id=b"o" * 24)
    assert len(router.turn.pushes) == 0
    repeated(router, later.job)
    push = router.pushed()
    assert job_of(router) == Job(push.job, attempts=2)
    repeated(router, push.job)
    assert len(router.turn.pushes) == 0
    done(router, push, RetryLater(""))
    (later,) = router.turn.effects
    assert isinstance(later, PushLater)
    router.tokens.clear()
    repeated(router, later.job)
    assert len(router.turn.pushes) == len(router.state.jobs) == 0


@pytest.mark.parametrize(
    ("attempts", "chance", "after_s", "delay_s"),
    [
        (1, 0.0, None, 1.0),
        (1, 0.5, None, 1.5),
        (2, 0.0, None, 2.0),
        (5, 0.5, None, 24.0),
        (9, 0.0, None, 256.0),
        (10, 0.0, None, 300.0),
        (99, 0.5, None, 450.0),
        (1, 0.0, 60.0, 60.0),
        (1, 0.5, 60.0, 67.5),
        (99, 0.0, 60.0, 300.0),
    ],
)
def test_pauses_double_to_the_longest_and_respect_the_provider(
    attempts: int, chance: float, after_s: float | None, delay_s: float
) -> None:
    router = with_queues(InMemory(own=OWN).have(token := a_token(), a_notification(1)), 1, 2)
    router.have(a_notification(2, is_waiting=False))
    router.chance = chance
    router.decide(lambda turn: pushes.pause(turn, token, MESSAGE, attempts, after_s))
    job = job_of(router)
    assert job is not None
    assert job == Job(job.number, in_flight=False, attempts=attempts + 1)
    assert router.turn.effects == [PushLater(token.token_id, MESSAGE, job.number, delay_s)]
    assert router.counted == {Meter.RETRIES: 1}
    assert router.entered == {("retried", "", "apns"): 1}
    assert router.told == [(b"1", "retried")]
    router.decide(lambda turn: pushes.pause(turn, token, CHECK, attempts, after_s))
    assert router.entered == {}


# --- what follows from a provider's answer


METERS = {
    CODE_PUSH: (Meter.CODES_DELIVERED, Meter.CODES_FAILED),
    MESSAGE: (Meter.DELIVERED, Meter.FAILED),
    CHECK: (Meter.PERIODIC_DELIVERED, Meter.PERIODIC_FAILED),
}


def under_way(kind: PushKind, token: Token) -> tuple[InMemory, Push]:
    router = with_queues(
        InMemory(own=OWN).have(token, a_notification(1, carrier=Carrier.of(token.device))), 1
    )
    push = pushing(router, kind)
    router.now += 3
    return router, push


@pytest.mark.parametrize("device", [device_token("ab"), NULL_DEVICE])
@pytest.mark.parametrize("kind", PushKind)
def test_an_accepted_push(kind: PushKind, device: DeviceToken) -> None:
    token = a_token(
        S.REGISTERED if kind is CODE_PUSH else S.ACTIVE, device, period_minutes=20, period_due=START
    )
    router, push = under_way(kind, token)
    done(router, push, Accepted())
    assert router.counted == ({} if device is NULL_DEVICE else {METERS[kind][0]: 1})
    assert len(router.state.jobs) == 0
    carrier = Carrier.of(token.device)
    ended = kind is MESSAGE
    assert router.states == {"accepted" if ended else "waiting": 1}
    assert [one.is_waiting for one in router.notifications.values()] == [not ended]
    assert router.meters.push_s[carrier].count == ended
    assert router.meters.push_s[carrier].total == (3.0 if ended else 0.0)
    changes: dict[PushKind, dict[str, Any]] = {
        CODE_PUSH: {"status": TokenStatus(S.CONFIRMED)},
        MESSAGE: {},
        CHECK: {"period_due": START + 1200, "period_sent": START + 3},
    }
    assert router.token == replace(token, **changes[kind])


def test_a_push_accepted_before_its_notification_by_the_clock_took_no_time() -> None:
    router, push = under_way(MESSAGE, a_token())
    router.now -= 100
    done(router, push, Accepted())
    assert router.meters.push_s[Carrier.APPLE].total == 0.0


@pytest.mark.parametrize("kind", PushKind)
def test_a_push_that_failed(kind: PushKind) -> None:
    for outcome in (Failed("no"), RetryLater("too often")):
        token = a_token(S.REGISTERED if kind is CODE_PUSH else S.ACTIVE, period_minutes=20, period_due=START)
        router, push = under_way(kind, token)
        job = job_of(router, kind)
        assert job is not None
        router.state.jobs.fill((token.token_id, kind), replace(job, attempts=6))
        done(router, push, outcome)
        if kind is MESSAGE and isinstance(outcome, RetryLater):
            assert router.counted == {Meter.RETRIES: 1}, "as long as it is not too old"
            continue
        assert router.counted == {METERS[kind][1]: 1}
        assert len(router.state.jobs) == 0
        assert router.token == (replace(token, period_due=START + 1200) if kind is CHECK else token)
        assert (len(router.turn.view.changed_tokens) == 1) is (kind is CHECK)
        assert router.states == {"rejected" if kind is MESSAGE else "waiting": 1}


@pytest.mark.parametrize("kind", [CODE_PUSH, CHECK])
def test_codes_and_checks_are_repeated_a_few_times(kind: PushKind) -> None:
    router, push = under_way(kind, a_token(period_minutes=20, period_due=START))
    for attempts in range(1, 6):
        done(router, push, RetryLater("", None))
        assert router.counted == {Meter.RETRIES: 1}
        job = job_of(router, kind)
        assert job is not None
        assert job.attempts == attempts + 1
        repeated(router, job.number, kind)
        push = router.pushed(kind)
    done(router, push, RetryLater("", None))
    assert router.counted == {METERS[kind][1]: 1}


def test_a_repetition_that_is_due_carries_what_came_meanwhile_but_is_not_doubled() -> None:
    router, push = under_way(MESSAGE, a_token())
    requested(router, router.token, MESSAGE)
    done(router, push, RetryLater("", 7.0))
    assert len(router.turn.pushes) == 0
    (later,) = router.turn.effects
    assert isinstance(later, PushLater)
    assert later.delay_s == 7.0


@pytest.mark.parametrize("device", [device_token("ab"), NULL_DEVICE])
@pytest.mark.parametrize("kind", PushKind)
def test_a_refused_device(kind: PushKind, device: DeviceToken) -> None:
    token = a_token(S.ACTIVE, device, period_minutes=20, period_due=START)
    router, push = under_way(kind, token)
    requested(router, token, kind)
    done(router, push, TokenInvalid(NO))
    assert router.token == replace(token, status=TokenStatus(S.INVALID, NO))
    carrier = Carrier.of(token.device).value
    assert router.entered == {("token_invalid", "UNREGISTERED", carrier): 1}
    counted = {METERS[kind][1]: 1, Meter.TOKENS_INVALID: 1}
    if kind is CODE_PUSH:
        counted[Meter.CODES_INVALID_TOKENS] = 1
    assert router.counted == ({} if device is NULL_DEVICE else counted)
    assert len(router.turn.pushes) == len(router.state.jobs) == 0, "it gets no more"


@pytest.mark.parametrize("kind", PushKind)
def test_an_answer_about_the_device_that_a_token_had_before(kind: PushKind) -> None:
    token = a_token(period_minutes=20, period_due=START)
    router, push = under_way(kind, token)
    router.have(moved := replace(token, device=device_token("cd"), status=TokenStatus(S.REGISTERED)))
    done(router, push, TokenInvalid(NO))
    assert router.token == moved
    assert (router.counted, router.entered) == ({}, {})
    router, push = under_way(kind, token)
    router.have(moved)
    done(router, push, Accepted(b"key"))
    due: dict[str, Any] = {"period_due": START + 1200, "period_sent": START + 3} if kind is CHECK else {}
    assert router.token == replace(moved, **due)


def test_a_code_that_was_replaced_does_not_confirm_the_token() -> None:
    router, push = under_way(CODE_PUSH, a_token(S.REGISTERED))
    done(router, replace(push, content=b"older"), Accepted())
    assert router.token.status == TokenStatus(S.REGISTERED)
    assert router.counted == {Meter.CODES_DELIVERED: 1}


@pytest.mark.parametrize(
    ("before", "told", "after"), [(b"", b"", b""), (b"", b"k", b"k"), (b"j", b"k", b"k"), (b"k", b"k", b"k")]
)
def test_the_key_that_a_push_service_accepts_is_remembered(before: bytes, told: bytes, after: bytes) -> None:
    router, push = under_way(MESSAGE, a_token(device=web_device(), key_name=before))
    done(router, push, Accepted(told))
    assert router.token.key_name == after
    assert (len(router.turn.view.changed_tokens) == 0) is (before == after)


def test_an_answer_counts_once_and_only_for_the_push_under_way() -> None:
    router, push = under_way(MESSAGE, a_token())
    for stale in (
        replace(push, job=push.job + 1),
        replace(push, token_id=b"o" * 24),
        replace(push, kind=CHECK),
    ):
        done(router, stale, Accepted())
        assert (router.counted, router.states) == ({}, {"waiting": 1})
    assert job_of(router) == Job(push.job)
    done(router, push, Accepted())
    done(router, push, Accepted())
    assert router.counted == {}
    router, push = under_way(MESSAGE, a_token())
    router.tokens.clear()
    done(router, push, Accepted())
    assert router.counted == {}
    assert router.states == {"waiting": 1}


def test_a_push_ends_only_the_notifications_that_it_carried() -> None:
    router = with_queues(
        InMemory().have(a_token(), *(a_notification(number) for number in (1, 2, 3))), 1, 2, 3
    )
    push = pushing(router)
    newer = a_notification(4, of=2)
    router.have(newer)
    del router.notifications[a_subscription(3).subscription_id]
    done(router, push, Accepted())
    assert router.notifications == {
        a_subscription(1).subscription_id: a_notification(1, is_waiting=False),
        a_subscription(2).subscription_id: newer,
    }
    assert router.entered == {("accepted", "", "apns"): 1}


@pytest.mark.parametrize(
    ("minutes", "due", "passed_s", "after"),
    [
        (20, START, 0, START + 1200),
        (20, START, 1199, START + 1200),
        (20, START, 1200, START + 2400),
        (20, START, 5000, START + 6000),
        (20, START, -500, START + 1200),
        (0, START, 0, START),
        (20, None, 0, None),
        (0, None, 0, None),
    ],
)
def test_the_next_period_is_the_next_future_one_of_the_schedule(
    minutes: int, due: int | None, passed_s: int, after: int | None
) -> None:
    router = InMemory().have(a_token(period_minutes=20, period_due=START))
    push = pushing(router, CHECK)
    router.have(replace(router.token, period_minutes=minutes, period_due=due))
    router.now += passed_s
    done(router, push, Accepted())
    assert router.token.period_due == after
    assert router.token.period_sent == START + passed_s
