"""Decisions by hand: what a turn can decide from what it has loaded, and what is rolled back."""

from __future__ import annotations

from typing import Any

import pytest

from blindpost.ds import queues, view
from blindpost.ds.heads import SCAN_MAX, Head
from blindpost.ds.meters import Meter
from blindpost.ds.model import (
    LARGE_BYTES,
    DsRules,
    Entry,
    delivery_queue,
    named,
    number_and_tag,
    package_queue,
)
from blindpost.ds.state import Peer, Reach, Wait
from blindpost.ds.turn import Turn
from blindpost.ds.view import View
from blindpost.engine.undo import Table, Undo
from blindpost.wire.capnp.node import (
    Ack,
    Auth,
    Enqueue,
    Fetch,
    FetchKeyPackage,
    FetchWait,
    KeyPackage,
    Lease,
    Payloads,
    UploadKeyPackage,
)
from tests.support.ds.delivery import ALICE
from tests.support.ds.in_memory import PACKAGES, QUEUE, InMemory, entry, reach

FETCH = Fetch(ALICE, b"", 1, Auth())
WAIT = FetchWait(ALICE, b"", 1, 1000, Auth())
LEASE = Lease(ALICE, b"", 1, 0, 0, 0, Auth())


def enqueued(payload: bytes) -> Enqueue:
    return Enqueue(ALICE, payload, b"", 1, Auth())


UNLOADED = pytest.mark.parametrize(
    ("entries", "cut"), [((), {QUEUE}), ((entry(0, loaded=False),), set())], ids=["more", "its payload"]
)


@UNLOADED
def test_a_decision_about_unloaded_data_is_deferred(entries: tuple[Entry, ...], cut: set[bytes]) -> None:
    desk = InMemory().have(QUEUE, *entries)
    desk.cut = cut
    assert desk.decide(lambda turn: queues.take(turn, desk.one, 1, FETCH)) is False
    assert not desk.turn.answers
    wait = Wait(desk.one, 2, WAIT, QUEUE, 100.0, 101.0)
    desk.state.add_wait(wait)
    desk.undo.forget()
    assert desk.decide(lambda turn: queues.wake(turn, QUEUE)) is False
    assert desk.decide(lambda turn: queues.wait_over(turn, wait)) is False
    assert (desk.turn.answers, len(desk.state.waiting)) == ([], 1)


def test_a_package_that_is_not_loaded_is_deferred() -> None:
    desk = InMemory().have(PACKAGES)
    desk.cut = {PACKAGES}
    package = FetchKeyPackage(ALICE, Auth())
    assert desk.decide(lambda turn: queues.fetch_package(turn, desk.one, 3, package)) is False


def test_loaded_payloads_are_delivered_although_there_are_more() -> None:
    desk = InMemory().have(QUEUE, entry(0), entry(1, loaded=False))
    desk.cut = {QUEUE}
    assert desk.decide(lambda turn: queues.take(turn, desk.one, 1, FETCH)) is True
    assert desk.turn.answers[0].outcome == Payloads((b"0",))


def test_nothing_is_handed_to_a_caller_that_left() -> None:
    """A call deferred to another turn may be decided after its connection has ended."""
    desk = InMemory().have(QUEUE, entry(0))
    desk.one.is_gone = True
    assert desk.decide(lambda turn: queues.take(turn, desk.one, 1, FETCH)) is True
    desk.have(QUEUE)
    assert desk.decide(lambda turn: queues.take(turn, desk.one, 2, WAIT)) is True
    assert len(desk.state.held) == len(desk.state.waiting) == 0


def test_commands_of_one_batch_see_each_other() -> None:
    desk = InMemory().have(QUEUE, entry(0))

    def batch(turn: Turn) -> None:
        queues.enqueue(turn, desk.other, 1, enqueued(b"1"))
        queues.take(turn, desk.one, 1, FETCH)
        queues.take(turn, desk.other, 2, FETCH)

    desk.decide(batch)
    assert [one.outcome for one in desk.turn.answers][1:] == [Payloads((b"0", b"1")), Payloads(())]


def test_an_enqueue_does_not_overtake_what_was_not_loaded() -> None:
    desk = InMemory().have(QUEUE, entry(0))
    desk.cut = {QUEUE}

    def batch(turn: Turn) -> None:
        queues.enqueue(turn, desk.other, 1, enqueued(b"late"))
        queues.take(turn, desk.one, 1, FETCH)

    desk.decide(batch)
    assert desk.turn.answers[-1].outcome == Payloads((b"0",))


