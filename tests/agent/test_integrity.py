"""The five outcomes at their boundaries, and how they are stored."""

from __future__ import annotations

import pytest

from blindpost.agent import Integrity, MsgBadHash, MsgBadId, MsgDuplicate, MsgOk, MsgSkipped
from blindpost.agent.messages.integrity import (
    AWAITED_MAX,
    Awaited,
    Placed,
    check_integrity,
    dump_integrity,
    load_integrity,
    placed,
)
from blindpost.wire.errors import WireError

LAST, OTHER = b"\1" * 32, b"\2" * 32


@pytest.mark.parametrize(
    ("msg_id", "prev_hash", "outcome"),
    [
        (8, LAST, MsgOk()),
        (8, OTHER, MsgBadHash()),
        (7, LAST, MsgDuplicate()),
        (7, OTHER, MsgDuplicate()),
        (6, LAST, MsgBadId(6)),
        (1, LAST, MsgBadId(1)),
        (9, LAST, MsgSkipped(8, 8)),
        (12, OTHER, MsgSkipped(8, 11)),
    ],
)
def test_outcome_of_each_successor(msg_id: int, prev_hash: bytes, outcome: Integrity) -> None:
    assert check_integrity(7, LAST, msg_id, prev_hash) == outcome


@pytest.mark.parametrize(
    "outcome", [MsgOk(), MsgBadId(3), MsgDuplicate(), MsgSkipped(4, 2**40), MsgBadHash()], ids=repr
)
def test_stored_outcomes_read_back(outcome: Integrity) -> None:
    stored = dump_integrity(outcome)
    assert load_integrity(stored) == outcome
    for damaged in (b"", b"?" + stored[1:], stored + b"\0", stored[:-1]):
        with pytest.raises(WireError):
            load_integrity(damaged)


def test_what_is_awaited_closes_a_gap_in_its_order() -> None:
    awaited = Awaited(5, 7, LAST)
    first = placed(9, b"9", awaited, 5, LAST, OTHER, two_queues=True)
    assert first == Placed(MsgOk(), False, Awaited(6, 7, OTHER))
    assert placed(9, b"9", first.awaited, 7, b"6", b"7", two_queues=True) == Placed(
        MsgSkipped(6, 6), False, None
    )
    assert placed(9, b"9", awaited, 5, OTHER, b"5", two_queues=True).integrity == MsgBadHash()


@pytest.mark.parametrize(("size", "is_awaited"), [(AWAITED_MAX, True), (AWAITED_MAX + 1, False)])
def test_so_many_numbers_are_awaited_and_no_more(size: int, is_awaited: bool) -> None:
    first, last = 1000, 999 + size
    found = placed(999, LAST, None, last + 1, OTHER, b"new", two_queues=True)
    gap = Placed(MsgSkipped(first, last), True, None)
    assert found == (Placed(MsgOk(), True, Awaited(first, last, LAST)) if is_awaited else gap)


def test_before_the_first_message_of_a_new_ratchet_nothing_is_awaited() -> None:
    """The peer's key has a number too, and nobody is told which."""
    found = placed(4, LAST, None, 6, OTHER, b"6", two_queues=True, new_ratchet=True)
    assert found == Placed(MsgSkipped(5, 5), True, None)
    awaited = Awaited(2, 3, LAST)
    found = placed(4, LAST, awaited, 6, OTHER, b"6", two_queues=True, new_ratchet=True)
    assert found == Placed(MsgSkipped(5, 5), True, awaited)
