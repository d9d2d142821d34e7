"""What the jobs over counters share: sums of hours and days, one row per counter or one column.

Rows are summed by name and hour (`COUNTER_HOURS`, `GAUGE_HOURS`) before names become columns: a journal has a
row per minute and counter, and asking each of them for every name that is wanted would cost far more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def minutes_by(gauge_hours: DataFrame, keys: Sequence[str], name: str) -> DataFrame:
    """How many different minutes were written, by these columns."""
    hours = gauge_hours.groupBy(*keys, "hour_s").agg(F.bit_count(F.bit_or("minutes")).alias("each"))
    return hours.groupBy(*keys).agg(F.sum("each").alias(name))


def beside(counter_hours: DataFrame, role: str, names: Mapping[str, str]) -> DataFrame:
    """Sums of hours with a column for each of these counters of a role; null where there is none."""
    wanted = counter_hours.where((F.col("role") == role) & F.col("name").isin(*names.values()))
    return wanted.groupBy(*HOUR).agg(
        *(F.sum(F.when(F.col("name") == meter, F.col("value"))).alias(name) for name, meter in names.items())
    )
