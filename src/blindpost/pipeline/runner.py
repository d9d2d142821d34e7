"""Running the pipeline: look at the files, then compute what is not up to date.

A partition is up to date if it was made of exactly what is there now. So a rerun does nothing, a late file or
a backfill recomputes the days it touches, and a run that was killed resumes where it was.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Observation
from pyspark.sql import functions as F

from blindpost.journal.schema import TABLES, Table, Tier
from blindpost.pipeline.bronze import TRIES, take_stock
from blindpost.pipeline.dataset import Dataset, Input, datasets
from blindpost.pipeline.errors import PipelineError, lacks_room
from blindpost.pipeline.files import join
from blindpost.pipeline.growing import ByDay, Meeting, different, growing, is_whole, made_of, meeting
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.ledger import Entry, listing
from blindpost.pipeline.passing import copy_all, each_once
from blindpost.pipeline.publish import Finished, Manifest, Partition, TableStore, fingerprint
from blindpost.pipeline.quality import (
    NOTHING,
    Outcome,
    Rule,
    check,
    check_rows,
    judged,
    not_null,
    stopping,
    told,
)
from blindpost.pipeline.silver import CONFLICT, REVISION, SILVER_VERSION, compared, is_revised, passed
from blindpost.pipeline.spans import written_by
from blindpost.pipeline.types import silver_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
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
    failed: dict[str, str] = field(default_factory=dict)
    """Tables that could not be computed, and why; what was published of them before stays."""
    erased: dict[str, list[str]] = field(default_factory=dict)
    """The days of each table that were past their retention."""
    files: int = 0
    rows: int = 0
    """What the ledger knows of the journal: files, and rows in those that are read."""
    there: bool = False
    """Whether any of these files is in the journal's folder now."""
    unfinished: dict[str, str] = field(default_factory=dict)
    """Tables whose rows are published but of which something else could not be done, and what."""

    @property
    def has_news(self) -> bool:
        """Whether there is more to say than that everything was up to date."""
        return bool(self.computed or self.erased or self.failed or self.unfinished)


CONFLICTS = "records that contradict each other"
"""How many records of a silver table came with two contents: a writer's fault, or two writers of one name."""


NO_LOG = (
    "The Delta log could not be written: readers of the log see an older state. If it happens again, remove "
    "the table's folder _delta_log; the next run writes it anew."
)
CLOSED = "This folder cannot be listed: look at its permissions and the disk. What was read before stays."
NO_FILES = listing(())
FAR_DAYS = 31
FAR = (
    "Days whose time is over are still there, since the newest record is of {newest}: is the clock right? "
    "If it is, erase them with `pipeline run --as-of` and a day soon after that one."
)
NOT_ERASED = "Days whose time is over could not be erased and are still there; the next run tries again."


class _VanishedError(PipelineError):
    """A file of the journal disappeared while it was read."""


def run(
    lake: Lake,
    wanted: Collection[Dataset],
    days: Days | None = None,
    observer: Observer = lambda _: None,
    *,
    erases: bool = True,
) -> Summary:
    """Bring the wanted data sets up to date for some days, or for all; an error if none of them can be.

    `erases`: whether what is past its retention is erased, from all tables.
    """
    asked = Days() if days is None else days
    if not lake.journal_files.exists(lake.journal):
        raise PipelineError(
            f"{lake.journal}: there is no such folder. Name the one that servers write their journals to, "
            "or that they are copied to, with --journal."
        )
    with lake.writing():
        for _ in range(TRIES - 1):
            try:
                return _Run(lake, wanted, asked, observer, erases=erases).run()
            except _VanishedError:  # the journal was compacted meanwhile
                continue
        return _Run(lake, wanted, asked, observer, erases=erases).run()


