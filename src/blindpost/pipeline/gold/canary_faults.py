"""Each message of a canary that was lost, came twice, or came wrong."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.fates import WRONG, judged
from blindpost.pipeline.quality import Rule
from blindpost.pipeline.types import columns


def compute(l_messages: DataFrame) -> DataFrame:
    """One row per message and fault; how far a lost one came says where to look."""

    def named(condition: Column, name: str) -> Column:
        return F.when(condition, F.lit(name))

    faults = F.array_compact(
        F.array(
            *(named(F.col("fate") == name, name) for name in ("lost", "refused")),
            named(F.col("came") > 1, "duplicate"),
            *(named(F.col(word), word) for word in WRONG),
        )
    )
    stage = (
        F.when(F.col("acked_us").isNotNull(), "acked")
        .when(F.col("came") > 0, "delivered")
        .when(F.col("accepted_us").isNotNull(), "accepted")
        .when(F.col("refused_us").isNotNull(), "refused")
        .otherwise("sent")
    )
    return judged(l_messages.where(F.col("role") == "canary")).select(
        F.col("judged_day").alias("day"),
        "from_router",
        "to_router",
        "number",
        "sent_us",
        F.explode(faults).alias("fault"),
        stage.alias("stage"),
        "size",
    )


DATASET = Dataset(
    name="canary_faults",
    title="Which messages of our canaries went wrong, and how far did they come?",
    schema=columns(
        ("day", DateType(), "The UTC day on which the hour after it was sent ended."),
        ("from_router", StringType(), "Where the sender was connected."),
        ("to_router", StringType(), "Where the queue is."),
        ("number", LongType(), "Number of the message in its connection."),
        ("sent_us", LongType(), "When it was sent, in Unix microseconds."),
        ("fault", StringType(), "lost, refused, duplicate, or what the recipient said of its integrity."),
        ("stage", StringType(), "How far it came: sent, refused, accepted, delivered, acked."),
        ("size", IntegerType(), "Its bytes."),
    ),
    key=("from_router", "to_router", "number", "sent_us", "fault"),
    inputs=(Input("l_messages", days_before=1, spills=1),),
    rows_of=("l_messages",),
    compute=compute,
    rules=(Rule("kept promise", "fault <> 'lost' OR stage = 'sent'", "OK means that it will be delivered."),),
    where="where the lab's lake is: events of our own canaries, kept for 7 days",
    size="as canary_integrity; its result has a row per fault only",
    version=2,
    why_spark="as canary_integrity, whose function it shares",
)