@pytest.mark.parametrize("ended", ["ack", "finish"])
def test_a_payload_deleted_in_a_turn_does_not_come_back_with_the_next_one(ended: str) -> None:
    """The queue is empty in between: what comes next must not pass for what was there."""
    desk = InMemory().have(QUEUE, entry(0, LARGE_BYTES + 1))
    desk.decide(lambda turn: queues.take(turn, desk.one, 1, FETCH))

    def batch(turn: Turn) -> None:
        if ended == "ack":
            queues.acknowledge(turn, desk.one, 2, Ack(ALICE, b"", 1, (entry(0).id,), Auth()))
        else:
            queues.finish(turn, desk.one, 1)
        queues.enqueue(turn, desk.other, 3, enqueued(b"new"))
        queues.take(turn, desk.one, 4, FETCH)

    desk.decide(batch)
    assert desk.turn.answers[-1].outcome == Payloads((b"new",))
    desk.decide(lambda turn: queues.finish(turn, desk.one, 4))
    assert desk.numbers() == []
    desk.decide(lambda turn: queues.enqueue(turn, desk.other, 5, enqueued(b"later")))
    assert desk.numbers() == [0], "an empty queue leaves nothing behind"


def test_a_package_taken_in_a_turn_is_not_taken_again_after_an_upload() -> None:
    desk = InMemory().have(PACKAGES, entry(0))

    def batch(turn: Turn) -> None:
        queues.fetch_package(turn, desk.one, 1, FetchKeyPackage(ALICE, Auth()))
        queues.upload_package(turn, desk.one, 2, UploadKeyPackage(ALICE, b"new", Auth()))
        for question in (3, 4):
            queues.fetch_package(turn, desk.one, question, FetchKeyPackage(ALICE, Auth()))

    desk.decide(batch)
    found = [one.outcome for one in desk.turn.answers if isinstance(one.outcome, KeyPackage)]
    assert found == [KeyPackage(b"0"), KeyPackage(b"new"), KeyPackage(b"")]


def test_a_failed_turn_leaves_nothing_behind() -> None:
    """The desk rolls every decision back once and looks for traces; this one has an effect on everything."""
    desk = InMemory().have(QUEUE, entry(0))

    def batch(turn: Turn) -> None:
        queues.take(turn, desk.one, 1, FETCH)
        queues.take(turn, desk.other, 2, WAIT)
        queues.enqueue(turn, desk.other, 3, enqueued(b"1"))

    desk.decide(batch)
    turn, state = desk.turn, desk.state
    assert turn.answers
    assert turn.begun
    assert turn.to_wake
    assert turn.view.changes
    tables = (state.held, state.waiters, state.waiting, desk.one.holds, desk.other.waits)
    assert [len(table) for table in tables] == [1] * 5
    assert desk.counted


def test_an_overdue_fetch_is_skipped_by_its_own_connection_only() -> None:
    desk = InMemory(DsRules(hold_s=10)).have(QUEUE, entry(0))
    desk.decide(lambda turn: queues.take(turn, desk.one, 1, FETCH))
    desk.have(QUEUE, entry(0), entry(1))
    desk.now = 200.0
    desk.decide(lambda turn: queues.take(turn, desk.one, 2, FETCH))
    assert desk.turn.answers[-1].outcome == Payloads((b"1",))
    desk.decide(lambda turn: queues.take(turn, desk.other, 1, FETCH))
    assert desk.turn.answers[-1].outcome == Payloads((b"0",))
    assert desk.counted[Meter.DISPLACED] == 1
    desk.decide(lambda turn: queues.finish(turn, desk.one, 1))
    assert not desk.turn.view.changes, "it is in other hands now"


