"""From the events of messages to the fate of each, and from fates to counts and percentiles."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

PAIR = ("role", "from_router", "to_router")
MESSAGE = (*PAIR, "connection", "number")
WITHIN_US = 86_400_000_000
"""Events farther than this from the sending of a message do not count for it."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SPANS = {
    "accept": ("sent", "accepted"),
    "deliver": ("sent", "delivered"),
    "ack": ("delivered", "acked"),
}
"""What is measured: from which event to which."""


def compute(l_messages: DataFrame) -> DataFrame:
    return _summed(_fates(l_messages))


def _fates(l_messages: DataFrame) -> DataFrame:
    """One row for each message: when it was sent, and which events came, each the first time.

    What came later shows that the earlier happened, even if its record is lost: an acknowledged message was
    delivered, and a delivered one was accepted. A message whose sending is not recorded is left out.
    """
    sent_us = F.min(F.when(F.col("event") == "sent", F.col("time_us"))).over(Window.partitionBy(*MESSAGE))
    near = F.abs(F.col("time_us") - F.col("sent_us")) < WITHIN_US
    fates = (
        l_messages.withColumn("sent_us", sent_us)
        .where(near)
        .groupBy(*MESSAGE, "sent_us")
        .agg(
            *(
                F.min(F.when(F.col("event") == event, F.col("time_us"))).alias(f"{event}_us")
                for event in ("accepted", "refused", "delivered", "acked", "lost")
            ),
            F.count_if(F.col("event") == "duplicate").alias("duplicates"),
        )
        .withColumns(
            {
                "day": F.to_date(F.timestamp_seconds(F.floor(F.col("sent_us") / 1_000_000))),
                "hour_s": F.floor(F.col("sent_us") / 3_600_000_000) * 3600,
                "acked": F.col("acked_us").isNotNull(),
            }
        )
    )
    fates = fates.withColumn("delivered", F.col("delivered_us").isNotNull() | F.col("acked"))
    fates = fates.withColumn("accepted", F.col("accepted_us").isNotNull() | F.col("delivered"))
    return fates.withColumn("lost", F.col("lost_us").isNotNull() & F.col("accepted") & ~F.col("acked"))


def _summed(fates: DataFrame) -> DataFrame:
    refused = F.col("refused_us").isNotNull() & ~F.col("accepted")
    pending = F.col("accepted") & ~F.col("acked") & ~F.col("lost")
    spans: list[Column] = []
    for name, (start, end) in SPANS.items():
        taken = F.col(f"{end}_us") - F.col(f"{start}_us")
        spans += [
            F.percentile(taken, quantile).alias(f"{name}_{which}_us") for which, quantile in QUANTILES.items()
        ]
        spans.append(F.max(taken).alias(f"{name}_max_us"))
    return fates.groupBy("day", "hour_s", *PAIR).agg(
        F.count("*").alias("sent"),
        F.count_if("accepted").alias("accepted"),
        F.count_if(refused).alias("refused"),
        F.count_if("delivered").alias("delivered"),
        F.count_if("acked").alias("acked"),
        F.count_if(pending).alias("pending"),
        F.count_if("lost").alias("lost"),
        F.sum("duplicates").alias("duplicates"),
        *spans,
    )
