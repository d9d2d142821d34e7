"""Whether the notifications of canaries ended, each exactly once."""

from __future__ import annotations

from pyspark.sql.types import DateType, DoubleType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.gold.notification_canaries.compute import compute
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.types import columns

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
    inputs=(Input("l_notifications", days_before=1),),
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
    why_spark="a load test's events are grouped by notification, which shuffles all of them",
)
