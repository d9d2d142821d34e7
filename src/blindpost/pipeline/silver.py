"""Silver: every record once, with its day.

Files may repeat records (a file and its compaction, a file that was copied twice), come late and in any
order. Two rows with the same key that do not say the same are a fault of a writer; the smaller one stays, so
that the result depends on nothing but the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from blindpost.journal.schema import Table
from blindpost.pipeline.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SILVER_VERSION = 1


def day_of(table: Table) -> Column:
    """The UTC day that a row is about."""
    seconds = F.col(table.time)
    if table.time.endswith("_us"):
        seconds = F.expr(f"{table.time} div 1000000")
    return F.to_date(F.timestamp_seconds(seconds))


def silver(table: Table, rows: DataFrame) -> DataFrame:
    """Rows of any files of a table, maybe with rows that silver has already, each once.

    Spark finds the smaller of two records by sorting. A hash of the key comes first in it, since keys begin
    alike and comparing them whole is most of the work; and rows are brought together before anything is
    sorted, since hardly any of them meets its like earlier.
    """
    named = [F.col(field.name) for field in spark_schema(table).fields]
    rest = [column.name for column in table.columns if column.name not in table.key]
    if rest:
        spread = rows.withColumn("spread", F.xxhash64(*table.key)).repartition("spread")
        same = spread.groupBy("spread", *table.key)
        once = same.agg(F.min(F.struct(*rest)).alias("rest")).select(*table.key, "rest.*")
    else:
        once = rows.select(*table.key).distinct()
    return once.select(*named, day_of(table).alias("day"))
