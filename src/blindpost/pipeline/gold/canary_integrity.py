"""Whether what canaries sent has arrived, once, in order and unchanged."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, LongType, StringType

from blindpost.journal.schema import INTEGRITY
from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.types import columns

WAIT_US = 3_600_000_000
"""A message is judged so long after it was sent, on the day on which that time ends: a day then never depends
on the days after it."""
WRONG = tuple(word for word in INTEGRITY if word not in ("", "ok", "duplicate"))


def judged(l_messages: DataFrame) -> DataFrame:
    """One row per message: when each thing happened first, how it came, and its fate.

    `lost` are those that the canary gave up, and those that nobody heard of again (`said` is false then).
    Where the journal of the day ends before a message's time does, it is `pending`.
    """
    message = Window.partitionBy("connection", "number")

    def first(event: str) -> Column:
        return F.min(F.when(F.col("event") == event, F.col("time_us"))).alias(f"{event}_us")

    events = l_messages.where(F.col("role") == "canary")
    deadline = F.min(F.when(F.col("event") == "sent", F.col("time_us"))).over(message) + WAIT_US
    messages = (
        events.withColumn("deadline_us", deadline)
        .where(F.col("time_us") <= F.col("deadline_us"))
        .groupBy("connection", "number", "deadline_us")
        .agg(
            *(first(event) for event in ("sent", "accepted", "refused", "delivered", "acked", "lost")),
            F.count_if(F.col("event").isin("delivered", "duplicate")).alias("came"),
            *(F.bool_or(F.col("integrity") == word).alias(word) for word in WRONG),
            F.min("from_router").alias("from_router"),
            F.min("to_router").alias("to_router"),
            F.max("size").alias("size"),
            F.min(F.when(F.col("event") == "sent", F.col("router"))).alias("writer"),
        )
        .withColumn("day", F.to_date(F.timestamp_micros("deadline_us")))
    )
    ends = events.groupBy(
        F.to_date(F.timestamp_micros("time_us")).alias("day"), F.col("router").alias("writer")
    ).agg(F.max("time_us").alias("end_us"))
    over = F.col("deadline_us") <= F.coalesce("end_us", F.lit(0))
    fate = (
        F.when(F.col("came") > 0, "delivered")
        .when(F.col("refused_us").isNotNull(), "refused")
        .when(F.col("lost_us").isNotNull() | over, "lost")
        .otherwise("pending")
    )
    return (
        messages.join(F.broadcast(ends), ["day", "writer"], "left")
        .withColumn("fate", fate)
        .withColumn("said", F.col("lost_us").isNotNull())
    )


def compute(l_messages: DataFrame) -> DataFrame:
    """One row per pair of routers and day."""

    def fate(name: str) -> Column:
        return F.count_if(F.col("fate") == name).alias(name)

    return (
        judged(l_messages)
        .groupBy("day", "from_router", "to_router")
        .agg(
            F.count("*").alias("sent"),
            F.count("accepted_us").alias("accepted"),
            *(fate(name) for name in ("delivered", "refused", "lost", "pending")),
            F.count_if((F.col("fate") == "lost") & F.col("accepted_us").isNotNull()).alias("lost_accepted"),
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
        ("accepted", LongType(), "Of these, how many the router answered with OK."),
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
    inputs=(Input("l_messages", days_before=1),),
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
    why_spark="all events of a message must meet: a shuffle of everything, larger than one machine's memory",
)
