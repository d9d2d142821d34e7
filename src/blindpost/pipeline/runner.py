"""Running the pipeline: look at the files, then compute what is not up to date.

A partition is up to date if it was made of exactly what is there now. So a rerun does nothing, a late file or
a backfill computes the days it touches again, and a run that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from blindpost.journal.schema import TABLES, Table
from blindpost.pipeline.bronze import Entry, set_aside, take_stock
from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.files import join
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.publish import Finished, Manifest, TableStore, fingerprint
from blindpost.pipeline.quality import (
    NOTHING,
    Outcome,
    Rule,
    check,
    check_rows,
    judged,
    not_null,
    stopping,
)
from blindpost.pipeline.silver import SILVER_VERSION, silver
from blindpost.pipeline.types import silver_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Days:
    """A range of days, both ends included; an end that is None is open."""

    first: date | None = None
    last: date | None = None

    def __contains__(self, day: str) -> bool:
        return (self.first is None or day >= self.first.isoformat()) and (
            self.last is None or day <= self.last.isoformat()
        )

    def widened(self, given: Input) -> Days:
        """The days whose rows the days of this range may be made of."""
        return Days(
            self.first and self.first - timedelta(days=given.days_before),
            self.last and self.last + timedelta(days=given.days_after),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """Where a run is; `point` is what has just been done for a table."""

    stage: str
    """bronze, silver or gold."""
    table: str
    point: str
    """found, computed, checked or published."""
    done: int = 0
    total: int = 0


Observer = Callable[[Step], None]


@dataclass(slots=True)
class Summary:
    """What a run did, and what it found."""

    computed: dict[str, list[str]] = field(default_factory=dict)
    """The days that were computed of each table."""
    set_aside: list[Entry] = field(default_factory=list)
    broken: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """How many rows break a rule, by table, day and rule, of the tables and days that were asked for."""


class _VanishedError(PipelineError):
    """A file of the journal went away while it was read."""


def run(
    lake: Lake,
    wanted: Collection[Dataset],
    days: Days | None = None,
    observer: Observer = lambda _: None,
) -> Summary:
    """Bring the wanted data sets up to date for some days, or for all."""
    asked = Days() if days is None else days
    with lake.writing():
        try:
            return _Run(lake, wanted, asked, observer).run()
        except _VanishedError:  # the journal was compacted meanwhile
            return _Run(lake, wanted, asked, observer).run()


class _Run:
    def __init__(self, lake: Lake, wanted: Collection[Dataset], days: Days, observer: Observer) -> None:
        self._lake = lake
        self._wanted = wanted
        self._days = days
        self._observe = observer
        self._summary = Summary()

    def run(self) -> Summary:
        lake = self._lake
        self._observe(Step("bronze", "files", "found"))
        entries = take_stock(lake.spark, lake.journal_files, lake.journal, lake.ledger.read())
        self._observe(Step("bronze", "files", "checked"))
        lake.ledger.write(entries.values())
        self._observe(Step("bronze", "files", "published", len(entries), len(entries)))
        self._summary.set_aside = set_aside(entries.values())
        with lake.sized(sum(entry.rows for entry in entries.values())):
            self._compute(entries.values())
        return self._summary

    def _compute(self, entries: Collection[Entry]) -> None:
        needed = self._needed()
        for done, (name, days) in enumerate(sorted(needed.items())):
            self._silver(TABLES[name], days, entries)
            self._observe(Step("silver", name, "done", done + 1, len(needed)))
        for done, dataset in enumerate(self._wanted):
            self._gold(dataset)
            self._observe(Step("gold", dataset.name, "done", done + 1, len(self._wanted)))

    def _needed(self) -> dict[str, list[Days]]:
        """The silver tables that are read, and for which days."""
        found: dict[str, list[Days]] = {}
        for dataset in self._wanted:
            for given in dataset.inputs:
                found.setdefault(given.table, []).append(self._days.widened(given))
        return found

    def _silver(self, table: Table, wanted: list[Days], entries: Iterable[Entry]) -> None:
        by_day: dict[str, list[Entry]] = {}
        for entry in entries:
            if entry.good and entry.table == table.name:
                for day in entry.days:
                    if any(day in days for days in wanted):
                        by_day.setdefault(day, []).append(entry)
        inputs = {day: _silver_inputs(table, found) for day, found in by_day.items()}
        store = self._lake.silver_store(table)
        stale = _stale(store.current(), inputs)
        if not stale:
            return
        used = {entry.path: entry for day in stale for entry in by_day[day]}
        try:
            rows = self._rows(table, store, used.values(), stale)
            self._publish("silver", store, silver(table, rows), silver_schema(table), (), (), stale)
        except Exception as error:
            there = (self._lake.journal_files.exists(path) for path in self._paths(used.values()))
            if not all(there):
                raise _VanishedError(
                    "Files of the journal were removed while they were read. Run it again."
                ) from error
            raise

    def _paths(self, entries: Iterable[Entry]) -> list[str]:
        return sorted(join(self._lake.journal, entry.path) for entry in entries if not entry.gone)

    def _rows(
        self, table: Table, store: TableStore, entries: Iterable[Entry], days: Mapping[str, str]
    ) -> DataFrame:
        """The rows of the files; where some have gone, silver's own rows stand for them."""
        used = list(entries)
        rows = self._lake.frame(spark_schema(table), self._paths(used))
        if any(entry.gone for entry in used):
            before = self._lake.frame(silver_schema(table), store.paths(days))
            rows = rows.unionByName(before.drop("day"))
        return rows

    def _gold(self, dataset: Dataset) -> None:
        lake = self._lake
        manifests = {
            given.table: lake.silver_store(TABLES[given.table]).current().partitions
            for given in dataset.inputs
        }
        known = {day for partitions in manifests.values() for day in partitions if day in self._days}
        contents = {
            table: {day: partition.content for day, partition in partitions.items()}
            for table, partitions in manifests.items()
        }
        inputs = {day: _gold_inputs(dataset, day, contents) for day in known}
        store = lake.gold_store(dataset)
        stale = _stale(store.current(), inputs)
        if stale:
            range_of = Days(date.fromisoformat(min(stale)), date.fromisoformat(max(stale)))
            frames = {
                given.table: lake.silver(
                    given.table, [day for day in manifests[given.table] if day in range_of.widened(given)]
                )
                for given in dataset.inputs
            }
            rules = (not_null(dataset.schema), *dataset.rules)
            frame = shaped(dataset.computed(frames), dataset)
            self._publish("gold", store, frame, dataset.schema, dataset.key, rules, stale)
        for day, partition in store.current().partitions.items():
            if day in known:
                self._summary.broken.update(
                    {(dataset.name, day, rule): count for rule, count in partition.broken.items() if count}
                )

    def _publish(
        self,
        stage: str,
        store: TableStore,
        frame: DataFrame,
        schema: StructType,
        key: tuple[str, ...],
        rules: tuple[Rule, ...],
        stale: Mapping[str, str],
    ) -> None:
        """Write the stale days, check what was written, and let it be seen."""
        self._observe(Step(stage, store.name, "found"))
        staging = store.new_staging()
        days = frame.where(frame["day"].cast("string").isin(sorted(stale)))
        if self._lake.small:
            outcomes = self._fetch(store, days, key, rules, staging)
        else:
            outcomes = self._write(store, days, schema, key, rules, staging)
        folders = store.staged(staging)
        self._observe(Step(stage, store.name, "computed"))
        for day, outcome in sorted(outcomes.items()):
            if broken := stopping(outcome, rules):
                raise PipelineError(
                    f"{store.name}, {day}: the rows break {', '.join(broken)}, so they are not published. "
                    "What was published before stays. This is a fault of the pipeline: please report it."
                )
        self._observe(Step(stage, store.name, "checked"))
        store.publish(
            Finished(day, folders.get(day), inputs, outcomes.get(day, NOTHING))
            for day, inputs in sorted(stale.items())
        )
        self._summary.computed[store.name] = sorted(stale)
        self._observe(Step(stage, store.name, "published"))

    def _write(
        self,
        store: TableStore,
        days: DataFrame,
        schema: StructType,
        key: tuple[str, ...],
        rules: tuple[Rule, ...],
        staging: str,
    ) -> dict[str, Outcome]:
        """Spark writes the rows, and reads them again to judge them."""
        by_day = days.withColumn("partition", days["day"])
        if key:  # one sorted file for each day
            placed = by_day.repartition("partition").sortWithinPartitions("partition", *key)
        else:
            placed = by_day.hint("rebalance", "partition")
        placed.write.partitionBy("partition").parquet(staging)
        written = [join(folder, "*.parquet") for folder in store.staged(staging).values()]
        return check(self._lake.frame(schema, written), key, rules)

    def _fetch(
        self,
        store: TableStore,
        days: DataFrame,
        key: tuple[str, ...],
        rules: tuple[Rule, ...],
        staging: str,
    ) -> dict[str, Outcome]:
        """Few rows are judged where they are computed, and written from here: one query for all of it."""
        rows = judged(days, rules).toArrow()
        names = days.columns
        outcomes = {}
        for day in pc.unique(rows["day"]).to_pylist():
            of_day = rows.filter(pc.equal(rows["day"], pa.scalar(day, pa.date32())))
            outcomes[day.isoformat()] = check_rows(of_day, key, rules)
            if key:
                of_day = of_day.sort_by([(name, "ascending") for name in key])
            store.stage(staging, day.isoformat(), of_day.select(names))
        return outcomes


