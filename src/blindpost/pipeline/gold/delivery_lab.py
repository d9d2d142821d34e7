"""What load tests saw of a delivery service."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, DoubleType, IntegerType, LongType, StringType

from blindpost.journal.schema import DELIVERY_EVENTS
from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.quality import Rule
from blindpost.pipeline.types import columns

HOUR_US = 3_600_000_000


def compute(l_delivery: DataFrame) -> DataFrame:
    """One row per service and hour of the test."""
    hour = ((F.col("time_us") - F.col("time_us") % HOUR_US) / 1_000_000).cast("long")

    def age_ms(event: str) -> Column:
        return F.when(F.col("event") == event, F.col("age_us") / 1000)

    def quantile(event: str, part: float, name: str) -> Column:
        return F.percentile(age_ms(event), F.lit(part)).alias(name)

    return (
        l_delivery.withColumn("hour_s", hour)
        .groupBy(F.to_date(F.timestamp_seconds("hour_s")).alias("day"), "router", "hour_s")
        .agg(
            F.count_distinct("queue").alias("queues"),
            *(F.count_if(F.col("event") == event).alias(event) for event in DELIVERY_EVENTS),
            F.max("depth").alias("depth_max"),
            quantile("leased", 0.5, "leased_age_ms_p50"),
            quantile("leased", 0.95, "leased_age_ms_p95"),
            F.max(age_ms("leased")).alias("leased_age_ms_max"),
            quantile("woken", 0.5, "woken_ms_p50"),
            quantile("woken", 0.95, "woken_ms_p95"),
        )
    )


_TIMES = (
    ("leased_age_ms_p50", "Age of a payload when it was leased, median, in milliseconds."),
    ("leased_age_ms_p95", "The same, 95th percentile."),
    ("leased_age_ms_max", "The oldest."),
    ("woken_ms_p50", "How long a call had waited when it was woken, median, in milliseconds."),
    ("woken_ms_p95", "The same, 95th percentile."),
)

DATASET = Dataset(
    name="delivery_lab",
    title="Under a load test: how deep, how old, how often woken, and what became of the leases?",
    schema=columns(
        ("day", DateType(), "The UTC day."),
        ("router", StringType(), "The service's name."),
        ("hour_s", LongType(), "The start of the hour, in Unix seconds."),
        ("queues", LongType(), "Queues that something happened in."),
        *((event, LongType(), f"Events of the kind {event}.") for event in DELIVERY_EVENTS),
        ("depth_max", IntegerType(), "The deepest queue."),
        *((name, DoubleType(), words) for name, words in _TIMES),
        nullable=tuple(name for name, _ in _TIMES),
    ),
    key=("router", "hour_s"),
    inputs=(Input("l_delivery"),),
    rows_of=("l_delivery",),
    compute=compute,
    rules=(Rule("depth", "depth_max >= 0", "A queue is never less than empty."),),
    where="where the lab's lake is: events of load tests, kept for 7 days",
    size="3 to 5 rows per payload: 10^8 to 10^9 in a load test",
    why_spark="exact percentiles and distinct queues over more events than one machine's memory holds",
)
