"""Whether every notification about a canary's message ended, once, and how soon."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from blindpost.journal.schema import TERMINAL_STATES

WAIT_US = 3_600_000_000
"""A notification is judged so long after it was received, on the day on which that time ends."""


def compute(l_notifications: DataFrame) -> DataFrame:
    """One row per notification router and day."""
    one = Window.partitionBy("router", "notification")
    deadline = F.min(F.when(F.col("state") == "received", F.col("time_us"))).over(one) + WAIT_US
    terminal = F.col("state").isin(*TERMINAL_STATES)
    notifications = (
        l_notifications.withColumn("deadline_us", deadline)
        .where(F.col("time_us") <= F.col("deadline_us"))
        .groupBy("router", "notification", "deadline_us")
        .agg(
            F.min("time_us").alias("first_us"),
            F.max("time_us").alias("last_us"),
            F.min(F.when(terminal, F.col("time_us"))).alias("ended_us"),
            F.count_if(terminal).alias("ends"),
            F.bool_or(F.col("state") == "accepted").alias("accepted"),
        )
        .withColumn("day", F.to_date(F.timestamp_micros("deadline_us")))
        .withColumn("took_ms", (F.col("ended_us") - (F.col("deadline_us") - WAIT_US)) / 1000)
    )
    days = l_notifications.groupBy(F.to_date(F.timestamp_micros("time_us")).alias("day"), "router").agg(
        F.max("time_us").alias("end_us")
    )
    over = F.col("deadline_us") <= F.coalesce("end_us", F.lit(0))
    accepted_ms = F.when(F.col("accepted"), F.col("took_ms"))
    return (
        notifications.join(F.broadcast(days), ["day", "router"], "left")
        .groupBy("day", "router")
        .agg(
            F.count("*").alias("received"),
            F.count_if(F.col("ends") == 1).alias("ended_once"),
            F.count_if(F.col("ends") > 1).alias("ended_twice"),
            F.count_if((F.col("ends") == 0) & over).alias("unfinished"),
            F.count_if((F.col("ends") == 0) & ~over).alias("pending"),
            F.count_if(F.col("accepted")).alias("accepted"),
            F.count_if(
                (F.col("first_us") < F.col("deadline_us") - WAIT_US)
                | ((F.col("ends") == 1) & (F.col("last_us") > F.col("ended_us")))
            ).alias("out_of_order"),
            F.percentile(accepted_ms, F.lit(0.5)).alias("accepted_ms_p50"),
            F.percentile(accepted_ms, F.lit(0.95)).alias("accepted_ms_p95"),
        )
    )