def shaped(frame: DataFrame, dataset: Dataset) -> DataFrame:
    """The frame with the columns of the data set in their order; that they are others is a bug."""
    found = {column.name: column.dataType for column in frame.schema.fields}
    wanted = {column.name: column.dataType for column in dataset.schema.fields}
    if found != wanted:
        different = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        raise TypeError(f"{dataset.name} computes other columns than its schema says: {', '.join(different)}")
    return frame.select(*wanted)


def _stale(manifest: Manifest, inputs: Mapping[str, str]) -> dict[str, str]:
    """The days whose published rows were not made of these inputs, with the inputs."""
    kept = manifest.partitions
    return {day: made for day, made in inputs.items() if day not in kept or kept[day].inputs != made}


def _silver_inputs(table: Table, entries: Iterable[Entry]) -> str:
    files = sorted({entry.sha256 for entry in entries})
    return fingerprint({"version": [SILVER_VERSION, table.version], "files": files})


def _gold_inputs(dataset: Dataset, day: str, contents: Mapping[str, Mapping[str, str]]) -> str:
    """Of a day: the content of every silver partition that its rows may be made of."""
    own = date.fromisoformat(day)
    used = {
        given.table: {
            other: content
            for other, content in contents[given.table].items()
            if other in Days(own, own).widened(given)
        }
        for given in dataset.inputs
    }
    return fingerprint({"version": dataset.version, "inputs": used})
