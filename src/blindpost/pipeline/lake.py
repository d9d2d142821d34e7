"""Where everything is: the journal that is read, the lake that is written, and the trust zone inside it.

What comes from tier S (queue state, and what names queues) is kept below the zone's folder and nowhere else;
the rest holds sums only and may leave.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from blindpost.journal.schema import TABLES, Table, Tier
from blindpost.pipeline.dataset import Dataset
from blindpost.pipeline.delta import follow_manifest
from blindpost.pipeline.errors import damage_explained
from blindpost.pipeline.files import Files, join, literal, local_path, open_root
from blindpost.pipeline.ledger import Ledger
from blindpost.pipeline.publish import TableStore
from blindpost.pipeline.settings import Keep, Settings
from blindpost.pipeline.sizing import SMALL_ROWS, planned_small
from blindpost.pipeline.sums import Sums, merged, of_files, summed, with_day
from blindpost.pipeline.types import arrow_schema, silver_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ZONE = "zone"
KEEP = "keep.json"


class Lake:
    """The tables of one journal. `zone` is a folder inside the lake unless another is named.

    `clock` says what today is: what is from the future, what is silent and what is past its retention.
    """

    def __init__(
        self,
        spark: SparkSession,
        journal: str,
        out: str,
        zone: str | None = None,
        settings: Settings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.spark = spark
        self.settings = Settings() if settings is None else settings
        self.clock = clock
        self.small = False
        self._sums: dict[tuple[str, tuple[str, ...]], DataFrame] = {}
        self.journal_files, self.journal = open_root(spark, journal)
        self.files, self.out = open_root(spark, out)
        self._zone_files, self.zone = open_root(spark, join(out, ZONE) if zone is None else zone)
        self.ledger = Ledger(self.files, self.out)

    @property
    def zone_is_closed(self) -> bool:
        """Whether this program may not enter the zone; then it can read the other tables only."""
        return self._zone_files.is_closed(self.zone)

    @property
    def keep(self) -> Keep:
        """How long what is kept: as the settings say, else as the last run was told, else as usual."""
        if self.settings.keep is not None:
            return self.settings.keep
        place = join(self.out, KEEP)
        content = self.files.read(place)
        with damage_explained(place):
            return Keep() if content is None else Keep(**json.loads(content))

    def remember_keep(self) -> None:
        """For runs that are not told: they must not erase what this one is told to keep."""
        if self.settings.keep is not None:
            self.files.replace(join(self.out, KEEP), json.dumps(asdict(self.settings.keep)).encode())

    def files_of(self, table: Table) -> Files:
        """Where the rows of a silver table are."""
        return self._zone_files if table.tier is Tier.STATE else self.files

    def silver_store(self, table: Table) -> TableStore:
        if table.tier is Tier.STATE:
            return TableStore(self._zone_files, self.zone, "silver", table.name, shown=False)
        return TableStore(self.files, self.out, "silver", table.name, shown=False)

    def gold_store(self, dataset: Dataset) -> TableStore:
        if dataset.tier is Tier.STATE:
            return TableStore(self._zone_files, self.zone, "results", dataset.name, shown=True)
        return TableStore(self.files, self.out, "gold", dataset.name, shown=True)

    def silver(self, name: str, days: Iterable[str] | None = None) -> DataFrame:
        """The rows of a silver table that count now."""
        table = TABLES[name]
        return self.frame(silver_schema(table), self.silver_store(table).paths(days))

    def few(self, name: str, days: Iterable[str], columns: list[str]) -> pa.Table | None:
        """Columns of a silver table, here and without Spark; None if they are too many for that."""
        table = TABLES[name]
        store, files = self.silver_store(table), self.files_of(table)
        partitions, wanted = store.current().partitions, set(days)
        if sum(kept.rows for day, kept in partitions.items() if day in wanted) > SMALL_ROWS:
            return None
        contents = (files.read(path) for path in store.paths(wanted))
        parts = [
            pq.read_table(pa.BufferReader(content), columns=columns)
            for content in contents
            if content is not None
        ]
        return pa.concat_tables(parts) if parts else arrow_schema(table).empty_table().select(columns)

    def summed(self, sums: Sums, days: Iterable[str] | None = None) -> DataFrame:
        """Sums over the rows of a silver table that count now."""
        paths = self.silver_store(sums.table).paths(days)
        if paths and not self.small:
            return summed(self.spark, sums, paths)
        known = sums.name, tuple(paths)
        if known not in self._sums:
            rows = with_day(sums, merged(sums, list(of_files(sums, self._sources(sums, paths)))))
            self._sums[known] = self.spark.createDataFrame(rows)
        return self._sums[known]

    def _sources(self, sums: Sums, paths: Iterable[str]) -> Iterator[str | bytes]:
        """Files as this machine can read them: by their paths, else their contents."""
        files = self.files_of(sums.table)
        for path in paths:
            if (local := local_path(path)) is not None:
                yield local
            elif (content := files.read(path)) is not None:
                yield content

    def gold(self, dataset: Dataset, days: Iterable[str] | None = None) -> DataFrame:
        """The rows of a published table that count now."""
        return self.frame(dataset.schema, self.gold_store(dataset).paths(days))

    def rows(self, dataset: Dataset, days: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """The same rows, here and without Spark: those of a published table are few."""
        files = self._zone_files if dataset.tier is Tier.STATE else self.files
        found: list[dict[str, Any]] = []
        for path in self.gold_store(dataset).paths(days):
            if (content := files.read(path)) is not None:
                found += pq.read_table(pa.BufferReader(content)).to_pylist()
        return found

    def frame(self, schema: StructType, paths: list[str]) -> DataFrame:
        """The rows of these files, none of which need be there; in one task where there is little to do."""
        if not paths:
            return self.spark.createDataFrame([], schema)
        rows = self.spark.read.schema(schema).parquet(*map(literal, paths))
        return rows.coalesce(1) if self.small else rows

    def logged(
        self, tables: Iterable[str], datasets: Iterable[Dataset]
    ) -> list[tuple[TableStore, StructType]]:
        """Those of these silver and gold tables that can have a Delta log."""
        if find_spec("deltalake") is None:
            return []
        stores = [(self.silver_store(TABLES[name]), silver_schema(TABLES[name])) for name in tables]
        stores += [(self.gold_store(one), one.schema) for one in datasets]
        return [(store, schema) for store, schema in stores if store.delta_root is not None]

    def write_log(self, store: TableStore, schema: StructType) -> None:
        """Bring a table's Delta log up to date."""
        if store.delta_root is not None:
            follow_manifest(store.delta_root, store.name, schema, store.current().partitions)

    @contextlib.contextmanager
    def sized(self, rows: int) -> Iterator[None]:
        """Plan for so many rows."""
        self.small = rows <= SMALL_ROWS
        try:
            with planned_small(self.spark) if self.small else contextlib.nullcontext():
                yield
        finally:
            self.small = False
            self._sums.clear()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Only one run at a time; what a killed run left half-written is removed."""
        self._zone_files.make_private(self.zone)
        with self.files.locked(self.out), self._zone_files.locked(self.zone):
            self.files.remove(join(self.out, "staging"))
            self._zone_files.remove(join(self.zone, "staging"))
            yield