class _Run:
    def __init__(
        self, lake: Lake, wanted: Collection[Dataset], days: Days, observer: Observer, *, erases: bool
    ) -> None:
        self._lake = lake
        self._wanted = wanted
        self._days = days
        self._observe = observer
        self._now_s = lake.clock()
        self._keep = lake.keep
        self._erases = erases
        self._summary = Summary()

    def run(self) -> Summary:
        lake = self._lake
        self._observe(Step("bronze", "files", "found"))
        take_stock(lake.spark, lake.journal_files, lake.journal, lake.ledger, self._now_s)
        self._observe(Step("bronze", "files", "checked"))
        known = lake.ledger.folders().values()
        count = sum(folder.files for folder in known)
        self._observe(Step("bronze", "files", "published", count, count))
        self._summary.set_aside = lake.ledger.set_aside()
        self._summary.files, self._summary.rows = count, sum(folder.rows for folder in known)
        self._summary.there = any(folder.seen != NO_FILES for folder in known)
        for folder, why in sorted(lake.journal_files.closed.items()):
            self._summary.unfinished[folder] = f"{CLOSED} ({why})"
        if self._erases:
            lake.remember_keep()
            self._erase()
        with lake.sized(self._summary.rows):
            self._compute()
        for store, schema in lake.logged(TABLES, datasets().values()):
            with self._aside(store.name, NO_LOG):
                lake.write_log(store, schema)
        self._raise_if_all_failed()
        return self._summary

    def _raise_if_all_failed(self) -> None:
        """Something that computes nothing must not look like a run that had nothing to do."""
        failed = self._summary.failed
        if self._wanted and all(dataset.name in failed for dataset in self._wanted):
            reasons = "; ".join(f"{table}: {reason}" for table, reason in failed.items())
            raise PipelineError(
                f"No table could be computed. What was published before stays. What went wrong: {reasons}"
            )

    def _compute(self) -> None:
        needed = self._needed()
        for done, (name, days) in enumerate(sorted(needed.items())):
            with self._alone(name):
                self._silver(TABLES[name], days)
            self._observe(Step("silver", name, "done", done + 1, len(needed)))
        for done, dataset in enumerate(self._wanted):
            missing = [given.table for given in dataset.inputs if given.table in self._summary.failed]
            if missing:
                self._summary.failed[dataset.name] = f"it is made of {', '.join(missing)}"
            else:
                with self._alone(dataset.name):
                    self._gold(dataset)
            self._observe(Step("gold", dataset.name, "done", done + 1, len(self._wanted)))

    @contextlib.contextmanager
    def _alone(self, table: str) -> Iterator[None]:
        """A table that fails does not stop the others."""
        try:
            yield
        except Exception as error:
            if isinstance(error, _VanishedError) or lacks_room(error):
                raise
            self._summary.failed[table] = _first_line(error)

    @contextlib.contextmanager
    def _aside(self, table: str, what: str) -> Iterator[None]:
        """What is done to a table besides computing it stops neither its rows nor the other tables."""
        try:
            yield
        except Exception as error:
            if lacks_room(error):
                raise
            known = self._summary.unfinished.get(table)
            said = f"{what} ({_first_line(error)})"
            self._summary.unfinished[table] = said if known is None else f"{known} {said}"

    def _erase(self) -> None:
        """What the lake may no longer hold: all versions of all files.

        Nothing if the newest record is long ago: a wrong clock is likelier than a long silence.
        """
        keep = self._keep
        stores = {
            self._lake.silver_store(table): keep.first_of(table, self._now_s) for table in TABLES.values()
        }
        for dataset in datasets().values():
            if dataset.tier is Tier.STATE:
                stores[self._lake.gold_store(dataset)] = keep.first_day(Tier.STATE, self._now_s)
        known = self._lake.ledger.folders().values()
        newest = max((day for one in known for days in one.contents.values() for day in days), default="")
        far = datetime.fromtimestamp(self._now_s, UTC).date() - timedelta(days=FAR_DAYS)
        if newest < far.isoformat() and any(store.over(first_day) for store, first_day in stores.items()):
            self._summary.unfinished[self._lake.out] = FAR.format(newest=newest or "no day")
            return
        for store, first_day in stores.items():
            with self._aside(store.name, NOT_ERASED):
                if first_day and (days := store.erase(first_day)):
                    self._summary.erased[store.name] = days

    def _needed(self) -> dict[str, list[Days]]:
        """The silver tables that are read, and for which days."""
        found: dict[str, list[Days]] = {}
        for dataset in self._wanted:
            for given in dataset.inputs:
                found.setdefault(given.table, []).append(self._days.widened(given))
        return found

    def _silver(self, table: Table, wanted: list[Days]) -> None:
        first_day = self._keep.first_of(table, self._now_s)
        inputs = {
            day: _silver_inputs(table, contents)
            for day, contents in self._lake.ledger.contents(table.name).items()
            if day >= first_day and any(day in days for days in wanted)
        }
        store = self._lake.silver_store(table)
        published = store.current()
        stale = _stale(published, inputs)
        erased = [day for day in stale if day in published.partitions and published.partitions[day].erased]
        for day, entries in self._lake.ledger.read_by(table.name, erased).items() if erased else ():
            if not is_whole(entries):  # what was made of it stays as it is
                del stale[day]
        if stale:
            self._silver_days(table, store, stale)
        self._tell(store, (), inputs)

    def _silver_days(self, table: Table, store: TableStore, stale: Mapping[str, str]) -> None:
        read = self._lake.ledger.read_by(table.name, stale)
        by_day = {day: different(entries) for day, entries in read.items()}
        known = {day: store.made_of(day) for day in by_day}
        held = {day: len(kept.files) for day, kept in store.current().partitions.items()}
        added = growing(table, by_day, known, held)
        try:
            if added:
                new = Meeting(_once_each(added), [], None)
                self._silver_parts(table, store, by_day, {day: stale[day] for day in added}, new, adds=True)
            whole = {day: found for day, found in by_day.items() if day not in added}
            if whole:
                files = self._few_once(table, meeting(_once_each(whole)))
                self._silver_parts(
                    table, store, by_day, {day: stale[day] for day in whole}, files, adds=False
                )
        except Exception as error:
            there = (self._lake.journal_files.exists(path) for path in self._paths(_once_each(by_day)))
            if not all(there):
                raise _VanishedError(
                    "Files of the journal were removed while they were read. Run it again."
                ) from error
            raise

    def _silver_parts(
        self,
        table: Table,
        store: TableStore,
        by_day: ByDay,
        days: Mapping[str, str],
        files: Meeting,
        *,
        adds: bool,
    ) -> None:
        """Write days of silver: copy what meets nothing, compare the rest."""
        copies = self._can_copy(table)

        def make(staging: str) -> dict[str, Outcome]:
            outcomes: dict[str, Outcome] = {}
            if files.compared or (files.passing and not copies):
                rows = self._once(table, store, files, days, passing=not copies)
                outcomes = self._computed(store, rows, silver_schema(table), (), (), staging, days)
            if files.passing and copies:
                sources = [(join(self._lake.journal, entry.path), entry.rows) for entry in files.passing]
                spark = None if self._lake.small else self._lake.spark
                for one in copy_all(spark, table, staging, list(days), sources):
                    found = outcomes.get(one.day, Outcome(0, NOTHING.content, {CONFLICTS: 0}))
                    outcomes[one.day] = found.beside(one.outcome)
            return outcomes

        def finished(day: str, folder: str | None, outcome: Outcome) -> Finished:
            return Finished(day, folder, days[day], outcome, made_of(table, by_day[day]), added=adds)

        self._publish("silver", store, (), days, make, finished)

    def _can_copy(self, table: Table) -> bool:
        """Whether rows can be copied without Spark's own reader and writer: where Python can open files."""
        return self._lake.journal_files.local and self._lake.files_of(table).local

    def _few_once(self, table: Table, files: Meeting) -> Meeting:
        """Few files that state no ranges are looked into: mostly no record is in them twice."""
        every = [*files.passing, *files.compared]
        if not files.compared or any(entry.gone for entry in every):
            return files
        if not (self._lake.small and self._can_copy(table) and each_once(table, self._paths(every))):
            return files
        return Meeting(every, [], None)

    def _paths(self, entries: Iterable[Entry]) -> list[str]:
        return sorted(join(self._lake.journal, entry.path) for entry in entries if not entry.gone)

    def _once(
        self, table: Table, store: TableStore, files: Meeting, days: Mapping[str, str], *, passing: bool
    ) -> DataFrame:
        """Each record of the files once."""
        parts = []
        if passing and files.passing:
            parts.append(passed(table, self._lake.frame(spark_schema(table), self._paths(files.passing))))
        if files.compared:
            rows = self._rows(table, store, files.compared, days, files.writers)
            parts.append(compared(table, rows).hint("rebalance", "day"))
        return functools.reduce(lambda one, other: one.unionByName(other), parts)

    def _rows(
        self,
        table: Table,
        store: TableStore,
        used: list[Entry],
        days: Mapping[str, str],
        writers: set[str] | None,
    ) -> DataFrame:
        """The rows of the files; where some are gone, silver's own rows of these writers replace them."""
        paths = self._paths(used)
        rows = self._lake.frame(spark_schema(table), paths)
        if is_revised(table):
            written = F.unix_micros("_metadata.file_modification_time") if paths else F.lit(0).cast("long")
            rows = rows.select("*", written.alias(REVISION))
        gone = [entry.modified_us for entry in used if entry.gone]
        if gone:
            before = self._lake.frame(silver_schema(table), store.paths(days)).drop("day")
            if writers is not None:
                before = before.where(F.concat_ws(" ", *written_by(table)).isin(*sorted(writers)))
            if is_revised(table):
                before = before.withColumn(REVISION, F.lit(max(gone)).cast("long"))
            rows = rows.unionByName(before)
        return rows

    def _gold(self, dataset: Dataset) -> None:
        lake = self._lake
        manifests = {
            given.table: lake.silver_store(TABLES[given.table]).current().partitions
            for given in dataset.inputs
        }
        known = self._known(dataset, manifests)
        contents = {
            table: {day: partition.content for day, partition in partitions.items()}
            for table, partitions in manifests.items()
        }
        inputs = {day: _gold_inputs(dataset, day, contents) for day in known}
        store = lake.gold_store(dataset)
        published = store.current()
        first_day = self._keep.first_day(Tier.STATE, self._now_s) if dataset.tier is Tier.STATE else ""
        stale = {
            day: made
            for day, made in _stale(published, inputs).items()
            if day >= first_day
            and not _is_frozen(dataset, day, manifests, published=day in published.partitions)
        }
        if stale:
            range_of = Days(date.fromisoformat(min(stale)), date.fromisoformat(max(stale)))
            used = {
                given.table: [day for day in manifests[given.table] if day in range_of.widened(given)]
                for given in dataset.inputs
            }
            rules = (not_null(dataset.schema), *dataset.rules)
            there = {table: any(manifests[table][day].rows for day in days) for table, days in used.items()}

            def make(staging: str) -> dict[str, Outcome]:
                if not all(there[table] for table in dataset.rows_of):
                    return {}
                asked = dataset.asks_for
                frames = {table: lake.silver(table, days) for table, days in used.items() if table in asked}
                frames |= {sums.name: lake.summed(sums, used[sums.table.name]) for sums in dataset.sums}
                frame = shaped(dataset.computed(frames), dataset)
                return self._computed(store, frame, dataset.schema, dataset.key, rules, staging, stale)

            def finished(day: str, folder: str | None, outcome: Outcome) -> Finished:
                return Finished(day, folder, stale[day], outcome)

            self._publish("gold", store, rules, stale, make, finished)
        self._tell(store, dataset.rules, known)

    def _known(self, dataset: Dataset, manifests: Mapping[str, Mapping[str, Partition]]) -> set[str]:
        """The days that there may be rows for, up to today."""
        today = datetime.fromtimestamp(self._now_s, UTC).date()
        known: set[str] = set()
        for given in dataset.inputs:
            for day in manifests[given.table]:
                known.add(day)
                own = date.fromisoformat(day)
                later = (own + timedelta(days=number + 1) for number in range(given.spills))
                known.update(one.isoformat() for one in later if one <= today)
        return {day for day in known if day in self._days}

    def _tell(self, store: TableStore, rules: tuple[Rule, ...], days: Collection[str]) -> None:
        for day, partition in store.current().partitions.items():
            if day in days:
                found = told(partition.broken, rules, day, self._now_s)
                self._summary.broken.update({(store.name, day, rule): rows for rule, rows in found.items()})

    def _publish(
        self,
        stage: str,
        store: TableStore,
        rules: tuple[Rule, ...],
        stale: Collection[str],
        make: Callable[[str], dict[str, Outcome]],
        finished: Callable[[str, str | None, Outcome], Finished],
    ) -> None:
        """Write the stale days, check what was written, and let it be seen."""
        self._observe(Step(stage, store.name, "found"))
        staging = store.new_staging()
        outcomes = make(staging)
        folders = store.staged(staging)
        self._observe(Step(stage, store.name, "computed"))
        for day, outcome in sorted(outcomes.items()):
            if broken := stopping(outcome, rules):
                raise PipelineError(
                    f"{store.name}, {day}: the rows break {', '.join(broken)}, so they are not published. "
                    "What was published before stays. This is a fault of the pipeline: please report it."
                )
        self._observe(Step(stage, store.name, "checked"))
        store.publish(finished(day, folders.get(day), outcomes.get(day, NOTHING)) for day in sorted(stale))
        self._summary.computed[store.name] = sorted({*self._summary.computed.get(store.name, ()), *stale})
        self._observe(Step(stage, store.name, "published"))

    def _computed(
        self,
        store: TableStore,
        frame: DataFrame,
        schema: StructType,
        key: tuple[str, ...],
        rules: tuple[Rule, ...],
        staging: str,
        stale: Collection[str],
    ) -> dict[str, Outcome]:
        days = frame.where(frame["day"].cast("string").isin(sorted(stale)))
        if self._lake.small:
            return self._fetch(store, days, key, rules, staging)
        return self._write(store, days, schema, key, rules, staging, stale)

    def _write(
        self,
        store: TableStore,
        days: DataFrame,
        schema: StructType,
        key: tuple[str, ...],
        rules: tuple[Rule, ...],
        staging: str,
        stale: Collection[str],
    ) -> dict[str, Outcome]:
        """Spark writes the rows, and reads them again to judge them."""
        counted = Observation(f"conflicts of {store.name}")
        if CONFLICT in days.columns:
            days = days.observe(counted, *(_conflicts(day) for day in sorted(stale))).drop(CONFLICT)
        placed = days.withColumn("partition", days["day"])
        if key:  # one sorted file for each day
            placed = placed.repartition("partition").sortWithinPartitions("partition", *key)
        placed.write.partitionBy("partition").parquet(staging)
        outcomes = check(self._lake.frame(schema, sorted(store.staged(staging).values())), key, rules)
        if not key:
            conflicts = counted.get
            for day, outcome in outcomes.items():
                outcome.broken[CONFLICTS] = int(conflicts.get(day, 0))
        return outcomes

    def _fetch(
        self,
        store: TableStore,
        days: DataFrame,
        key: tuple[str, ...],
        rules: tuple[Rule, ...],
        staging: str,
    ) -> dict[str, Outcome]:
        """Few rows are judged where they are computed, and written from here: one query for all of it."""
        names = [name for name in days.columns if name != CONFLICT]
        rows = judged(days, rules).toArrow()
        outcomes = {}
        for day in pc.unique(rows["day"]).to_pylist():
            of_day = rows.filter(pc.equal(rows["day"], pa.scalar(day, pa.date32())))
            outcome = outcomes[day.isoformat()] = check_rows(of_day, names, key, rules)
            if CONFLICT in days.columns:
                outcome.broken[CONFLICTS] = pc.sum(of_day[CONFLICT].cast(pa.int64())).as_py()
            if key:
                of_day = of_day.sort_by([(name, "ascending") for name in key])
            store.stage(staging, day.isoformat(), of_day.select(names))
        return outcomes


