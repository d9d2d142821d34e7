"""Minutes in which far more queues are subscribed than usual, put together to storms."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

SUBSCRIBING = ("qSub", "ntfSub")
"""Queues that were subscribed one by one; a service takes one command for all of its own."""
TIMES_USUAL = 8
"""A minute is part of a storm above this many times the router's median minute of the day ..."""
LEAST_PER_MINUTE = 200
"""... and above this, so that a quiet router has none."""
RESTART_S = 900
"""A storm that begins so soon after a start of the router is explained by it."""


def compute(p_counters: DataFrame, p_gauges: DataFrame, p_boots: DataFrame) -> DataFrame:
    """One row per storm. Minutes without a subscription are zeros: gauges say which minutes there were."""
    written = p_gauges.where(F.col("role") == "smp").select("router", "minute_s").distinct()
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
