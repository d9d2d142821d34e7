"""The schema only grows, and tier P has no place for what it must not hold."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from blindpost.journal.arrow import schema_of
from blindpost.journal.schema import (
    ALL_TABLES,
    DAILY_COLUMNS,
    NOTIFICATION_STATES,
    P_COUNTERS,
    TABLES,
    TERMINAL_STATES,
    Column,
    Source,
    Table,
    Tier,
    Type,
)
from blindpost.journal.state import StateWriter
from blindpost.router.meters import Meter
from blindpost.wire.ntf.status import InvalidReason, TokenState
from tests.support.journal.balance import MESSAGE_BALANCE


def test_every_table_has_a_unique_name_with_the_prefix_of_its_tier() -> None:
    assert len(TABLES) == len(ALL_TABLES)
    for table in ALL_TABLES:
        assert table.name.startswith(f"{table.tier.value.lower()}_")
        assert schema_of(table).names == [column.name for column in table.columns]


def test_tier_p_has_no_column_for_an_id() -> None:
    """Bytes are only sketches; the only free text is names of servers, meters and programs."""
    free = {"router", "boot", "name", "program", "reason"}
    for table in ALL_TABLES:
        if table.tier is not Tier.PRODUCTION:
            continue
        for column in table.columns:
            if column.type is Type.BINARY:
                assert column.name == "sketch"
            if column.type is Type.STRING and not column.values:
                assert column.name in free, f"{table.name}.{column.name}"
            assert not column.name.startswith(("h_", "queue_id", "service_id", "ids"))


def test_every_table_can_be_kept_for_a_time_or_for_ever() -> None:
    kept = {table.name for table in ALL_TABLES if table.days_kept is None}
    assert kept == {"p_day", "p_day_sketches", "s_migration"}
    assert {table.days_kept for table in ALL_TABLES if table.tier is Tier.LAB} == {7}
    minutes = [table for table in ALL_TABLES if table.time == "minute_s"]
    assert {table.days_kept for table in minutes} == {30}


def test_a_schema_that_changes_written_columns_is_refused() -> None:
    first = Column("a_s", Type.INT64, "")
    later = Column("b", Type.INT64, "", nullable=True, since=2)
    table = Table("x", Tier.LAB, "", ("a_s",), "a_s", (first, later), version=2)
    assert table.at(1) == (first,)
    assert table.at(2) == (first, later)
    for columns, version in (
        ((first, Column("b", Type.INT64, "", since=2)), 2),
        ((later, first), 2),
        ((first, later), 1),
        ((first, first), 1),
        ((later,), 2),
    ):
        with pytest.raises(ValueError, match="table x"):
            Table("x", Tier.LAB, "", ("a_s",), "a_s", columns, version=version)


def test_the_daily_columns_are_those_of_the_reference() -> None:
    assert [column.position for column in DAILY_COLUMNS] == list(range(1, 101))
    assert len({column.name for column in DAILY_COLUMNS}) == 100
    by_name = {column.name: column for column in DAILY_COLUMNS}
    assert by_name["rcvServices assocNew"].metric == "rcvServices.assocNew"
    assert (by_name["activeQueuesNtf month"].metric, by_name["activeQueuesNtf month"].days) == (
        "queues_notify",
        30,
    )
    known = {meter.value for meter in Meter}
    missing = {
        column.metric
        for column in DAILY_COLUMNS
        if column.source is Source.COUNTER and column.metric not in known
    }
    # The router does not tell these failures of relays apart: they stay 0.
    assert missing == {
        f"{what}.{why}" for what in ("pRelays", "pMsgFwds") for why in ("errorsConnect", "errorsCompat")
    }


def test_the_schema_uses_the_same_words_as_the_servers() -> None:
    assert {meter.value for meter in Meter} >= MESSAGE_BALANCE.keys()
    states = TABLES["p_token_transitions"].by_name["to_state"].values
    assert set(states) == {"", *(state.value for state in TokenState)}
    reasons = TABLES["p_token_transitions"].by_name["reason"].values
    assert set(reasons) == {"", *(reason.value for reason in InvalidReason)}
    assert set(TERMINAL_STATES) < set(NOTIFICATION_STATES)
    assert P_COUNTERS.key == ("router", "boot", "seq", "name")


def test_columns_that_never_repeat_have_no_dictionary(tmp_path: Path) -> None:
    """Ids and lanes would be stored twice and every reader slowed down; words do have a dictionary."""
    writer = StateWriter(tmp_path, "smp-01", side="router", online=False)
    for number in range(100):
        queue_id = number.to_bytes(24)
        writer.add_queue("messaging", queue_id, hashlib.sha256(queue_id).digest()[:16], b"service")
    writer.finish()
    [file] = tmp_path.rglob("s_queues/**/*.parquet")
    group = pq.read_metadata(file).row_group(0)
    chunks = [group.column(place) for place in range(group.num_columns)]
    without = {chunk.path_in_schema for chunk in chunks if not chunk.has_dictionary_page}
    assert without & {"queue_id", "h_hi", "h_lo", "role", "service_id"} == {"queue_id", "h_hi", "h_lo"}
    assert P_COUNTERS.with_dictionary(["name"]) is True
