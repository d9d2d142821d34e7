"""How fast and how surely our own messages arrive, for every pair of routers and every hour."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, DoubleType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.types import columns

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


_WHAT = {
    "accept": "from SEND to its OK",
    "deliver": "from SEND to the recipient",
    "ack": "from the recipient to the OK of its ACK",
}


def _spans() -> list[tuple[str, DataType, str]]:
    found: list[tuple[str, DataType, str]] = []
    for span in SPANS:
        found += [
            (f"{span}_{which}_us", DoubleType(), f"{int(share * 100)} % took no longer {_WHAT[span]}.")
            for which, share in QUANTILES.items()
        ]
        found.append((f"{span}_max_us", LongType(), f"The longest {_WHAT[span]}."))
    return found


DATASET = Dataset(
    name="delivery_slo",
    title="How long do messages take between each pair of routers, and what became of them?",
    schema=columns(
        ("day", DateType(), "The UTC day on which the messages were sent."),
        ("hour_s", LongType(), "The hour in which they were sent, in Unix seconds."),
        ("role", StringType(), "canary or load."),
        ("from_router", StringType(), "Where the senders are connected."),
        ("to_router", StringType(), "Where the queues are."),
        ("sent", LongType(), "Messages sent."),
        ("accepted", LongType(), "Of these the router took: it said OK, or they arrived."),
        ("refused", LongType(), "Of these the router did not take."),
        ("delivered", LongType(), "Of the accepted, how many arrived."),
        ("acked", LongType(), "Of these, how many were acknowledged."),
        ("pending", LongType(), "Accepted, not acknowledged yet, and their time is not over."),
        ("lost", LongType(), "Accepted, and their time was over before they were acknowledged."),
        ("duplicates", LongType(), "How often a message came again."),
        *_spans(),
        nullable=tuple(name for name, _, _ in _spans()),
    ),
    key=("hour_s", "role", "from_router", "to_router"),
    inputs=(Input("l_messages", days_before=1, days_after=1),),
    compute=compute,
    rules=(
        Rule(
            "balance",
            "accepted = acked + pending + lost",
            "Every accepted message has exactly one fate.",
            Breaking.STOPS,
        ),
        Rule(
            "funnel",
            "sent >= accepted + refused AND accepted >= delivered AND delivered >= acked",
            "Each stage holds at most what the one before it held.",
            Breaking.STOPS,
        ),
        Rule("nothing lost", "lost = 0", "A canary's message was accepted and did not arrive."),
        Rule(
            "nothing twice", "duplicates = 0", "A canary's message arrived again after it was acknowledged."
        ),
        Rule("time goes on", "least(accept_p50_us, deliver_p50_us, ack_p50_us) >= 0", "A clock went back."),
    ),
    where="anywhere: only the operator's own canaries and load tests",
    size="five events a message: 3 M a day for 20 routers and one message a minute; 10^9 in a load test",
    why_spark="all events of a message must come together, and a load test has 10^9",
)
