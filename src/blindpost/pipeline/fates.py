"""What became of every message of a canary or a load test: one judgement for all tables that count them.

What came later shows that the earlier happened, even if its record is lost: an acknowledged message was
delivered, and a delivered one was accepted. A message whose sending is not recorded is left out.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from blindpost.journal.schema import INTEGRITY

MESSAGE = ("role", "from_router", "to_router", "connection", "number")
WAIT_US = 3_600_000_000
"""A message is judged this long after it was sent; what happens to it later changes nothing."""
WRONG = tuple(word for word in INTEGRITY if word not in ("", "ok", "duplicate"))
FATES = ("delivered", "refused", "lost", "pending")


def judged(l_messages: DataFrame) -> DataFrame:
    """One row per message: when each thing happened first, how it came, and its fate.

    `lost` are those that the canary gave up, and those with no further event while it kept writing (`said` is
    false then). Where the journal of the day on which its hour ends stops before that hour does, because it
    is still being written or the canary died, a message is `pending`.
    """

    def first(event: str) -> Column:
        return F.min(F.when(F.col("event") == event, F.col("time_us"))).alias(f"{event}_us")

    sent_us = F.min(F.when(F.col("event") == "sent", F.col("time_us"))).over(Window.partitionBy(*MESSAGE))
    messages = (
        l_messages.withColumn("deadline_us", sent_us + WAIT_US)
        .where(F.col("time_us") <= F.col("deadline_us"))
        .groupBy(*MESSAGE, "deadline_us")
        .agg(
            *(first(event) for event in ("sent", "accepted", "refused", "delivered", "acked", "lost")),
            F.count_if(F.col("event").isin("delivered", "duplicate")).alias("came"),
            *(F.bool_or(F.col("integrity") == word).alias(word) for word in WRONG),
            F.max("size").alias("size"),
            F.min(F.when(F.col("event") == "sent", F.col("router"))).alias("writer"),
        )
        .withColumn("judged_day", F.to_date(F.timestamp_micros("deadline_us")))
        .withColumn("came", F.greatest("came", F.when(F.col("acked_us").isNotNull(), 1).otherwise(0)))
    )
    ends = l_messages.groupBy(
        F.to_date(F.timestamp_micros("time_us")).alias("judged_day"), "role", F.col("router").alias("writer")
    ).agg(F.max("time_us").alias("end_us"))
    over = F.col("deadline_us") <= F.coalesce("end_us", F.lit(0))
    fate = (
        F.when(F.col("came") > 0, "delivered")
        .when(F.col("refused_us").isNotNull(), "refused")
        .when(F.col("lost_us").isNotNull() | over, "lost")
        .otherwise("pending")
    )
    taken = (F.col("accepted_us").isNotNull() | (F.col("came") > 0)) & (F.col("fate") != "refused")
    return (
        messages.join(F.broadcast(ends), ["judged_day", "role", "writer"], "left")
        .withColumn("fate", fate)
        .withColumn("said", F.col("lost_us").isNotNull())
        .withColumn("accepted", taken)
    )


def counted(fate: str) -> Column:
    """How many messages had this fate."""
    return F.count_if(F.col("fate") == fate).alias(fate)
