"""A store that fills up: only the largest senders are refused."""

from __future__ import annotations

import pytest

from blindpost.engine.undo import Undo
from blindpost.serving import stored as stored_module
from blindpost.serving.stored import SHARE, Stored

LIMIT, SIZE = 1 << 24, 1 << 10


def four(number: int) -> bytes:
    return number.to_bytes(4, "big")


def fill(stored: Stored, account: object, queue: bytes, count: int = LIMIT // SIZE) -> int:
    """Add until refused or up to a count; return how often it succeeded."""
    for number in range(count):
        if not stored.allows(account, SIZE):
            return number
        stored.add(account, (queue, number), SIZE)
    return count


def test_nobody_is_counted_while_half_of_the_store_is_free() -> None:
    stored = Stored(LIMIT, Undo())
    assert fill(stored, four(1), b"a", LIMIT // SIZE // 2) == LIMIT // SIZE // 2
    assert stored.largest() == []


def test_many_large_senders_leave_room_for_a_small_one() -> None:
    stored = Stored(LIMIT, Undo())
    stored.look(LIMIT // 2 + 1)
    taken = [fill(stored, four(number), four(number)) for number in range(200)]
    assert taken[0] > taken[50] > taken[150] > 4, "the fuller, the less"
    assert fill(stored, four(0), b"more") == 0
    assert LIMIT - stored.total > LIMIT // 8
    assert fill(stored, b"bystander", b"b", 2) == 2
    assert stored.refused == 201
    assert stored.largest(1) == [taken[0] * SIZE]


def test_what_leaves_the_store_no_longer_counts() -> None:
    undo = Undo()
    stored = Stored(LIMIT, undo)
    stored.look(LIMIT // 2 + 1)
    count = fill(stored, four(1), b"a")
    undo.forget()
    for number in range(count):
        stored.remove((b"a", number), SIZE)
    undo.rollback()
    assert not stored.allows(four(1), SIZE), "the turn that removed it failed"
    for number in range(count):
        stored.remove((b"a", number), SIZE)
    assert (stored.total, stored.largest()) == (LIMIT // 2 + 1, [])
    assert stored.allows(four(1), SIZE)


def test_additions_of_a_failed_turn_are_rolled_back() -> None:
    undo = Undo()
    stored = Stored(LIMIT, undo)
    stored.look(LIMIT // 2 + 1)
    fill(stored, four(1), b"a", 3)
    undo.rollback()
    assert (stored.total, stored.largest()) == (LIMIT // 2 + 1, [])


def test_networks_of_one_customer_count_together() -> None:
    stored = Stored(LIMIT, Undo())
    stored.look(LIMIT // 2 + 1)
    of_one = [fill(stored, b"\x20\x01\x0d\xb8\x00\x01" + bytes([last]), bytes([last])) for last in range(9)]
    of_other = fill(stored, b"\x20\x01\x0d\xb8\x00\x02\x00", b"other")
    assert sum(of_one) < 2 * LIMIT // 2 // SHARE // SIZE
    assert of_other > of_one[-1]


def test_exempt_addresses_are_limited_only_by_the_total() -> None:
    stored = Stored(LIMIT, Undo())
    stored.look(LIMIT // 2)
    assert fill(stored, None, b"a") == LIMIT // SIZE // 2
    assert not stored.allows(None, 1)


def test_the_counts_are_bounded_and_dropped_when_the_store_empties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_module, "TRACKED_MAX", 10)
    stored = Stored(LIMIT, Undo())
    stored.look(LIMIT // 2 + 1)
    fill(stored, four(1), b"a", 20)
    assert stored.largest() == [10 * SIZE]
    stored.look(LIMIT // 4)
    assert stored.largest() == []
