"""Whether the notifications of canaries ended, each exactly once."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, DoubleType, LongType, StringType

from blindpost.journal.schema import TERMINAL_STATES
from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.types import columns

WAIT_US = 3_600_000_000
"""A notification is judged this long after it was received, on the day on which that time ends."""


def compute(l_notifications: DataFrame) -> DataFrame:
    """One row per notification router and day."""
    one = Window.partitionBy("router", "boot", "notification")
    deadline = F.min(F.when(F.col("state") == "received", F.col("time_us"))).over(one) + WAIT_US
    terminal = F.col("state").isin(*TERMINAL_STATES)
    notifications = (
        l_notifications.withColumn("deadline_us", deadline)
        .where(F.col("time_us") <= F.col("deadline_us"))
        .groupBy("router", "boot", "notification", "deadline_us")
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
    # A restart forgets the numbers: what was under way then is pending, not unfinished.
    day = F.to_date(F.timestamp_micros("time_us")).alias("day")
    days = l_notifications.groupBy(day, "router", "boot").agg(F.max("time_us").alias("end_us"))
    over = F.col("deadline_us") <= F.coalesce("end_us", F.lit(0))
    accepted_ms = F.when(F.col("accepted"), F.col("took_ms"))
    return (
        notifications.join(F.broadcast(days), ["day", "router", "boot"], "left")
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


DATASET = Dataset(
    name="notification_canaries",
    title="Did every notification of our own canaries reach exactly one terminal state, and how soon?",
    schema=columns(
        ("day", DateType(), "The UTC day on which the hour after it was received ended."),
        ("router", StringType(), "The notification router's name."),
        ("received", LongType(), "How many were received."),
        ("ended_once", LongType(), "How many entered one terminal state within the hour."),
        ("ended_twice", LongType(), "How many entered more than one."),
        ("unfinished", LongType(), "How many entered none."),
        ("pending", LongType(), "Those whose hour was not over when the journal of the day ended."),
        ("accepted", LongType(), "How many the provider accepted."),
        ("out_of_order", LongType(), "How many did something before they came or after they had ended."),
        ("accepted_ms_p50", DoubleType(), "From receipt to acceptance, median, in milliseconds."),
        ("accepted_ms_p95", DoubleType(), "The same, 95th percentile."),
        nullable=("accepted_ms_p50", "accepted_ms_p95"),
    ),
    key=("router",),
    inputs=(Input("l_notifications", days_before=1, spills=1),),
    rows_of=("l_notifications",),
    compute=compute,
    rules=(
        Rule(
            "adds up",
            "received = ended_once + ended_twice + unfinished + pending",
            "Each is counted once.",
            Breaking.STOPS,
        ),
        Rule("each ends", "unfinished = 0 AND ended_twice = 0", "Each ends in exactly one terminal state."),
        Rule("in order", "out_of_order = 0", "Nothing happens before receipt or after the end."),
    ),
    where="where the lab's lake is: events of our own canaries, kept for 7 days",
    size="4 rows per notification of a canary; 10^8 and more in a load test",
    version=2,
    why_spark="a load test's events are grouped by notification, which shuffles all of them",
)
