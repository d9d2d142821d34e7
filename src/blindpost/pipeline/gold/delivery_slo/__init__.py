"""How fast and how surely our own messages arrive, for every pair of routers and every hour."""

from __future__ import annotations

from pyspark.sql.types import DataType, DateType, DoubleType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.gold.delivery_slo.compute import QUANTILES, SPANS, compute
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.types import columns

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