def _once_each(by_day: ByDay) -> list[Entry]:
    return list({entry.path: entry for found in by_day.values() for entry in found}.values())


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def shaped(frame: DataFrame, dataset: Dataset) -> DataFrame:
    """The frame with the columns of the data set in their order; any other columns are a bug."""
    found = {column.name: column.dataType for column in frame.schema.fields}
    wanted = {column.name: column.dataType for column in dataset.schema.fields}
    if found != wanted:
        different = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        raise TypeError(f"{dataset.name} computes other columns than its schema says: {', '.join(different)}")
    return frame.select(*wanted)


def _stale(manifest: Manifest, inputs: Mapping[str, str]) -> dict[str, str]:
    """The days whose published rows were not made of these inputs, or were erased, with the inputs."""
    kept = manifest.partitions
    return {
        day: made
        for day, made in inputs.items()
        if day not in kept or kept[day].inputs != made or kept[day].erased
    }


def _conflicts(day: str) -> Column:
    """How many records of a day came with two contents."""
    return F.count_if(F.col(CONFLICT) & (F.col("day") == F.lit(day).cast("date"))).alias(day)


def _is_frozen(
    dataset: Dataset, day: str, manifests: Mapping[str, Mapping[str, Partition]], *, published: bool
) -> bool:
    """Whether a day stays as it was published since inputs of its own, or later ones, have been erased.

    Days before it may have been erased without that: they are of the past, as before the journal's first day.
    One that was never published is computed of whatever is left.
    """
    own = date.fromisoformat(day)
    used = [
        (other, partition.erased)
        for given in dataset.inputs
        for other, partition in manifests[given.table].items()
        if other in Days(own, own).widened(given)
    ]
    if published:
        return any(erased for other, erased in used if other >= day)
    return all(erased for _, erased in used)


def _silver_inputs(table: Table, contents: Mapping[str, str]) -> str:
    return fingerprint({"version": [SILVER_VERSION, table.version], "files": contents})


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
