"""Files the journal did not write are set aside with the reason; the others are accepted."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blindpost.journal.schema import METADATA_TABLE, METADATA_VERSION, TABLES, Column, Table, Type
from blindpost.pipeline.examine import Reason, examine
from tests.support.pipeline import journals
from tests.support.pipeline.lakes import Row, arrow_rows

COUNTERS = TABLES["p_counters"]


def _rows() -> list[Row]:
    return journals.production(random.Random(1), routers=1)["p_counters"]


def _content(rows: pa.Table, *, checksums: bool = True) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, write_page_checksum=checksums, compression="none")
    return buffer.getvalue()


def _good() -> bytes:
    return _content(arrow_rows(COUNTERS, _rows()))


def test_a_file_of_the_journal_is_accepted() -> None:
    found = examine(_good())
    days = {journals.FIRST_S // 86_400 * 86_400, *(row["minute_s"] // 86_400 * 86_400 for row in _rows())}
    assert (found.table, found.version, found.rows, found.reason) == ("p_counters", 1, len(_rows()), "")
    assert found.days[0].startswith("2025-01-3")
    assert len(found.days) in (len(days), len(days) - 1)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_without_rows_is_good(name: str) -> None:
    assert examine(_content(arrow_rows(TABLES[name], []))).reason == ""


def test_a_file_without_bytes_is_empty() -> None:
    assert examine(b"").reason == Reason.EMPTY.value


@pytest.mark.parametrize("content", [b"day,queues\n", b"PK\x03\x04", b"\x00"])
def test_a_file_that_is_not_parquet_is_foreign(content: bytes) -> None:
    assert examine(content).reason == Reason.FOREIGN.value


def test_every_cut_is_truncated() -> None:
    content = _good()
    for size in (4, 8, 11, len(content) // 2, len(content) - 4, len(content) - 1):
        assert examine(content[:size]).reason == Reason.TRUNCATED.value


def test_a_changed_byte_is_noticed_or_changes_nothing() -> None:
    """Checksums cover the pages; in page headers only statistics can change unnoticed."""
    content = _good()
    rows = pq.read_table(pa.BufferReader(content))
    noticed = 0
    rng = random.Random(3)
    footer = int.from_bytes(content[-8:-4], "little")
    for _ in range(200):
        place = rng.randrange(4, len(content) - 8 - footer)
        broken = bytearray(content)
        broken[place] ^= 1 << rng.randrange(8)
        found = examine(bytes(broken))
        assert found.reason == Reason.CORRUPT.value or pq.read_table(pa.BufferReader(broken)) == rows, place
        noticed += bool(found.reason)
    assert noticed > 150


def test_a_changed_footer_gives_a_verdict_and_no_exception() -> None:
    content = _good()
    rng = random.Random(4)
    footer = int.from_bytes(content[-8:-4], "little")
    for _ in range(200):
        place = rng.randrange(len(content) - 8 - footer, len(content) - 4)
        broken = bytearray(content)
        broken[place] ^= 1 << rng.randrange(8)
        assert examine(bytes(broken)).sha256


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {METADATA_TABLE: "p_counters"},
        {METADATA_VERSION: "1"},
        {METADATA_TABLE: "p_counters", METADATA_VERSION: "one"},
        {METADATA_TABLE: "customers", METADATA_VERSION: "1"},
    ],
)
def test_a_table_of_somebody_else_is_foreign(metadata: dict[bytes | str, bytes | str]) -> None:
    rows = arrow_rows(COUNTERS, _rows()).replace_schema_metadata(metadata)
    assert examine(_content(rows)).reason == Reason.FOREIGN.value


@pytest.mark.parametrize("table", ["p_counters", "p_something_new"])
def test_a_later_version_is_from_the_future(table: str) -> None:
    metadata = {METADATA_TABLE: table, METADATA_VERSION: "9"}
    rows = arrow_rows(COUNTERS, _rows()).replace_schema_metadata(metadata)
    assert examine(_content(rows)).reason == Reason.FUTURE.value


def test_other_columns_are_foreign() -> None:
    rows = arrow_rows(COUNTERS, _rows())
    for changed in (
        rows.drop_columns(["value"]),
        rows.append_column("address", pa.array(["x"] * len(rows))),
        rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(["x"] * len(rows))),
    ):
        found = examine(_content(changed.replace_schema_metadata(rows.schema.metadata)))
        assert found.reason == Reason.FOREIGN.value


@pytest.mark.parametrize(
    ("column", "value"),
    [("name", None), ("role", "somebody"), ("minute_s", 0), ("minute_s", 2**62)],
)
def test_impossible_rows_are_corrupt(column: str, value: object) -> None:
    rows = [*_rows(), {**_rows()[0], column: value}]
    assert examine(_content(arrow_rows(COUNTERS, rows))).reason == Reason.CORRUPT.value


def test_files_of_an_earlier_version_are_good(monkeypatch: pytest.MonkeyPatch) -> None:
    added = Column("added", Type.INT64, "New.", nullable=True, since=2)
    newer = Table(
        COUNTERS.name,
        COUNTERS.tier,
        COUNTERS.doc,
        COUNTERS.key,
        COUNTERS.time,
        (*COUNTERS.columns, added),
        version=2,
    )
    monkeypatch.setitem(TABLES, COUNTERS.name, newer)
    old = examine(_good())
    new = examine(_content(arrow_rows(newer, [{**row, "added": 1} for row in _rows()])))
    assert [(found.version, found.reason) for found in (old, new)] == [(1, ""), (2, "")]
    mixed = arrow_rows(newer, _rows()).replace_schema_metadata(
        {METADATA_TABLE: COUNTERS.name, METADATA_VERSION: "1"}
    )
    assert examine(_content(mixed)).reason == Reason.FOREIGN.value