@pytest.mark.parametrize(
    ("askers", "holds", "found"),
    [
        ("", [None], [False]),
        ("1", [None, None], [True, True]),
        ("1", ["1 fetched", "1 fetched, over", None], [False, False, True]),
        ("1", ["1 leased", "1 leased, over", None], [False, True, True]),
        ("1", ["2 fetched, over", "2 leased, over"], [True, True]),
        ("1", [None, "2 fetched", None, "1 leased, over"], [True, False, False, False]),
        ("12", ["1 fetched, over", "2 fetched, over"], [True, True]),
        ("12", ["1 fetched", "1 fetched, over", "2 fetched, over", None], [False, False, True, True]),
        ("12", ["1 leased", "2 leased", None, "2 leased, over"], [False, False, False, False]),
    ],
)
def test_what_those_who_ask_may_take(askers: str, holds: list[str | None], found: list[bool]) -> None:
    """Nobody comes past what another connection holds; what a connection holds itself it does not get."""
    desk = InMemory()
    peers = {"1": desk.one, "2": desk.other}
    for number, hold in enumerate(holds):
        if hold is not None:
            until = desk.now if "over" in hold else desk.now + 1
            request = LEASE if "leased" in hold else FETCH
            desk.state.hold(peers[hold[0]], number, QUEUE, [entry(number)], until, request)
    come = Reach(desk.state, QUEUE, {peers[asker] for asker in askers}, desk.now)
    assert [come.may_take(number) for number in range(len(holds))] == found
    assert come.is_over is not found[-1]


def test_a_waiting_call_that_must_look_further_does_not_keep_others_from_what_is_there() -> None:
    desk = InMemory(DsRules(hold_s=10)).have(QUEUE, entry(0))
    desk.cut = {QUEUE}
    desk.decide(lambda turn: queues.take(turn, desk.one, 1, FETCH))
    for peer in (desk.one, desk.other):
        desk.state.add_wait(Wait(peer, 2, WAIT, QUEUE, 100.0, 999.0))
    desk.undo.forget()
    desk.now = 200.0
    assert desk.decide(lambda turn: queues.wake(turn, QUEUE)) is False
    assert [(one.peer, one.outcome) for one in desk.turn.answers] == [(desk.other, Payloads((b"0",)))]


class Counting(Table[Any, Any]):
    """Counts how often it is asked whether something is there."""

    asked = 0

    def __contains__(self, key: object) -> bool:
        Counting.asked += 1
        return super().__contains__(key)


def test_a_wake_looks_at_each_payload_a_few_times_however_many_calls_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payloads, waits = 1000, 50
    desk = InMemory().have(QUEUE, *map(entry, range(payloads)))
    desk.decide(lambda turn: queues.take(turn, desk.one, 1, FETCH))
    peers = [desk.one, desk.other, *(Peer(number, desk.undo) for number in range(3, 8))]
    for peer in peers:
        for question in range(waits):
            desk.state.add_wait(Wait(peer, question, WAIT, QUEUE, 100.0, 999.0))
    desk.undo.forget()
    monkeypatch.setattr(view, "Table", Counting)
    Counting.asked = 0
    assert desk.decide(lambda turn: queues.wake(turn, QUEUE)) is True
    assert desk.counted == {Meter.WAKES: waits * len(peers)}
    times = 2  # a desk decides everything twice
    assert Counting.asked == times * (payloads + len(peers) - 1), "only who holds them looks past them"
    assert [queue for queue, _ in desk.turn.to_wake] == [QUEUE] * (len(peers) - 1)


@pytest.mark.parametrize("held", [0, SCAN_MAX])
def test_more_in_hand_than_a_turn_looks_at_hides_the_rest(held: int) -> None:
    head = Head(QUEUE, reach(range(held)), 2, 100, 100)
    for number in range(held + 1):
        head.offer(entry(number, loaded=False))
    view = View(Undo())
    head.fill(view, {number: b"%d" % number for number in head.wanted}, is_all=True)
    assert head.wanted == ([0] if not held else [])
    assert not view.is_cut(QUEUE)
    view.add(QUEUE, b"t" * 8, b"new")
    assert [one.payload for one in view.head(QUEUE)][-1] == (b"new" if not held else None)


def test_names_and_ids() -> None:
    assert named(delivery_queue(ALICE, b"c" * 255)) == (ALICE, b"c" * 255)
    assert named(package_queue(ALICE)) is None
    assert not delivery_queue(ALICE, b"ab").startswith(delivery_queue(ALICE, b"a"))
    assert number_and_tag(entry(7).id) == (7, b"t      7")
    for wrong in (b"short", b"long" * 5, (2**63).to_bytes(8, "big") + b"t" * 8):
        assert number_and_tag(wrong) is None
    last = 2**63 - 1
    assert number_and_tag(last.to_bytes(8, "big") + b"t" * 8) == (last, b"t" * 8)
