"""What one identity may send, and take of the key packages of others, in an hour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blindpost.ds import quotas
from blindpost.ds.auth import Caller
from blindpost.ds.checks import Refusal
from blindpost.ds.model import DsRules
from blindpost.ds.quotas import TOO_MANY_TAKEN, TOO_MUCH_SENT, WINDOW_S, Quotas
from blindpost.engine.undo import Undo
from blindpost.serving.failures import OperatorError
from blindpost.wire.capnp.node import Auth, Enqueue, Fetch, FetchKeyPackage, Request
from tests.support.ds.delivery import ALICE, BOB
from tests.support.ntf.routers import Clock

CAROL = b"C" * 32


def send(size: int = 1) -> Enqueue:
    return Enqueue(BOB, b"p" * size, b"", 1, Auth())


def take(owner: bytes = BOB) -> FetchKeyPackage:
    return FetchKeyPackage(owner, Auth())


def asked(counts: Quotas, call: Request, caller: Caller | None, rules: DsRules) -> Refusal | None:
    """A call that does what it asks for, unless it is refused."""
    refused = counts.refusal(call, caller, rules)
    if refused is None:
        counts.count(call, caller, rules)
    return refused


@pytest.mark.parametrize(
    ("rules", "calls", "allowed"),
    [
        (DsRules(sender_payloads=2), [send(), send(), send()], 2),
        (DsRules(sender_bytes=5), [send(2), send(3), send(1)], 2),
        (DsRules(sender_bytes=5), [send(6)], 0),
        (DsRules(taken_packages=2), [take(BOB), take(CAROL), take(BOB)], 2),
        (DsRules(taken_packages_of_one=2), [take(), take(), take()], 2),
        (DsRules(taken_packages_of_one=1), [take(BOB), take(CAROL)], 2),
        (DsRules(taken_packages=0), [take(ALICE), take(ALICE)], 2),
        (DsRules(taken_packages=0, sender_payloads=0), [Fetch(BOB, b"", 1, Auth())], 1),
    ],
)
def test_an_identity_over_its_quota_is_refused_until_the_hour_is_over(
    rules: DsRules, calls: list[Request], allowed: int
) -> None:
    clock = Clock(1000.0)
    counts = Quotas(Undo(), clock)
    answers = [asked(counts, call, Caller(ALICE), rules) for call in calls]
    refused = TOO_MUCH_SENT if isinstance(calls[-1], Enqueue) else TOO_MANY_TAKEN
    assert answers == [None] * allowed + [refused] * (len(calls) - allowed)
    for nobody in (None, Caller()):
        assert asked(counts, calls[-1], nobody, rules) is None
    if 0 < allowed < len(calls):
        assert asked(counts, calls[-1], Caller(CAROL), rules) is None, "another identity"
        clock.now += WINDOW_S - 1
        assert asked(counts, calls[-1], Caller(ALICE), rules) is refused
        clock.now += 1
        assert asked(counts, calls[-1], Caller(ALICE), rules) is None


def test_a_refused_call_counts_nothing() -> None:
    counts, rules = Quotas(Undo(), Clock(1000.0)), DsRules(sender_payloads=2, sender_bytes=9)
    assert asked(counts, send(10), Caller(ALICE), rules) is TOO_MUCH_SENT
    assert asked(counts, send(9), Caller(ALICE), rules) is None
    assert asked(counts, send(1), Caller(ALICE), rules) is TOO_MUCH_SENT


def test_a_call_that_was_not_done_counts_nothing() -> None:
    clock, undo, rules = Clock(1000.0), Undo(), DsRules(sender_payloads=2)
    counts = Quotas(undo, clock)
    assert [counts.refusal(send(), Caller(ALICE), rules) for _ in range(3)] == [None] * 3, (
        "asking is not doing"
    )
    assert asked(counts, send(), Caller(ALICE), rules) is None
    undo.forget()
    before = dict(counts._counted)
    for _ in range(3):
        assert asked(counts, send(), Caller(ALICE), rules) is None
        assert asked(counts, take(), Caller(ALICE), rules) is None
        undo.rollback()
        assert counts._counted == before
    assert asked(counts, send(), Caller(ALICE), rules) is None
    assert asked(counts, send(), Caller(ALICE), rules) is TOO_MUCH_SENT


def test_a_clock_that_was_set_back_does_not_hold_a_count_for_ever() -> None:
    clock, rules = Clock(9000.0), DsRules(sender_payloads=1)
    counts = Quotas(Undo(), clock)
    assert asked(counts, send(), Caller(ALICE), rules) is None
    clock.now = 8999.0
    assert asked(counts, send(), Caller(ALICE), rules) is None
    assert asked(counts, send(), Caller(ALICE), rules) is TOO_MUCH_SENT


def test_counts_that_ran_out_are_swept_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "_SWEEP_AT", 4)
    clock, rules = Clock(1000.0), DsRules()
    counts = Quotas(Undo(), clock)

    def kept(number: int) -> int:
        """How many after a call of one more identity, which counts two things."""
        asked(counts, send(), Caller(b"%32d" % number), rules)
        return len(counts._counted)

    assert kept(1) == 2
    clock.now += WINDOW_S
    assert kept(2) == 2, "at four those that ran out go"
    clock.now += 1
    assert [kept(number) for number in (3, 4, 5)] == [4, 6, 8]
    for first in (6, 10):
        clock.now += WINDOW_S
        found = [kept(number) for number in range(first, first + 4)]
        assert found == [10, 12, 14, 8], "at twice as many as the last sweep left"


def test_counts_are_saved_when_they_changed_and_continued(tmp_path: Path) -> None:
    clock, rules, file = Clock(1000.0), DsRules(sender_payloads=1), tmp_path / "quotas"
    counts = Quotas(Undo(), clock)
    counts.load(file)
    counts.save(file)
    assert not file.exists(), "nothing was counted"
    asked(counts, send(), Caller(ALICE), rules)
    counts.save(file)
    assert len(json.loads(file.read_bytes())) == 2
    file.unlink()
    counts.save(file)
    assert not file.exists(), "nothing changed since"
    clock.now += WINDOW_S
    asked(counts, send(), Caller(BOB), rules)
    counts.save(file)
    assert len(json.loads(file.read_bytes())) == 2, "without those that ran out"
    later = Quotas(Undo(), clock)
    later.load(file)
    assert asked(later, send(), Caller(BOB), rules) is TOO_MUCH_SENT
    assert asked(later, send(), Caller(ALICE), rules) is None
    for damaged in (b"no json", b"[]", b'{"zz": [1, 2]}', b'{"00": 1}'):
        file.write_bytes(damaged)
        fresh = Quotas(Undo(), clock)
        fresh.load(file)
        assert not file.exists(), "it is set aside"
        assert asked(fresh, send(), Caller(BOB), rules) is None


def test_a_save_that_fails_is_tried_again(tmp_path: Path) -> None:
    counts = Quotas(Undo(), Clock(1000.0))
    asked(counts, send(), Caller(ALICE), DsRules())
    with pytest.raises(OperatorError, match="no such file"):
        counts.save(tmp_path / "missing" / "quotas")
    counts.save(tmp_path / "quotas")
    assert (tmp_path / "quotas").exists()
