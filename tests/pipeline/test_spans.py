"""Files that cannot share a record are distinguished from those that may."""

from __future__ import annotations

import itertools
import random

import pytest

from blindpost.journal.schema import ALL_TABLES, L_MESSAGES, P_COUNTERS, P_DAY, P_FUNNEL, S_QUEUES, Table
from blindpost.pipeline.spans import alone, placed, spans_of
from tests.support.pipeline.lakes import Row, arrow_rows


def _counters(seqs: range, boot: str = "b", names: str = "xy") -> list[Row]:
    return [
        dict.fromkeys(P_COUNTERS.by_name, 0)
        | {"router": "r", "role": "smp", "boot": boot, "seq": seq, "name": name}
        for seq in seqs
        for name in names
    ]


def _spans(table: Table, rows: list[Row]) -> tuple[str, ...]:
    return spans_of(table, arrow_rows(table, rows))


def test_ranges_match_the_rows() -> None:
    assert _spans(P_COUNTERS, _counters(range(3, 9))) == (f"r b\t{3:020d}\t{8:020d}",)
    both = _spans(P_COUNTERS, _counters(range(2)) + _counters(range(5), "c"))
    assert [line.partition("\t")[0] for line in both] == ["r b", "r c"]


def test_a_duplicate_key_has_no_range() -> None:
    rows = _counters(range(4))
    assert _spans(P_COUNTERS, rows + rows[-1:]) == ()
    empty: Row = {c.name: "" if c.type.value == "string" else 0 for c in L_MESSAGES.columns}
    events = [empty | {"seq": seq} for seq in (0, 1, 1)]
    assert _spans(L_MESSAGES, events) == ()
    assert len(_spans(L_MESSAGES, events[:2])) == 1


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_one_row_of_any_table_has_a_range_or_none(table: Table) -> None:
    plain = {"string": "", "binary": b"", "bool": False}
    row: Row = {c.name: plain.get(c.type.value, [] if "list" in c.type.value else 0) for c in table.columns}
    assert len(_spans(table, [row])) == ("seq" in table.key or "snapshot" in table.key)


def test_a_file_of_an_earlier_version_may_lack_a_column_of_the_key() -> None:
    row: Row = {c.name: "" if c.type.value == "string" else 0 for c in P_FUNNEL.columns}
    assert len(spans_of(P_FUNNEL, arrow_rows(P_FUNNEL, [row], version=1))) == 1


def test_sums_of_days_may_be_written_again_and_have_no_range() -> None:
    row: Row = {c.name: "" if c.type.value == "string" else 0 for c in P_DAY.columns}
    assert _spans(P_DAY, [row]) == ()


def test_a_range_never_holds_the_id_of_a_queue() -> None:
    """The ledger keeps ranges, and people who may not see ids can read it."""
    named = {"snapshot": "s", "router": "r", "side": "router", "role": "messaging", "at_s": 0}
    queue: Row = dict.fromkeys(S_QUEUES.by_name) | named | {"queue_id": bytes(24)}
    spans = _spans(S_QUEUES, [queue])
    assert spans == ("r router s",)
    assert placed(spans, "r-router-s-000003.parquet") == (f"r router s\t{3:020d}\t{3:020d}",)
    assert placed(spans, "r-router-s-5-9.parquet") == (f"r router s\t{5:020d}\t{9:020d}",)
    for other in ("r-router-s-000003-copy.parquet", "r-router-t-000003.parquet", "x.parquet", "s.parquet"):
        assert placed(spans, other) == ()
    assert _spans(S_QUEUES, [queue, queue]) == ()
    assert _spans(S_QUEUES, [queue, {**queue, "snapshot": "t"}]) == ()


@pytest.mark.parametrize("seed", range(200))
def test_files_found_alone_share_no_record_with_any_other(seed: int) -> None:
    rng = random.Random(seed)
    files = {}
    for number in range(rng.randint(1, 6)):
        start = rng.randint(0, 30)
        files[f"{number}"] = [(rng.choice("bc"), seq) for seq in range(start, start + rng.randint(1, 8))]
    spans = {
        name: _spans(P_COUNTERS, [row for boot, seq in keys for row in _counters(range(seq, seq + 1), boot)])
        for name, keys in files.items()
    }
    ours = alone(spans)
    for one, other in itertools.combinations(files, 2):
        if set(files[one]) & set(files[other]):
            assert not {one, other} & ours
    elsewhere = {"r b"}
    assert all(boot != "b" for name in alone(spans, elsewhere) for boot, _ in files[name])


def test_a_file_without_a_known_range_overlaps_all() -> None:
    known = _spans(P_COUNTERS, _counters(range(3)))
    assert alone({"one": known}) == {"one"}
    assert alone({"one": known, "other": ()}) == set()
