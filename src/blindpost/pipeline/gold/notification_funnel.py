"""What became of notifications."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, LongType, StringType

from blindpost.journal.schema import NOTIFICATION_STATES, TERMINAL_STATES
from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.quality import Rule
from blindpost.pipeline.types import columns

UNKNOWN = "unknown"
"""The provider in files that do not say it."""


def compute(p_funnel: DataFrame) -> DataFrame:
    """One row per router, provider and day: how many entered each state, ended, and are left over."""

    def entered(state: str) -> Column:
        return F.coalesce(F.sum(F.when(F.col("state") == state, F.col("value"))), F.lit(0)).alias(state)

    ended = sum((F.col(state) for state in TERMINAL_STATES[1:]), F.col(TERMINAL_STATES[0]))
    return (
        p_funnel.groupBy(
            F.to_date(F.timestamp_seconds("minute_s")).alias("day"),
            "router",
            F.coalesce("provider", F.lit(UNKNOWN)).alias("provider"),
        )
        .agg(*(entered(state) for state in NOTIFICATION_STATES))
        .withColumn("ended", ended)
        .withColumn("open", F.col("received") - F.col("ended"))
    )


DATASET = Dataset(
    name="notification_funnel",
    title="How many notifications came, how far did they get, and where did they end?",
    schema=columns(
        ("day", DateType(), "The UTC day."),
        ("router", StringType(), "The notification router's name."),
        ("provider", StringType(), "apns, webpush, test, none (no device of ours), or unknown in old files."),
        *(
            (state, LongType(), f"How many entered the state {state}{_terminal}.")
            for state in NOTIFICATION_STATES
            for _terminal in [", which is terminal" if state in TERMINAL_STATES else ""]
        ),
        ("ended", LongType(), "How many entered a terminal state."),
        ("open", LongType(), "Received and not ended: under way at midnight, or forgotten."),
    ),
    key=("router", "provider"),
    inputs=(Input("p_funnel"),),
    rows_of=("p_funnel",),
    compute=compute,
    rules=(
        Rule(
            "funnel narrows",
            "stored <= received AND pushed <= stored + retried AND accepted <= pushed",
            "Nothing is stored, pushed or accepted that was not received.",
        ),
        Rule("all end", "open = 0", "Each notification ends in exactly one terminal state."),
    ),
    where="anywhere: sums only",
    size="15 to 60 rows per router and minute",
    version=2,
    why_spark="a year of minutes of a fleet is 10^9 rows, and a backfill reads all of them",
)
