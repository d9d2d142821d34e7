"""Memory that is rolled back is exactly as before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blindpost.engine.undo import Table, Undo

KEYS = st.integers(0, 5)
CHANGES = st.lists(st.tuples(st.sampled_from(["put", "pop"]), KEYS, st.integers()), max_size=30)


def apply(table: Table[int, int], changes: list[tuple[str, int, int]]) -> None:
    for kind, key, value in changes:
        if kind == "put":
            table.put(key, value)
        else:
            table.pop(key)


@given(first=CHANGES, second=CHANGES, third=CHANGES)
def test_rollback_to_a_mark_undoes_exactly_what_came_after(
    first: list[tuple[str, int, int]], second: list[tuple[str, int, int]], third: list[tuple[str, int, int]]
) -> None:
    undo = Undo()
    table: Table[int, int] = Table(undo)
    apply(table, first)
    undo.forget()
    at_start = dict(table.items())
    apply(table, second)
    at_mark, mark = dict(table.items()), undo.mark()
    apply(table, third)
    undo.rollback(mark)
    assert dict(table.items()) == at_mark
    undo.rollback()
    assert dict(table.items()) == at_start
    assert len(undo) == 0


def test_forgotten_changes_are_not_rolled_back() -> None:
    undo = Undo()
    table: Table[str, int] = Table(undo)
    table.put("a", 1)
    undo.forget()
    undo.rollback()
    assert table.get("a") == 1
    assert len(table) == 1
    assert "a" in table
    assert list(table) == ["a"]


def test_put_and_pop_return_the_row_that_was_there() -> None:
    table: Table[str, int] = Table(Undo())
    assert table.put("a", 1) is None
    assert table.put("a", 2) == 1
    assert table.pop("a") == 2
    assert table.pop("a") is None


def test_an_emptied_table_has_no_rows() -> None:
    table: Table[str, int] = Table(Undo())
    table.put("a", 1)
    table.empty()
    assert dict(table.items()) == {}
