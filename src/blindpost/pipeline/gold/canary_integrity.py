"""Whether what canaries sent has arrived, once, in order and unchanged."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.fates import FATES, WRONG, counted, judged
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.types import columns


def compute(l_messages: DataFrame) -> DataFrame:
    """One row per pair of routers and day on which messages were judged."""
    return (
        judged(l_messages.where(F.col("role") == "canary"))
        .groupBy(F.col("judged_day").alias("day"), "from_router", "to_router")
        .agg(
            F.count("*").alias("sent"),
            F.count_if("accepted").alias("accepted"),
            *map(counted, FATES),
            F.count_if((F.col("fate") == "lost") & F.col("accepted")).alias("lost_accepted"),
            F.count_if((F.col("fate") == "lost") & ~F.col("said")).alias("lost_unsaid"),
            F.count("acked_us").alias("acked"),
            F.sum(F.greatest(F.col("came") - 1, F.lit(0))).alias("duplicates"),
            *(F.count_if(F.col(word)).alias(word) for word in WRONG),
        )
    )


DATASET = Dataset(
    name="canary_integrity",
    title="What became of every message that our canaries sent through each pair of routers?",
    schema=columns(
        ("day", DateType(), "The UTC day on which the hour after it was sent ended."),
        ("from_router", StringType(), "Where the sender was connected."),
        ("to_router", StringType(), "Where the queue is."),
        ("sent", LongType(), "Messages sent."),
        ("accepted", LongType(), "Of these the router took: it said OK, or they arrived."),
        ("delivered", LongType(), "How many arrived within the hour."),
        ("refused", LongType(), "How many did not arrive because they were refused."),
        ("lost", LongType(), "How many nobody will see again."),
        ("pending", LongType(), "Those whose hour was not over when the journal of the day ended."),
        ("lost_accepted", LongType(), "Of the lost, those that had been accepted: a broken promise."),
        ("lost_unsaid", LongType(), "Of the lost, those that the canary itself had not reported."),
        ("acked", LongType(), "How many were acknowledged."),
        ("duplicates", LongType(), "How often a message came again."),
        *((word, LongType(), f"Messages that the recipient judged as {word}.") for word in WRONG),
    ),
    key=("from_router", "to_router"),
    inputs=(Input("l_messages", days_before=1, spills=1),),
    rows_of=("l_messages",),
    compute=compute,
    rules=(
        Rule(
            "adds up",
            "sent = delivered + refused + lost + pending",
            "Each message has one fate.",
            Breaking.STOPS,
        ),
        Rule("nothing lost", "lost_accepted = 0", "OK means that it will be delivered."),
        Rule("canary noticed", "lost_unsaid = 0", "What the canary did not report, its journal shows."),
        Rule("acked", "acked <= delivered", "Nothing is acknowledged that did not come."),
    ),
    where="where the lab's lake is: events of our own canaries, kept for 7 days",
    size="4 rows per message: 2.3 M a day for 20 routers, 10^8 to 10^9 in a load test",
    version=2,
    why_spark="all events of a message must meet: a shuffle of everything, larger than one machine's memory",
)
