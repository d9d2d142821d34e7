"""How device tokens changed their state, and why they became invalid."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DateType, LongType, StringType

from blindpost.journal.schema import TOKEN_STATES
from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.quality import Rule
from blindpost.pipeline.types import columns

LEGAL = frozenset(
    {
        ("", "REGISTERED"),
        *((state, "CONFIRMED") for state in ("REGISTERED", "INVALID", "EXPIRED")),
        *((state, "ACTIVE") for state in ("REGISTERED", "CONFIRMED", "ACTIVE")),
        *((state, to) for state in TOKEN_STATES for to in ("REGISTERED", "INVALID", "")),
    }
)
"""Registered; confirmed when the provider took the code; active when the code came back; registered again
when it was replaced; invalid when the provider reports it; deleted."""


def compute(p_token_transitions: DataFrame) -> DataFrame:
    """One row per router, day, transition and reason."""
    known = sorted(f"{one}>{other}" for one, other in LEGAL)
    return (
        p_token_transitions.groupBy(
            F.to_date(F.timestamp_seconds("minute_s")).alias("day"),
            "router",
            "from_state",
            "to_state",
            "reason",
        )
        .agg(F.sum("value").alias("tokens"))
        .withColumn("legal", F.concat_ws(">", "from_state", "to_state").isin(*known))
    )


DATASET = Dataset(
    name="token_transitions",
    title="Which states did device tokens go through, and for which reasons did they become invalid?",
    schema=columns(
        ("day", DateType(), "The UTC day."),
        ("router", StringType(), "The notification router's name."),
        ("from_state", StringType(), "State before; empty for a new token."),
        ("to_state", StringType(), "State after; empty for a deleted token."),
        ("reason", StringType(), "Why it became invalid; empty otherwise."),
        ("tokens", LongType(), "How many."),
        ("legal", BooleanType(), "Whether the protocol has such a transition."),
    ),
    key=("router", "from_state", "to_state", "reason"),
    inputs=(Input("p_token_transitions"),),
    rows_of=("p_token_transitions",),
    compute=compute,
    rules=(
        Rule("legal", "legal", "A transition that the protocol does not have is a fault of the router."),
        Rule("reason", "reason = '' OR to_state = 'INVALID'", "Only what is invalid has a reason."),
    ),
    where="anywhere: sums only",
    size="about 6 rows per router and minute",
    why_spark="it is one more sum over the same files, in the same run",
)
