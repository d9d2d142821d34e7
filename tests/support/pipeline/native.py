"""The sums once more, as Spark alone computes them: slower, and what the kernel must come to."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from blindpost.pipeline.sums import Sums


def native(sums: Sums, rows: DataFrame) -> DataFrame:
    """Each group of the rows of a silver table, with its day."""
    unit = 1_000_000 if sums.table.time.endswith("_us") else 1
    span = (F.floor(F.col(sums.table.time) / (sums.span_s * unit)) * sums.span_s).alias(sums.span)
    added = [F.count("*").alias("count"), *(F.sum(name).alias(name) for name in sums.added)]
    xored = [F.bit_xor(name).alias(name) for name in sums.xored]
    day = F.to_date(F.timestamp_seconds(sums.span)).alias("day")
    return rows.groupBy(*sums.keys, span).agg(*added, *xored).select("*", day)
