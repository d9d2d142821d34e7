"""How fast and how surely our own messages arrive, for every pair of routers and every hour."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, DoubleType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.fates import FATES, counted, judged
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.types import columns

PAIR = ("role", "from_router", "to_router")
PROMISE_US = 1_000_000
"""What we promise: of a hundred canaries, at most one takes longer."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SPANS = {
    "accept": ("sent", "accepted"),
    "deliver": ("sent", "delivered"),
    "ack": ("delivered", "acked"),
}
"""What is measured: from which event to which."""


def compute(l_messages: DataFrame) -> DataFrame:
    """One row per pair of routers and hour in which messages were sent."""
    spans: list[Column] = []
    for name, (start, end) in SPANS.items():
        taken = F.col(f"{end}_us") - F.col(f"{start}_us")
        spans += [
            F.percentile(taken, quantile).alias(f"{name}_{which}_us") for which, quantile in QUANTILES.items()
        ]
        spans.append(F.max(taken).alias(f"{name}_max_us"))
    sent_s = F.expr("sent_us div 1000000")
    return (
        judged(l_messages)
        .withColumns({"day": F.to_date(F.timestamp_seconds(sent_s)), "hour_s": sent_s - sent_s % 3600})
        .groupBy("day", "hour_s", *PAIR)
        .agg(
            F.count("*").alias("sent"),
            F.count_if("accepted").alias("accepted"),
            *map(counted, FATES),
            F.count("acked_us").alias("acked"),
            F.count_if(F.col("delivered_us") - F.col("sent_us") > PROMISE_US).alias("late"),
            F.sum(F.greatest(F.col("came") - 1, F.lit(0))).alias("duplicates"),
            *spans,
        )
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
        ("delivered", LongType(), "How many arrived within an hour."),
        ("refused", LongType(), "How many did not arrive because they were refused."),
        ("lost", LongType(), "How many nobody will see again."),
        ("pending", LongType(), "Those whose hour was not over when the journal of that day ended."),
        ("acked", LongType(), "How many were acknowledged."),
        ("late", LongType(), f"How many of the delivered took longer than {PROMISE_US / 1e6:g} s."),
        ("duplicates", LongType(), "How often a message came again."),
        *_spans(),
        nullable=tuple(name for name, _, _ in _spans()),
    ),
    key=("hour_s", "role", "from_router", "to_router"),
    inputs=(Input("l_messages", days_before=1, days_after=1),),
    rows_of=("l_messages",),
    compute=compute,
    rules=(
        Rule(
            "balance",
            "sent = delivered + refused + lost + pending",
            "Every message has exactly one fate.",
            Breaking.STOPS,
        ),
        Rule(
            "funnel",
            "sent >= accepted + refused AND accepted >= delivered AND delivered >= acked",
            "Each stage holds at most what the one before it held.",
            Breaking.STOPS,
        ),
        Rule("nothing lost", "lost = 0", "A canary's message did not arrive."),
        Rule("nothing twice", "duplicates = 0", "A canary's message arrived again."),
        Rule("time goes on", "least(accept_p50_us, deliver_p50_us, ack_p50_us) >= 0", "A clock went back."),
    ),
    where="anywhere: only the operator's own canaries and load tests",
    size="five events a message: 3 M a day for 20 routers and one message a minute; 10^9 in a load test",
    version=2,
    why_spark="all events of a message must come together, and a load test has 10^9",
)
