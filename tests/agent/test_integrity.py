"""The five outcomes at their boundaries, and how they are stored."""

from __future__ import annotations

import pytest

from blindpost.agent import Integrity, MsgBadHash, MsgBadId, MsgDuplicate, MsgOk, MsgSkipped
from blindpost.agent.messages.integrity import check_integrity, dump_integrity, load_integrity
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
