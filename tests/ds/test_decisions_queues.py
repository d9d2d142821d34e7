"""Every decision about queues, with all that it changes, answers and counts; and rolled back once."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from blindpost.ds import queues
from blindpost.ds.auth import Caller
from blindpost.ds.checks import NOT_OWNER, UNAUTHENTICATED, Refusal
from blindpost.ds.heads import SCAN_MAX, Head
from blindpost.ds.meters import Meter
from blindpost.ds.model import LARGE_BYTES, DsRules, Ends, Entry, delivery_id, delivery_queue
from blindpost.ds.queues import TOO_MANY_PACKAGES, TOO_MANY_WAITS
from blindpost.ds.quotas import TOO_MANY_TAKEN, TOO_MUCH_SENT
from blindpost.ds.state import Hold, Peer, TakeRequest, Wait
from blindpost.ds.turn import Stage, Taken
from blindpost.ds.view import View, Wanted
from blindpost.engine.undo import Undo
from blindpost.wire.capnp.node import (
    Ack,
    Auth,
    Deliveries,
    Delivery,
    Done,
    Enqueue,
    Fetch,
    FetchKeyPackage,
    FetchWait,
    Fingerprint,
    KeyPackage,
    Lease,
    Payloads,
    UploadKeyPackage,
)
from blindpost.wire.capnp.rpc import ExceptionType
from tests.support.ds.delivery import ALICE, BOB
from tests.support.ds.in_memory import PACKAGES, QUEUE, InMemory, entry, reach

AUTH = Auth()
FETCH = Fetch(ALICE, b"", 1, AUTH)
WAIT = FetchWait(ALICE, b"", 1, 5000, AUTH)
LEASE = Lease(ALICE, b"", 1, 5000, 0, 0, AUTH)
OWN = (ALICE,)
LARGE = b"L" * (LARGE_BYTES + 1)


def enqueued(service: InMemory, payload: bytes, peer: Peer | None = None) -> None:
    call = Enqueue(ALICE, payload, b"", 1, AUTH)
    service.decide(lambda turn: queues.enqueue(turn, peer or service.one, 1, call))


def taken(service: InMemory, peer: Peer, request: TakeRequest = FETCH, question: int = 1) -> bool:
    return service.decide(lambda turn: queues.take(turn, peer, question, request))


def acked(service: InMemory, *ids: bytes, peer: Peer | None = None) -> None:
    call = Ack(ALICE, b"", 1, ids, AUTH)
    service.decide(lambda turn: queues.acknowledge(turn, peer or service.one, 9, call))


def hold_of(peer: Peer) -> Hold:
    ((_, hold),) = peer.holds.items()
    return hold


def wait_of(service: InMemory) -> Wait:
    ((_, wait),) = service.state.waiting.items()
    return wait


# --- enqueue


@pytest.mark.parametrize("is_own", [True, False])
def test_a_payload_is_appended(is_own: bool) -> None:
    service = InMemory(own=OWN if is_own else (BOB,)).have(QUEUE, entry(3), entry(4))
    enqueued(service, b"new")
    added = service.queues[QUEUE][-1]
    assert added == Entry(5, added.tag, 3, b"new")
    assert len(added.tag) == 8
    assert service.answered(service.one, 1) == Done()
    assert service.counted == {Meter.ENQUEUED: 1, Meter.ENQUEUED_BYTES: 3}
    assert service.told == ([("enqueued", 5, 3, 0.0)] if is_own else [])
    assert service.turn.to_wake == []
    if is_own:
        assert service.turn.happened[0].payload == added.id


def test_a_large_payload_is_written_first_and_appended_then() -> None:
    service = InMemory(own=OWN).have(QUEUE, entry(0))
    enqueued(service, LARGE[:-1])
    assert service.numbers() == [0, 1]
    assert service.turn.to_stage == []
    enqueued(service, LARGE)
    assert (service.numbers(), service.counted, service.turn.answers) == ([0, 1], {}, [])
    (stage,) = service.turn.to_stage
    assert stage == Stage(service.one, 1, Enqueue(ALICE, LARGE, b"", 1, AUTH), None, stage.tag)
    assert (stage.queue, stage.payload) == (QUEUE, LARGE)
    taken(service.have(QUEUE), service.other, WAIT)
    service.have(QUEUE, entry(0))
    service.decide(lambda turn: queues.staged(turn, stage))
    assert service.queues[QUEUE][-1] == Entry(1, stage.tag, len(LARGE))
    assert service.answered(service.one, 1) == Done()
    assert service.counted == {Meter.ENQUEUED: 1, Meter.ENQUEUED_BYTES: len(LARGE)}
    assert service.turn.happened[0].payload == delivery_id(1, stage.tag)
    assert (service.turn.to_drop, service.turn.to_wake) == ([], [(QUEUE, 0.0)])


@pytest.mark.parametrize(
    ("rules", "size", "reason"),
    [
        (DsRules(queue_payloads=2), 1, "queue is full (2 payloads)"),
        (DsRules(queue_payloads=3), 1, None),
        (DsRules(queue_bytes=7), 1, None),
        (DsRules(queue_bytes=7), 2, "queue is full (7 bytes)"),
        (DsRules(total_payloads=3), 1, "the delivery service is full"),
        (DsRules(total_payloads=4), 1, None),
        (DsRules(total_bytes=11), 1, None),
        (DsRules(total_bytes=11), 2, "the delivery service is full"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_dropped_for_it(
    rules: DsRules, size: int, reason: str | None
) -> None:
    """Two payloads of three bytes in the queue, one of four in another."""
    refused = None if reason is None else Refusal(reason, ExceptionType.OVERLOADED)

    def filled() -> InMemory:
        service = InMemory(replace(rules, key_packages=9), own=OWN)
        for queue, other in ((QUEUE, b"other"), (PACKAGES, b"others")):
            service.have(queue, entry(0, 3), entry(1, 3)).have(other, entry(0, 4))
        return service

    service = filled()
    del service.queues[PACKAGES], service.queues[b"others"]
    enqueued(service, b"n" * size)
    assert service.answered(service.one, 1) == (refused or Done())
    assert len(service.numbers()) == (2 if refused else 3)
    if refused:
        assert (service.counted, service.told) == ({Meter.REFUSED_FULL: 1}, [])
    stage = Stage(service.other, 7, Enqueue(ALICE, b"n" * size, b"", 1, AUTH), None, b"t" * 8)
    service = filled()
    del service.queues[PACKAGES], service.queues[b"others"]
    service.decide(lambda turn: queues.staged(turn, replace(stage, peer=service.other)))
    assert service.answered(service.other, 7) == (refused or Done())
    assert len(service.turn.to_drop) == bool(refused)
    if refused:
        assert (service.counted, service.numbers()) == ({Meter.REFUSED_FULL: 1}, [0, 1])
    service = filled()
    del service.queues[QUEUE], service.queues[b"other"]
    upload = UploadKeyPackage(ALICE, b"n" * size, AUTH)
    service.decide(lambda turn: queues.upload_package(turn, service.one, 1, upload))
    answer = service.answered(service.one, 1)
    assert answer == refused or isinstance(answer, Fingerprint)
    assert service.counted == {Meter.REFUSED_FULL if refused else Meter.KEY_PACKAGES_UPLOADED: 1}
    assert service.told == []


def test_what_an_identity_sends_counts_once_it_is_stored() -> None:
    """The decisions are rolled back once each, which the desk sees to."""
    service = InMemory(DsRules(sender_payloads=2, queue_payloads=1)).have(QUEUE)
    service.callers = {AUTH: Caller(BOB)}
    enqueued(service, LARGE)
    enqueued(service, LARGE)
    one, other = service.turn.to_stage * 2
    service.decide(lambda turn: queues.staged(turn, one))
    assert service.answered(service.one, 1) == Done()
    for _ in range(3):
        enqueued(service, b"does not fit")
        assert service.counted == {Meter.REFUSED_FULL: 1}
    service.have(QUEUE)
    enqueued(service, b"fits")
    assert service.answered(service.one, 1) == Done()
    service.have(QUEUE)
    enqueued(service, b"too much")
    assert (service.answered(service.one, 1), service.counted) == (TOO_MUCH_SENT, {Meter.REFUSED: 1})
    service.decide(lambda turn: queues.staged(turn, other))
    assert (service.answered(service.one, 1), service.turn.to_drop) == (TOO_MUCH_SENT, [other])
    assert service.numbers() == []


def test_what_an_identity_takes_counts_if_it_gets_something() -> None:
    service = InMemory(DsRules(taken_packages_of_one=1)).have(PACKAGES)
    service.callers = {AUTH: Caller(BOB)}

    def fetched() -> object:
        request = FetchKeyPackage(ALICE, AUTH)
        assert service.decide(lambda turn: queues.fetch_package(turn, service.one, 1, request)) is True
        return service.answered(service.one, 1)

    assert [fetched() for _ in range(3)] == [KeyPackage(b"")] * 3
    service.have(PACKAGES, entry(0), entry(1))
    assert fetched() == KeyPackage(b"0")
    assert (fetched(), service.counted) == (TOO_MANY_TAKEN, {Meter.REFUSED: 1})
    assert service.numbers(PACKAGES) == [1]


def test_what_an_address_stored_counts_against_it_until_it_is_taken() -> None:
    """Of the 40,000 bytes that are free an address may have added a part in 256."""
    service = InMemory(DsRules(total_bytes=100_000, response_payloads=1)).have(b"others", entry(0, 60_000))
    service.one.account, service.other.account = b"address", b"another"
    nearly = "the delivery service is nearly full, and much of it came from this address"
    refused = Refusal(nearly, ExceptionType.OVERLOADED)
    package = UploadKeyPackage(ALICE, b"n" * 150, AUTH)

    def stored(peer: Peer, *, in_packages: bool = False) -> bool:
        if in_packages:
            service.decide(lambda turn: queues.upload_package(turn, peer, 1, package))
        else:
            enqueued(service, b"n" * 150, peer)
        answer = service.answered(peer, 1)
        assert answer == refused or isinstance(answer, Done | Fingerprint)
        assert (answer == refused) is (service.counted == {Meter.REFUSED_FULL: 1})
        return bool(answer != refused)

    assert stored(service.one)
    assert not stored(service.one)
    assert not stored(service.one, in_packages=True)
    assert stored(service.other), "another address"
    taken(service, service.one, FETCH, 5)
    service.decide(lambda turn: queues.finish(turn, service.one, 5))
    assert stored(service.one)
    assert not stored(service.other)
    acked(service, service.queues[QUEUE][0].id)
    assert stored(service.other, in_packages=True)
    assert not stored(service.other, in_packages=True)
    service.decide(lambda turn: queues.fetch_package(turn, service.one, 1, FetchKeyPackage(ALICE, AUTH)))
    assert stored(service.other, in_packages=True)
    assert not stored(service.one)


# --- fetch, fetchWait, lease


def test_a_fetch_hands_out_and_its_finish_deletes() -> None:
    service = InMemory(DsRules(hold_s=30), own=OWN).have(QUEUE, entry(0), entry(1))
    assert taken(service, service.one) is True
    assert service.answered(service.one, 1, is_held=True) == Payloads((b"0", b"1"))
    hold = hold_of(service.one)
    assert hold == Hold(
        hold.number, service.one, QUEUE, (entry(0, loaded=False), entry(1, loaded=False)), 130.0, FETCH
    )
    assert service.counted == {Meter.HANDED_OUT: 2}
    assert service.told == [("leased", 0, 2, 0.0), ("leased", 1, 2, 0.0)]
    assert service.numbers() == service.held == [0, 1]
    taken(service, service.other, WAIT)
    service.decide(lambda turn: queues.finish(turn, service.one, 2))
    assert service.counted == {}, "another question"
    service.decide(lambda turn: queues.finish(turn, service.one, 1))
    assert service.counted == {Meter.FINISHED: 2}
    assert service.told == [("acked", 0, 1, 0.0), ("acked", 1, 0, 0.0)]
    assert service.turn.to_wake == [(QUEUE, 0.0)]
    assert service.numbers() == service.held == []
    service.decide(lambda turn: queues.finish(turn, service.one, 1))
    assert service.counted == {}


def test_a_lease_hands_out_until_it_is_acknowledged() -> None:
    service = InMemory(own=OWN).have(QUEUE, entry(0), entry(1), entry(2))
    assert taken(service, service.one, replace(LEASE, max_payloads=2)) is True
    given = Deliveries(tuple(Delivery(entry(n).id, b"%d" % n) for n in (0, 1)))
    assert service.answered(service.one, 1, is_held=True) == given
    hold = hold_of(service.one)
    assert (hold.until, hold.is_lease) == (160.0, True)
    service.decide(lambda turn: queues.finish(turn, service.one, 1))
    assert (service.counted, service.numbers(), service.held) == ({}, [0, 1, 2], [0, 1])
    taken(service, service.other, WAIT, 4)
    wrong_tag = delivery_id(0, b"wrong tag"[:8])
    acked(service, entry(0).id, b"no id", wrong_tag, entry(7).id, entry(0).id, peer=service.other)
    assert service.answered(service.other, 9) == Done()
    assert service.counted == {Meter.ACKNOWLEDGED: 1}
    assert service.told == [("acked", 0, 2, 0.0)]
    assert service.turn.to_wake == [(QUEUE, 0.0)]
    assert (service.numbers(), service.held) == ([1, 2], [1])
    assert service.one.holds.get(hold.number) is hold, "the other one is still in its hands"
    acked(service, entry(1).id)
    assert (service.numbers(), service.held, len(service.one.holds)) == ([2], [], 0)


@pytest.mark.parametrize(
    ("lease_ms", "rules", "until"),
    [
        (0, DsRules(), 160.0),
        (10_000, DsRules(), 110.0),
        (601_000, DsRules(), 700.0),
        (0, DsRules(lease_s=9, lease_s_max=5), 105.0),
    ],
)
def test_how_long_a_lease_lasts(lease_ms: int, rules: DsRules, until: float) -> None:
    service = InMemory(rules).have(QUEUE, entry(0))
    taken(service, service.one, replace(LEASE, lease_ms=lease_ms))
    assert hold_of(service.one).until == until


@pytest.mark.parametrize(
    ("request_", "most"),
    [
        (FETCH, 5),
        (WAIT, 5),
        (LEASE, 5),
        (replace(LEASE, max_payloads=1), 1),
        (replace(LEASE, max_payloads=4), 4),
        (replace(LEASE, max_payloads=6), 5),
    ],
)
def test_how_many_payloads_an_answer_has(request_: TakeRequest, most: int) -> None:
    assert queues.payloads_max(DsRules(response_payloads=5), request_) == most
    service = InMemory(DsRules(response_payloads=5)).have(QUEUE, *(entry(n) for n in range(7)))
    taken(service, service.one, request_)
    assert service.held == list(range(most))


@pytest.mark.parametrize(
    ("sizes", "room", "given"),
    [([3, 3, 3], 9, 3), ([3, 3, 3], 8, 2), ([9, 1], 5, 1), ([1, 9, 1], 5, 1), ([3, 3, 3], 6, 2), ([5], 5, 1)],
)
def test_an_answer_has_what_fits_but_always_something(sizes: list[int], room: int, given: int) -> None:
    entries = [entry(number, size) for number, size in enumerate(sizes)]
    service = InMemory(DsRules(response_bytes=room)).have(QUEUE, *entries)
    taken(service, service.one)
    assert service.held == list(range(given))


def test_a_large_payload_is_read_when_the_answer_leaves() -> None:
    large = Entry(0, b"t" * 8, len(LARGE))
    service = InMemory().have(QUEUE, large, entry(1))
    taken(service, service.one, LEASE)
    answer = service.answered(service.one, 1, is_held=True)
    assert answer == Taken(QUEUE, (large, entry(1)), True)
    assert answer.apart == (large,)
    both = Deliveries((Delivery(large.id, LARGE), Delivery(entry(1).id, b"1")))
    assert answer.result({0: LARGE}) == both
    assert answer.result({}) == Deliveries(both.deliveries[1:]), "it was acknowledged meanwhile"
    fetched = replace(answer, is_lease=False)
    assert fetched.result({0: LARGE}) == Payloads((LARGE, b"1"))
    assert fetched.result({}) == Payloads((b"1",))


@pytest.mark.parametrize(
    ("request_", "deadline"),
    [
        (FETCH, None),
        (replace(WAIT, timeout_ms=0), None),
        (replace(LEASE, timeout_ms=0), None),
        (replace(WAIT, timeout_ms=500), 100.5),
        (LEASE, 105.0),
        (replace(WAIT, timeout_ms=200_000), 220.0),
    ],
)
def test_a_call_that_finds_nothing_waits_as_long_as_it_says(
    request_: TakeRequest, deadline: float | None
) -> None:
    service = InMemory(own=OWN).have(QUEUE)
    assert taken(service, service.one, request_, 3) is True
    if deadline is None:
        nothing = Deliveries(()) if isinstance(request_, Lease) else Payloads(())
        assert service.answered(service.one, 3) == nothing
        assert (service.counted, len(service.state.waiting)) == ({}, 0)
        return
    assert service.turn.answers == []
    wait = wait_of(service)
    assert not isinstance(request_, Fetch)
    assert wait == Wait(service.one, 3, request_, QUEUE, 100.0, deadline)
    assert service.turn.begun == [wait]
    assert service.state.waiters.get(QUEUE) == (wait,)
    assert service.one.waits.get(3) is wait
    assert service.counted == {Meter.WAITS: 1}
    assert service.told == [("waited", None, 0, 0.0)]
    assert service.turn.to_wake == []


@pytest.mark.parametrize(
    ("rules", "waits"),
    [
        (DsRules(waits_per_connection=2), 2),
        (DsRules(waits_per_queue=2), 2),
        (DsRules(waits=2), 2),
        (DsRules(), 3),
    ],
)
def test_calls_that_wait_are_limited_by_connection_by_queue_and_in_total(rules: DsRules, waits: int) -> None:
    service = InMemory(rules).have(QUEUE)
    for question in range(3):
        taken(service, service.one, WAIT, question)
    assert len(service.state.waiting) == waits
    if waits < 3:
        assert service.answered(service.one, 2) == TOO_MANY_WAITS
        assert service.counted == {Meter.REFUSED_WAITS: 1}
    taken(service, service.other, WAIT)
    assert len(service.state.waiting) == waits + (min(rules.waits, rules.waits_per_queue) > 2)
    taken(service, service.other, replace(WAIT, channel_id=b"c"), 2)
    assert len(service.state.waiters) == 1 + (rules.waits > 2), "of another queue"


@pytest.mark.parametrize("is_lease", [True, False])
def test_nobody_overtakes_what_another_connection_holds_until_it_is_overdue(is_lease: bool) -> None:
    service = InMemory(DsRules(hold_s=60), own=OWN).have(QUEUE, entry(0), entry(1))
    taken(service, service.one, replace(LEASE, max_payloads=1) if is_lease else FETCH)
    if not is_lease:
        service.have(QUEUE, entry(0), entry(1), entry(2))
    held = service.held
    service.now = 159.5
    taken(service, service.other, FETCH)
    assert service.answered(service.other, 1) == Payloads(())
    taken(service, service.other, WAIT, 2)
    assert service.turn.to_wake == [(QUEUE, 0.5)]
    assert service.decide(lambda turn: queues.wake(turn, QUEUE)) is True
    assert (service.turn.to_wake, service.counted) == ([(QUEUE, 0.5)], {Meter.WAKES: 1})
    service.now = 160.0
    taken(service, service.other, FETCH, 3)
    assert service.held == service.numbers()
    assert service.counted == {Meter.HANDED_OUT: len(service.numbers()), Meter.DISPLACED: len(held)}
    depth = len(service.numbers())
    assert service.told == [("expired", n, depth, 0.0) for n in held] + [
        ("leased", n, depth, 0.0) for n in service.numbers()
    ]
    assert len(service.one.holds) == 0
    service.decide(lambda turn: queues.finish(turn, service.one, 1))
    assert service.turn.view.changes == [], "it is in other hands now"


def test_a_connection_skips_what_it_holds_itself() -> None:
    service = InMemory(DsRules(hold_s=60)).have(QUEUE, entry(0), entry(1))
    taken(service, service.one, replace(LEASE, max_payloads=1, lease_ms=60_000), 1)
    taken(service, service.one, FETCH, 2)
    assert service.answered(service.one, 2, is_held=True) == Payloads((b"1",))
    service.now = 159.0
    taken(service, service.one, FETCH, 3)
    assert service.answered(service.one, 3) == Payloads(())
    service.now = 160.0
    taken(service, service.one, FETCH, 4)
    assert service.answered(service.one, 4, is_held=True) == Payloads((b"0",)), "a lease that is over"
    assert service.counted[Meter.DISPLACED] == 1
    taken(service, service.one, FETCH, 5)
    assert service.answered(service.one, 5) == Payloads(()), "a fetch that is not finished"


# --- what ends a hold or a wait


def test_what_is_canceled_or_cut_off_is_put_back_in_its_place() -> None:
    service = InMemory(own=OWN).have(QUEUE, entry(0), entry(1))
    taken(service, service.one)
    taken(service, service.other, WAIT, 2)
    service.decide(lambda turn: queues.cancel(turn, service.one, 7))
    assert (service.counted, service.turn.answers) == ({}, [])
    service.decide(lambda turn: queues.cancel(turn, service.one, 1))
    assert (service.held, service.numbers(), service.turn.answers) == ([], [0, 1], [])
    assert service.counted == {Meter.PUT_BACK: 2}
    assert service.told == [("put_back", 0, 2, 0.0), ("put_back", 1, 2, 0.0)]
    assert service.turn.to_wake == [(QUEUE, 0.0)]
    service.decide(lambda turn: queues.cancel(turn, service.other, 2))
    assert service.answered(service.other, 2) is None
    assert service.counted == {Meter.WAITS_CANCELED: 1}
    assert len(service.state.waiting) == len(service.state.waiters) == len(service.other.waits) == 0
    taken(service, service.one, replace(LEASE, max_payloads=1), 1)
    taken(service, service.one, replace(LEASE, max_payloads=1), 2)
    for question in (3, 4):
        taken(service, service.one, WAIT, question)
    acked(service, entry(0).id)
    service.decide(lambda turn: queues.disconnect(turn, service.one))
    assert service.counted == {Meter.WAITS_CANCELED: 2, Meter.PUT_BACK: 1}
    assert service.told == [("put_back", 1, 1, 0.0)]
    assert (service.held, len(service.one.holds), len(service.state.waiting)) == ([], 0, 0)
    assert service.turn.answers == []


def test_what_arrives_wakes_those_who_wait_the_oldest_first() -> None:
    service = InMemory(own=OWN).have(QUEUE)
    taken(service, service.one, replace(LEASE, max_payloads=2), 1)
    taken(service, service.other, WAIT, 2)
    taken(service, service.one, WAIT, 3)
    enqueued(service, b"new", service.other)
    assert service.turn.to_wake == [(QUEUE, 0.0)]
    service.have(QUEUE, *(entry(n) for n in range(4)))
    service.now = 102.0
    assert service.decide(lambda turn: queues.wake(turn, QUEUE)) is True
    first, second = service.turn.answers
    assert (first.peer, first.question, first.is_held) == (service.one, 1, True)
    assert first.outcome == Deliveries(tuple(Delivery(entry(n).id, b"%d" % n) for n in (0, 1)))
    assert (second.peer, second.question, second.outcome) == (service.one, 3, Payloads((b"2", b"3")))
    assert service.counted == {Meter.WAKES: 3, Meter.HANDED_OUT: 4}
    assert service.meters.wait_s.count == 2
    assert service.meters.wait_s.total == 4.0
    assert service.told == [
        ("woken", None, 4, 2.0),
        *(("leased", n, 4, 0.0) for n in (0, 1)),
        ("woken", None, 4, 2.0),
        *(("leased", n, 4, 0.0) for n in (2, 3)),
    ]
    assert service.turn.to_wake == [(QUEUE, 60.0)], "when the first lease may be taken away"
    assert wait_of(service).question == 2
    assert service.state.waiters.get(QUEUE) == (wait_of(service),)
    service.decide(lambda turn: queues.disconnect(turn, service.one))
    acked(service, *(entry(n).id for n in range(4)))
    assert service.decide(lambda turn: queues.wake(turn, QUEUE)) is True
    assert (service.counted, service.turn.to_wake) == ({Meter.WAKES: 1}, []), "there is nothing"
    assert service.decide(lambda turn: queues.wake(turn, b"another")) is True
    assert service.counted == {}


@pytest.mark.parametrize("request_", [WAIT, LEASE])
@pytest.mark.parametrize("found", [True, False])
def test_a_wait_that_is_over_gets_what_is_there(request_: FetchWait | Lease, found: bool) -> None:
    service = InMemory(own=OWN).have(QUEUE)
    taken(service, service.one, request_, 3)
    wait = wait_of(service)
    if found:
        service.have(QUEUE, entry(0))
    service.now = 105.0
    assert service.decide(lambda turn: queues.wait_over(turn, wait)) is True
    answer = service.answered(service.one, 3, is_held=found)
    given = (Delivery(entry(0).id, b"0"),) if found else ()
    is_lease = isinstance(request_, Lease)
    assert answer == (Deliveries(given) if is_lease else Payloads(tuple(one.payload for one in given)))
    handed = {Meter.HANDED_OUT: 1} if found else {}
    assert service.counted == {Meter.WAITS_EXPIRED: 1, **handed}
    assert service.told[0] == ("timed_out", None, int(found), 5.0)
    assert len(service.state.waiting) == 0
    assert service.decide(lambda turn: queues.wait_over(turn, wait)) is True
    assert (service.turn.answers, service.counted) == ([], {}), "it was over before"
    again = replace(wait, started=105.0)
    service.decide(lambda turn: turn.begin_wait(again))
    assert service.decide(lambda turn: queues.wait_over(turn, wait)) is True
    assert wait_of(service) is again, "another call with the same number"


def test_what_is_not_loaded_is_decided_in_another_turn() -> None:
    service = InMemory().have(QUEUE).have(PACKAGES)
    taken(service, service.other, WAIT, 2)
    wait = wait_of(service)
    service.have(QUEUE, entry(0, loaded=False))
    call = FetchKeyPackage(ALICE, AUTH)
    for cut, there in ((False, (entry(0, loaded=False),)), (True, ())):
        service.have(QUEUE, *there).have(PACKAGES, *there)
        service.cut = {QUEUE, PACKAGES} if cut else set()
        assert taken(service, service.one) is False
        assert service.decide(lambda turn: queues.wake(turn, QUEUE)) is False
        assert service.decide(lambda turn: queues.wait_over(turn, wait)) is False
        assert service.decide(lambda turn: queues.fetch_package(turn, service.one, 1, call)) is False
        assert service.turn.answers == []
        assert len(service.state.waiting) == 1
    service.have(QUEUE, entry(0), entry(1, loaded=False))
    assert taken(service, service.one) is True
    assert service.held == [0]
    service.other.is_gone = True
    service.have(QUEUE, entry(0), entry(1))
    assert taken(service, service.other, FETCH, 8) is True
    assert (service.turn.answers, service.held) == ([], [0])


def test_an_answer_that_is_full_is_complete_although_more_is_not_loaded() -> None:
    service = InMemory(DsRules(response_payloads=1)).have(QUEUE, entry(0), entry(1, loaded=False))
    found = service.decide(lambda turn: queues.available(turn, service.one, QUEUE, 1))
    assert found == queues.Available((entry(0),))
    more = service.decide(lambda turn: queues.available(turn, service.one, QUEUE, 2))
    assert more == queues.Available((entry(0),), is_complete=False)


# --- key packages


def test_key_packages_are_given_to_one_caller_each_the_oldest_first() -> None:
    service = InMemory(DsRules(key_packages=2), own=OWN).have(PACKAGES)
    for number in range(3):
        call = UploadKeyPackage(ALICE, b"package %d" % number, AUTH)
        service.decide(lambda turn: queues.upload_package(turn, service.one, number, call))  # noqa: B023
        answer = service.answered(service.one, number)
        if number < 2:
            assert answer == Fingerprint(hashlib.sha256(b"package %d" % number).digest())
            assert service.counted == {Meter.KEY_PACKAGES_UPLOADED: 1}
    assert answer == TOO_MANY_PACKAGES
    assert service.counted == {Meter.REFUSED_FULL: 1}
    assert [len(one.tag) for one in service.queues[PACKAGES]] == [8, 8]
    fetch = FetchKeyPackage(ALICE, AUTH)
    for package in (b"package 0", b"package 1", b""):
        assert service.decide(lambda turn: queues.fetch_package(turn, service.other, 4, fetch)) is True
        assert service.answered(service.other, 4) == KeyPackage(package)
        assert service.counted == ({Meter.KEY_PACKAGES_FETCHED: 1} if package else {})
    assert service.numbers(PACKAGES) == []
    assert service.told == []


# --- what a turn loads of a queue


def offered(head: Head, *sizes: int) -> list[int]:
    for number, size in enumerate(sizes):
        head.offer(Entry(number, b"t" * 8, size))
    return head.wanted


BIG = LARGE_BYTES + 1


@pytest.mark.parametrize(
    ("sizes", "held", "limits", "wanted", "size", "is_cut"),
    [
        ((1, 1, 1), (), (2, 9, 9), [0, 1], 2, True),
        ((1, 1), (), (2, 9, 9), [0, 1], 2, False),
        ((1, 1, 1), (0,), (2, 9, 9), [1, 2], 2, False),
        ((3, 3, 3), (), (9, 6, 99), [0, 1], 6, True),
        ((3, 3, 3), (), (9, 9, 99), [0, 1, 2], 9, False),
        ((9, 1), (), (9, 5, 99), [0], 9, True),
        ((3, 3, 3), (), (9, 99, 8), [0, 1], 6, True),
        ((3, 3), (), (9, 99, 6), [0, 1], 6, False),
        ((9,), (), (9, 99, 8), [], 0, True),
        ((BIG, 1, 1), (), (9, 2 * BIG, 2), [1, 2], 2, False),
        ((BIG, 1, 1), (), (2, 2 * BIG, 2), [1], 1, True),
        ((BIG, 1, 1), (), (9, BIG + 1, 2), [1], 1, True),
        ((0,), (), (0, 9, 9), [], 0, True),
    ],
)
def test_the_head_of_a_queue_is_as_much_as_one_answer_and_one_turn_take(
    sizes: tuple[int, ...],
    held: tuple[int, ...],
    limits: tuple[int, int, int],
    wanted: list[int],
    size: int,
    is_cut: bool,
) -> None:
    """Limits: payloads and bytes of an answer, bytes of a turn."""
    head = Head(QUEUE, reach(held), *limits)
    assert offered(head, *sizes) == wanted
    assert (head.size, head.is_cut, head.is_scanned) == (size, is_cut, is_cut)
    view = View(Undo())
    head.fill(view, dict.fromkeys(wanted, b"p"), is_all=True)
    assert view.is_cut(QUEUE) is is_cut
    loaded = {one.number: one.payload for one in view.head(QUEUE)}
    assert {number for number, payload in loaded.items() if payload} == set(wanted)
    assert set(held) <= set(loaded)
    view.add(QUEUE, b"t" * 8, b"new")
    assert (b"new" in [one.payload for one in view.head(QUEUE)]) is not is_cut


def test_a_head_that_is_not_the_whole_queue_hides_what_is_added() -> None:
    head = Head(QUEUE, reach(), 9, 9, 9)
    offered(head, 1)
    view = View(Undo())
    head.fill(view, {0: b"p"}, is_all=False)
    view.add(QUEUE, b"t" * 8, b"new")
    assert [one.payload for one in view.head(QUEUE)] == [b"p"]


@pytest.mark.parametrize("held", [SCAN_MAX - 1, SCAN_MAX])
def test_only_so_many_entries_are_looked_at(held: int) -> None:
    head = Head(QUEUE, reach(range(held)), 9, 9, 9)
    offered(head, *([1] * (held + 1)))
    assert head.wanted == ([held] if held < SCAN_MAX else [])
    assert head.is_scanned
    assert not head.is_cut


def test_what_a_new_authority_refuses_stops_waiting_and_is_put_back() -> None:
    good, gone, other = Auth(1, b"good"), Auth(1, b"gone"), Auth(1, b"of another")
    service = InMemory(own=OWN).have(QUEUE, entry(0), entry(1), entry(2))
    taken(service, service.one, replace(LEASE, auth=gone, max_payloads=2), 1)
    taken(service, service.one, replace(LEASE, auth=good, max_payloads=1), 2)
    channel = replace(WAIT, channel_id=b"c")
    for question, auth in enumerate((good, gone, other), start=3):
        taken(service, service.other, replace(channel, auth=auth), question)
    taken(service, service.other, replace(WAIT, auth=good), 6)

    service.callers = {good: Caller(ALICE), gone: None, other: Caller(BOB)}
    service.decide(queues.recheck)
    assert all(one.peer is service.other for one in service.turn.answers)
    answered = {one.question: one.outcome for one in service.turn.answers}
    assert answered == {4: UNAUTHENTICATED, 5: NOT_OWNER}
    assert service.counted == {
        Meter.WAITS_CANCELED: 2,
        Meter.REFUSED_AUTH: 1,
        Meter.REFUSED: 1,
        Meter.PUT_BACK: 2,
    }
    assert service.held == [2]
    assert service.told == [("put_back", 0, 3, 0.0), ("put_back", 1, 3, 0.0)]
    assert service.turn.to_wake == [(QUEUE, 0.0)]
    assert sorted(question for _, question in service.state.waiting) == [3, 6]
    service.decide(lambda turn: queues.finish(turn, service.one, 1))
    assert service.numbers() == [0, 1, 2]


def test_nothing_is_looked_at_behind_what_keeps_everybody_off() -> None:
    head = Head(QUEUE, reach([0], others=[2]), 9, 9, 9)
    assert offered(head, 1, 1, 1) == [1]
    assert not head.is_cut, "there is no more"
    head.offer(Entry(3, b"t" * 8, 1))
    assert head.is_cut
    view = View(Undo())
    head.fill(view, {1: b"p"}, is_all=True)
    assert [(one.number, one.payload) for one in view.head(QUEUE)] == [(0, None), (1, b"p"), (2, None)]


def test_what_happens_in_queues_of_others_is_not_reported() -> None:
    service = InMemory(own=(BOB,)).have(QUEUE)
    taken(service, service.one, WAIT)
    assert service.counted == {Meter.WAITS: 1}
    assert service.told == []


def test_a_view_without_rows_and_with_rows_that_are_loaded_twice() -> None:
    view = View(Undo())
    assert (view.totals, view.ends(QUEUE), *view.head(QUEUE)) == ((0, 0), Ends())
    view.fill_head(QUEUE, [entry(0)], cut=False)
    for number in (0, 1):
        view.fill_entry(QUEUE, entry(number, loaded=False))
    assert view.entry(QUEUE, 0) == entry(0), "the payload stays"
    assert view.entry(QUEUE, 1) == entry(1, loaded=False)
    assert view.entry(QUEUE, 2) is None
    wanted = Wanted()
    for payloads in (0, 3, 2):
        wanted.head(QUEUE, payloads)
        assert wanted.heads == {QUEUE: min(payloads * 3, 3)}
    one, other = Peer(1, Undo()), Peer(2, Undo())
    wanted.head(QUEUE, 3, one)
    wanted.head(QUEUE, 3, other, one)
    assert wanted == Wanted(queues={QUEUE}, heads={QUEUE: 3}, askers={QUEUE: {one, other}})


def test_another_channel_is_another_queue() -> None:
    service = InMemory(own=OWN).have(QUEUE, entry(0)).have(delivery_queue(ALICE, b"c"), entry(5))
    taken(service, service.one, replace(FETCH, channel_id=b"c"))
    assert service.answered(service.one, 1, is_held=True) == Payloads((b"5",))
    taken(service, service.one, replace(FETCH, channel_id=b"c", version=0), 2)
    assert service.answered(service.one, 2, is_held=True) == Payloads((b"0",)), "version 0 has no channels"
