"""Published data is a Delta table too: days change atomically, and the log reveals no row."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DateType, LongType, StringType

from blindpost.pipeline.delta import follow_manifest
from blindpost.pipeline.files import LocalFiles
from blindpost.pipeline.publish import Finished, TableStore
from blindpost.pipeline.quality import Outcome
from blindpost.pipeline.types import columns

FIRST, SECOND = "2031-05-01", "2031-05-02"
SCHEMA = columns(("day", DateType(), "The day."), ("word", StringType(), "A word."))


def _publish(store: TableStore, inputs: str, words: dict[str, list[str]]) -> None:
    staging = store.new_staging()
    for day, found in words.items():
        rows = {"day": pa.array([day] * len(found)).cast(pa.date32()), "word": found}
        store.stage(staging, day, pa.table(rows))
    folders = store.staged(staging)
    store.publish(
        Finished(day, folders[day], inputs, Outcome(len(found), "", {})) for day, found in words.items()
    )


def _log(store: TableStore) -> int | None:
    assert store.delta_root is not None
    return follow_manifest(store.delta_root, store.name, SCHEMA, store.current().partitions)


def _words(store: TableStore, version: int | None = None) -> list[str]:
    """As a reader of Delta tables sees them."""
    return sorted(pl.read_delta(str(store.delta_root), version=version)["word"].to_list())


def test_a_day_is_replaced_as_a_whole_and_the_previous_version_stays_readable(tmp_path: Path) -> None:
    store = TableStore(LocalFiles(), str(tmp_path), "gold", "letters", shown=True)
    assert _log(store) is None
    _publish(store, "one", {FIRST: ["a", "b"], SECOND: ["c"]})
    before = _log(store)
    assert _words(store) == ["a", "b", "c"]
    _publish(store, "two", {SECOND: ["d", "e"]})
    assert _words(store) == ["a", "b", "c"]  # killed here, readers of the log still see whole days
    after = _log(store)
    assert _words(store) == ["a", "b", "d", "e"]
    assert _words(store, before) == ["a", "b", "c"]
    assert _log(store) == after  # nothing to say


@pytest.mark.parametrize(
    ("name", "logged"), [("a b#c?d[1]{2}*", True), ("100%", True), ("a%20b", False), ("a\\b", False)]
)
def test_only_a_folder_that_the_package_can_find_again_gets_a_log(
    tmp_path: Path, name: str, logged: bool
) -> None:
    store = TableStore(LocalFiles(), str(tmp_path / name), "gold", "letters", shown=True)
    assert (store.delta_root is not None) is logged
    if logged:
        _publish(store, "one", {FIRST: ["a"]})
        _log(store)
        assert DeltaTable(str(store.delta_root)).get_add_actions().num_rows == 1


def test_the_log_names_files_and_days_and_nothing_else(tmp_path: Path) -> None:
    store = TableStore(LocalFiles(), str(tmp_path), "gold", "letters", shown=True)
    _publish(store, "one", {FIRST: ["a-secret-word", "another"]})
    _log(store)
    logs = sorted((tmp_path / "versions" / "gold" / "letters" / "_delta_log").glob("*.json"))
    text = "".join(log.read_text() for log in logs)
    assert "secret" not in text
    assert "another" not in text
    added = [json.loads(line)["add"] for line in text.splitlines() if '"add"' in line]
    assert json.loads(added[0]["stats"])["numRecords"] == 2


def test_a_table_with_new_columns_starts_over(tmp_path: Path) -> None:
    store = TableStore(LocalFiles(), str(tmp_path), "gold", "letters", shown=True)
    _publish(store, "one", {FIRST: ["a"]})
    _log(store)
    wider = columns(*((field.name, field.dataType, "") for field in SCHEMA.fields), ("more", LongType(), ""))
    root = str(store.delta_root)
    follow_manifest(root, store.name, wider, store.current().partitions)
    assert [field.name for field in DeltaTable(root).schema().fields] == ["day", "word", "more"]
    assert pl.read_delta(root)["word"].to_list() == ["a"]
