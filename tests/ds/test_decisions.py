"""Decisions by hand: what a turn can decide from what it has loaded, and what is rolled back."""

from __future__ import annotations

import pytest

from blindpost.ds import queues
from blindpost.ds.heads import SCAN_MAX, Head
from blindpost.ds.meters import DsMeters, Meter
from blindpost.ds.model import DsRules, Ends, Entry, delivery_queue, named, number_and_tag, package_queue
from blindpost.ds.state import DsState, Peer, Wait
from blindpost.ds.turn import Turn
from blindpost.ds.view import View
from blindpost.engine.undo import Undo
from blindpost.serving.stored import Stored
from blindpost.wire.capnp.node import Auth, Enqueue, Fetch, FetchKeyPackage, FetchWait, Payloads
from tests.support.ds.delivery import ALICE

QUEUE = delivery_queue(ALICE, b"")
FETCH = Fetch(ALICE, b"", 1, Auth())
WAIT = FetchWait(ALICE, b"", 1, 1000, Auth())


class Desk:
    """One state, and a turn after another."""

    def __init__(self, rules: DsRules | None = None) -> None:
        self.undo = Undo()
        self.state = DsState(self.undo)
        self.rules = rules or DsRules()
        self.meters = DsMeters()
        self.stored = Stored(self.rules.total_bytes, self.undo)
        self.one, self.other = Peer(1, self.undo), Peer(2, self.undo)

    def turn(self, *entries: Entry, cut: bool = False, now: float = 100.0) -> Turn:
        self.undo.forget()
        turn = Turn(
            self.undo, self.state, self.rules, self.meters, lambda size: b"t" * size, now, self.stored
        )
        size = sum(entry.size for entry in entries)
        turn.view.fill_ends(QUEUE, Ends(len(entries), len(entries), size))
        turn.view.fill_head(QUEUE, entries, cut=cut, whole=not cut)
        turn.view.fill_totals(len(entries), size)
        return turn


def entry(number: int, *, loaded: bool = True) -> Entry:
    return Entry(number, b"t" * 8, 1, b"%d" % number if loaded else None)


def test_a_decision_about_unloaded_data_is_deferred() -> None:
    desk = Desk()
    for turn in (desk.turn(cut=True), desk.turn(entry(0, loaded=False))):
        assert queues.take(turn, desk.one, 1, FETCH) is False
        assert not turn.answers
    wait = Wait(desk.one, 2, WAIT, QUEUE, 100.0, 101.0)
    desk.state.add_wait(wait)
    for turn in (desk.turn(cut=True), desk.turn(entry(0, loaded=False))):
        assert queues.wake(turn, QUEUE) is False
        assert queues.wait_over(turn, wait) is False
        assert not turn.answers
        assert len(desk.state.waiting) == 1
    packages = desk.turn()
    packages.view.fill_head(package_queue(ALICE), (), cut=True)
    assert queues.fetch_package(packages, desk.one, 3, FetchKeyPackage(ALICE, Auth())) is False


def test_loaded_payloads_are_delivered_although_there_are_more() -> None:
    desk = Desk()
    turn = desk.turn(entry(0), entry(1, loaded=False), cut=True)
    assert queues.take(turn, desk.one, 1, FETCH) is True
    assert turn.answers[0].outcome == Payloads((b"0",))


def test_nothing_is_handed_to_a_caller_that_left() -> None:
    """A call deferred to another turn may be decided after its connection has ended."""
    desk = Desk()
    desk.one.is_gone = True
    turn = desk.turn(entry(0))
    assert queues.take(turn, desk.one, 1, FETCH) is True
    assert queues.take(desk.turn(), desk.one, 2, WAIT) is True
    assert len(desk.state.held) == len(desk.state.waiting) == 0


def test_commands_of_one_batch_see_each_other() -> None:
    desk = Desk()
    turn = desk.turn(entry(0))
    queues.enqueue(turn, desk.other, 1, Enqueue(ALICE, b"1", b"", 1, Auth()))
    queues.take(turn, desk.one, 1, FETCH)
    assert turn.answers[-1].outcome == Payloads((b"0", b"1"))
    queues.take(turn, desk.other, 2, FETCH)
    assert turn.answers[-1].outcome == Payloads(())


def test_an_enqueue_does_not_overtake_what_was_not_loaded() -> None:
    desk = Desk()
    turn = desk.turn(entry(0), cut=True)
    queues.enqueue(turn, desk.other, 1, Enqueue(ALICE, b"late", b"", 1, Auth()))
    queues.take(turn, desk.one, 1, FETCH)
    assert turn.answers[-1].outcome == Payloads((b"0",))


def test_a_failed_turn_leaves_nothing_behind() -> None:
    desk = Desk()
    turn = desk.turn(entry(0))
    queues.take(turn, desk.one, 1, FETCH)
    queues.take(turn, desk.other, 2, WAIT)
    queues.enqueue(turn, desk.other, 3, Enqueue(ALICE, b"1", b"", 1, Auth()))
    desk.undo.rollback()
    assert not turn.answers
    assert not turn.begun
    assert not turn.to_wake
    assert not turn.view.changes
    tables = (desk.state.held, desk.state.waiters, desk.state.waiting, desk.one.holds, desk.other.waits)
    assert [len(table) for table in tables] == [0] * 5
    assert set(desk.meters.values().values()) == {0}


def test_an_overdue_fetch_is_skipped_by_its_own_connection_only() -> None:
    desk = Desk(DsRules(hold_s=10))
    queues.take(desk.turn(entry(0)), desk.one, 1, FETCH)
    own = desk.turn(entry(0), entry(1), now=200.0)
    queues.take(own, desk.one, 2, FETCH)
    assert own.answers[-1].outcome == Payloads((b"1",))
    others = desk.turn(entry(0), now=200.0)
    queues.take(others, desk.other, 1, FETCH)
    assert others.answers[-1].outcome == Payloads((b"0",))
    late = desk.turn(entry(0), now=200.0)
    queues.finish(late, desk.one, 1)
    assert not late.view.changes, "it is in other hands now"
    assert desk.meters[Meter.DISPLACED] == 1


@pytest.mark.parametrize("held", [0, SCAN_MAX])
def test_more_in_hand_than_a_turn_looks_at_hides_the_rest(held: int) -> None:
    head = Head(QUEUE, 2, 100, 100)
    for number in range(held + 1):
        head.offer(entry(number, loaded=False), is_held=number < held)
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
    assert number_and_tag(entry(7).id) == (7, b"t" * 8)
    assert number_and_tag(b"short") is None
