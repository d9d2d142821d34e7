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
    others = [F.bit_xor(name).alias(name) for name in sums.xored]
    if sums.level is not None:
        last = F.max(F.struct(sums.table.time, "seq", sums.level))
        named = zip(("last_s", "last_seq", "last"), (sums.table.time, "seq", sums.level), strict=True)
        others += [last[of].alias(name) for name, of in named]
        others += [F.max(sums.level).alias("greatest"), F.sum(sums.level).alias("total")]
        minutes = F.expr(f"shiftleft(1L, cast({sums.table.time} div 60 % 60 AS int))")
        others.append(F.bit_or(minutes).alias("minutes"))
    day = F.to_date(F.timestamp_seconds(sums.span)).alias("day")
    return rows.groupBy(*sums.keys, span).agg(*added, *others).select("*", day)
