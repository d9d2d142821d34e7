"""When everybody subscribed at once, how hard it was, and whether a restart explains it."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, DoubleType, IntegerType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.quality import Rule
from blindpost.pipeline.sums import GAUGE_HOURS
from blindpost.pipeline.types import columns

SUBSCRIBING = ("qSub", "ntfSub")
"""Queues that were subscribed one by one; a service needs one command for all its queues."""
TIMES_USUAL = 8
"""A minute is part of a storm above this many times the router's median minute of the day ..."""
LEAST_PER_MINUTE = 200
"""... and above this, so that a quiet router has none."""
RESTART_S = 900
"""A storm that begins this soon after a start of the router is explained by it."""


def compute(p_counters: DataFrame, gauge_hours: DataFrame, p_boots: DataFrame) -> DataFrame:
    """One row per storm. Minutes without a subscription are zeros: gauges say which minutes there were."""
    hours = gauge_hours.where(F.col("role") == "smp").groupBy("router", "hour_s")
    places = F.explode(F.sequence(F.lit(0), F.lit(59))).alias("place")
    written = (
        hours.agg(F.bit_or("minutes").alias("minutes"))
        .select("router", "hour_s", "minutes", places)
        .where(F.expr("bit_get(minutes, place) = 1"))
        .select("router", (F.col("hour_s") + 60 * F.col("place")).alias("minute_s"))
    )
    counted = (
        p_counters.where((F.col("role") == "smp") & F.col("name").isin(*SUBSCRIBING))
        .groupBy("router", "minute_s")
        .agg(F.sum("value").alias("subscribed"))
    )
    minutes = written.join(counted, ["router", "minute_s"], "full").select(
        F.to_date(F.timestamp_seconds("minute_s")).alias("day"),
        "router",
        "minute_s",
        F.coalesce("subscribed", F.lit(0)).alias("subscribed"),
    )
    usual = minutes.groupBy("day", "router").agg(F.median("subscribed").alias("usual_per_minute"))
    high = minutes.join(usual, ["day", "router"]).where(
        (F.col("subscribed") >= LEAST_PER_MINUTE)
        & (F.col("subscribed") > TIMES_USUAL * F.col("usual_per_minute"))
    )
    in_order = Window.partitionBy("day", "router").orderBy("minute_s")
    storms = (
        high.withColumn("run", F.col("minute_s") - 60 * F.row_number().over(in_order))
        .groupBy("day", "router", "run", "usual_per_minute")
        .agg(
            F.min("minute_s").alias("first_s"),
            F.count("*").cast("int").alias("minutes"),
            F.sum("subscribed").alias("subscribed"),
            F.max("subscribed").alias("peak_per_minute"),
        )
    )
    starts = p_boots.where(F.col("role") == "smp").select(F.col("router").alias("booted"), "started_s")
    soon = (F.col("router") == F.col("booted")) & F.col("started_s").between(
        F.col("first_s") - RESTART_S, F.col("first_s") + 60
    )
    return (
        storms.join(starts, soon, "left")
        .groupBy("day", "router", "first_s", "minutes", "subscribed", "peak_per_minute", "usual_per_minute")
        .agg(F.max("started_s").alias("restarted_s"))
        .select(
            "day",
            "router",
            "first_s",
            "minutes",
            "subscribed",
            "peak_per_minute",
            F.col("usual_per_minute").cast("double").alias("usual_per_minute"),
            F.when(F.col("restarted_s").isNull(), "unknown").otherwise("restart").alias("cause"),
            "restarted_s",
        )
    )


DATASET = Dataset(
    name="subscription_storms",
    title="When did far more queues than usual get subscribed, and was it after a restart?",
    schema=columns(
        ("day", DateType(), "The UTC day; a storm that goes on after midnight is one of each day."),
        ("router", StringType(), "The router's name."),
        ("first_s", LongType(), "The first minute of the storm, in Unix seconds."),
        ("minutes", IntegerType(), "How long it lasted, in minutes."),
        ("subscribed", LongType(), "Queues subscribed one by one in it."),
        ("peak_per_minute", LongType(), "Of these in the worst minute."),
        ("usual_per_minute", DoubleType(), "The router's median minute of the day."),
        ("cause", StringType(), "`restart` if the router had just started, else `unknown`."),
        ("restarted_s", LongType(), "When it had started, in Unix seconds."),
        nullable=("restarted_s",),
    ),
    key=("router", "first_s"),
    inputs=(Input("p_counters"), Input("p_gauges"), Input("p_boots", days_before=1)),
    compute=compute,
    sums=(GAUGE_HOURS,),
    rules=(
        Rule("peak fits", "peak_per_minute * minutes >= subscribed", "No minute is above the peak."),
        Rule("explained", "cause = 'restart'", "A storm without a restart: clients were cut off otherwise."),
    ),
    where="anywhere: sums only",
    size="1,440 minutes per router and day, about 100 rows each; 2 M rows a day for 20 routers",
    why_spark="it reads the same rows as the other tables of minutes, and a year of backfill at once",
)
