"""What the jobs over counters share: sums of hours and days, one row per counter or one column.

Rows are summed by name before names become columns: a journal has a row per minute and counter, and asking
each of them for every name that is wanted would cost far more than the sums.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

HOUR = ("day", "router", "hour_s")


def hour_of(column: str) -> Column:
    """The start of the hour of a time in Unix seconds."""
    return F.col(column) - F.col(column) % 3600


def since_start(levels: DataFrame, p_boots: DataFrame) -> DataFrame:
    """Levels with `started_s` of their boot, to order two boots within a minute; 0 if it began earlier."""
    starts = p_boots.groupBy("router", "boot").agg(F.max("started_s").alias("started_s"))
    joined = levels.join(F.broadcast(starts), ["router", "boot"], "left")
    return joined.withColumn("started_s", F.coalesce("started_s", F.lit(0)))


def summed(p_counters: DataFrame, *keys: str) -> DataFrame:
    """The sum of each counter by these keys."""
    return p_counters.groupBy(*keys, "name").agg(F.sum("value").alias("value"))


def hours(p_counters: DataFrame) -> DataFrame:
    """The sum of each counter of each router and hour."""
    return summed(p_counters.withColumn("hour_s", hour_of("minute_s")), *HOUR)


def beside(sums: DataFrame, names: Mapping[str, str]) -> DataFrame:
    """Sums of hours with a column for each of these counters; null where there is none."""
    return sums.groupBy(*HOUR).agg(
        *(F.sum(F.when(F.col("name") == meter, F.col("value"))).alias(name) for name, meter in names.items())
    )
