"""How a delivery service fares, hour by hour."""

from __future__ import annotations

import math

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, DoubleType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.meters import HOUR, beside, hour_of, since_start
from blindpost.pipeline.quality import Rule
from blindpost.pipeline.sums import COUNTER_HOURS, GAUGE_HOURS
from blindpost.pipeline.types import columns

COUNTERS = (
    "enqueued",
    "handed_out",
    "finished",
    "acknowledged",
    "put_back",
    "displaced",
    "refused_full",
    "waits",
    "wakes",
    "waits_expired",
    "waits_canceled",
)
QUANTILES = {"wait_s_p50": 0.5, "wait_s_p95": 0.95}


def compute(
    counter_hours: DataFrame, gauge_hours: DataFrame, p_histograms: DataFrame, p_boots: DataFrame
) -> DataFrame:
    """One row per service and hour in which it wrote anything."""
    counted = beside(counter_hours, "ds", {name: name for name in COUNTERS})

    def of(name: str, column: str) -> Column:
        return F.when(F.col("name") == name, F.col(column))

    wanted = gauge_hours.where((F.col("role") == "ds") & F.col("name").isin("payloads", "in_hand", "waiting"))
    last = F.when(F.col("name") == "payloads", F.struct("last_s", "started_s", "boot", "last_seq"))
    levels = (
        since_start(wanted, p_boots)
        .groupBy(*HOUR)
        .agg(
            F.max(of("payloads", "greatest")).alias("depth_max"),
            (F.sum(of("payloads", "total")) / F.sum(of("payloads", "count"))).alias("depth_mean"),
            F.max_by(of("payloads", "last"), last).alias("depth_last"),
            F.max(of("in_hand", "greatest")).alias("leases_max"),
            F.max(of("waiting", "greatest")).alias("waiting_max"),
        )
    )
    joined = levels.join(counted, list(HOUR), "full").join(_waited(p_histograms), list(HOUR), "left")
    zero = F.lit(0).cast("long")
    return joined.select(
        *HOUR,
        *(F.coalesce(name, zero).alias(name) for name in COUNTERS),
        "depth_last",
        "depth_mean",
        "depth_max",
        "leases_max",
        "waiting_max",
        F.coalesce("waits_answered", zero).alias("waits_answered"),
        *QUANTILES,
    )


def _waited(p_histograms: DataFrame) -> DataFrame:
    """Quantiles of waiting times: the bound of the bucket that holds them; above all bounds it is infinite.

    Buckets are added up by their bounds, so that versions with other bounds can be mixed.
    """
    above = F.array(F.lit(math.inf))
    buckets = p_histograms.where(F.col("name") == "wait_s").select(
        "role",
        "router",
        "minute_s",
        F.explode(
            F.arrays_zip(F.concat("bounds", above).alias("bound"), F.col("counts").alias("count"))
        ).alias("bucket"),
    )
    summed = (
        buckets.where(F.col("role") == "ds")
        .withColumn("hour_s", hour_of("minute_s"))
        .withColumn("day", F.to_date(F.timestamp_seconds("hour_s")))
        .groupBy(*HOUR, F.col("bucket.bound").alias("bound"))
        .agg(F.sum("bucket.count").alias("count"))
    )
    upwards = Window.partitionBy(*HOUR).orderBy("bound").rowsBetween(Window.unboundedPreceding, 0)
    below = summed.withColumn("below", F.sum("count").over(upwards)).withColumn(
        "all", F.sum("count").over(Window.partitionBy(*HOUR))
    )

    def quantile(name: str, part: float) -> Column:
        reached = (F.col("all") > 0) & (F.col("below") >= F.col("all") * part)
        return F.min(F.when(reached, F.col("bound"))).alias(name)

    return below.groupBy(*HOUR).agg(
        F.max("all").alias("waits_answered"), *(quantile(name, part) for name, part in QUANTILES.items())
    )


_WORDS = {
    "enqueued": "Payloads that came.",
    "handed_out": "Payloads given to callers, again after a lease that ended counted again.",
    "finished": "Payloads that left because their answer was finished.",
    "acknowledged": "Payloads that left because they were acknowledged.",
    "put_back": "Leases that were given back.",
    "displaced": "Leases that ended because another caller came after their time.",
    "refused_full": "Payloads refused because a bound was reached.",
    "waits": "Calls that began to wait.",
    "wakes": "Times a waiting call was looked at again because something came.",
    "waits_expired": "Waits that ended without anything.",
    "waits_canceled": "Waits whose caller went away.",
}
_LEVELS = ("depth_last", "depth_mean", "depth_max", "leases_max", "waiting_max")
_TIMES = ("wait_s_p50", "wait_s_p95")

DATASET = Dataset(
    name="delivery_service",
    title="How deep are the delivery service's queues, and are its callers woken when something comes?",
    schema=columns(
        ("day", DateType(), "The UTC day."),
        ("router", StringType(), "The service's name."),
        ("hour_s", LongType(), "The start of the hour, in Unix seconds."),
        *((name, LongType(), _WORDS[name]) for name in COUNTERS),
        ("depth_last", DoubleType(), "Payloads stored at the end of the hour."),
        ("depth_mean", DoubleType(), "The mean over its minutes."),
        ("depth_max", DoubleType(), "The most at the end of a minute."),
        ("leases_max", DoubleType(), "The most payloads in callers' hands at the end of a minute."),
        ("waiting_max", DoubleType(), "The most waiting calls at the end of a minute."),
        ("waits_answered", LongType(), "Waits that ended with payloads."),
        ("wait_s_p50", DoubleType(), "How long they took: upper bound of the median's bucket, in seconds."),
        ("wait_s_p95", DoubleType(), "The same for the 95th percentile; infinite above all bounds."),
        nullable=(*_LEVELS, *_TIMES),
    ),
    key=("router", "hour_s"),
    inputs=(Input("p_counters"), Input("p_gauges"), Input("p_histograms"), Input("p_boots")),
    compute=compute,
    sums=(COUNTER_HOURS, GAUGE_HOURS),
    rules=(
        Rule(
            "leaves once",
            "acknowledged + finished <= handed_out + depth_max",
            "What leaves was handed out in this hour, or was in somebody's hands before it.",
        ),
    ),
    where="anywhere: sums only",
    size="about 15 rows per service and minute, among the counters of all servers",
    why_spark="it reads the same rows as the other tables of minutes, and a year of backfill at once",
    version=3,
)
