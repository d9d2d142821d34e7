"""Silver: every record once, with its day.

Files may repeat records (a file and its compaction, a file that was copied twice), come late and in any
order. A table without numbered records (sums of days) may be written again, corrected: of two rows with the
same key the one of the newer file stays. In the others two different rows with one key are a writer's fault;
the smaller one stays, so that the result depends on the rows only. Both are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from blindpost.journal.schema import Table, Tier
from blindpost.pipeline.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SILVER_VERSION = 1
REVISION, CONFLICT = "revision", "conflict"


def is_revised(table: Table) -> bool:
    """Whether its rows may be written again, corrected: a column `revision` then says which are newer."""
    return table.tier is Tier.PRODUCTION and "seq" not in table.by_name


def day_of(table: Table) -> Column:
    """The UTC day that a row is about."""
    seconds = F.col(table.time)
    if table.time.endswith("_us"):
        seconds = F.expr(f"{table.time} div 1000000")
    return F.to_date(F.timestamp_seconds(seconds))


def passed(table: Table, rows: DataFrame) -> DataFrame:
    """Rows of files that overlap no other: each is there once, and nothing contradicts it."""
    named = [F.col(field.name) for field in spark_schema(table).fields]
    return rows.select(*named, day_of(table).alias("day"), F.lit(False).alias(CONFLICT))


def silver(table: Table, rows: DataFrame) -> DataFrame:
    """Each record once."""
    return compared(table, rows).drop(CONFLICT)


def compared(table: Table, rows: DataFrame) -> DataFrame:
    """Rows of any files of a table, maybe with rows that silver has already, each once; and whether others
    with its key said something else.

    Spark finds the smaller of two records by sorting. It sorts by a hash of the key first, since keys begin
    alike and comparing them whole is most of the work; and rows are shuffled before anything is sorted, since
    hardly any duplicates would be found before that.
    """
    named = [F.col(field.name) for field in spark_schema(table).fields]
    rest = [column.name for column in table.columns if column.name not in table.key]
    if rest:
        content = F.xxhash64(*rest)
        kept = F.max(F.struct(REVISION, *rest)) if REVISION in rows.columns else F.min(F.struct(*rest))
        spread = rows.withColumn("spread", F.xxhash64(*table.key)).repartition("spread")
        same = spread.groupBy("spread", *table.key)
        differ = (F.min(content) != F.max(content)).alias(CONFLICT)
        once = same.agg(kept.alias("rest"), differ).select(*table.key, "rest.*", CONFLICT)
    else:
        once = rows.select(*table.key).distinct().withColumn(CONFLICT, F.lit(False))
    return once.select(*named, day_of(table).alias("day"), CONFLICT)
