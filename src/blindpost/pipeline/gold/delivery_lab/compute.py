"""What a load test saw of a delivery service: depth, age, wake-ups and leases, exactly."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from blindpost.journal.schema import DELIVERY_EVENTS

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
