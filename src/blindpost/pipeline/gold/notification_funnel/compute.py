"""Where the notifications of a day ended."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from blindpost.journal.schema import NOTIFICATION_STATES, TERMINAL_STATES


def compute(p_funnel: DataFrame) -> DataFrame:
    """One row per router and day: how many entered each state, how many ended, how many are left over."""

    def entered(state: str) -> Column:
        return F.coalesce(F.sum(F.when(F.col("state") == state, F.col("value"))), F.lit(0)).alias(state)

    ended = sum((F.col(state) for state in TERMINAL_STATES[1:]), F.col(TERMINAL_STATES[0]))
    return (
        p_funnel.groupBy(F.to_date(F.timestamp_seconds("minute_s")).alias("day"), "router")
        .agg(*(entered(state) for state in NOTIFICATION_STATES))
        .withColumn("ended", ended)
        .withColumn("open", F.col("received") - F.col("ended"))
    )
