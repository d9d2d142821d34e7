"""How device tokens changed their state, and why they became invalid."""

from __future__ import annotations

from pyspark.sql.types import BooleanType, DateType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.gold.token_transitions.compute import compute
from blindpost.pipeline.quality import Rule
from blindpost.pipeline.types import columns

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
    compute=compute,
    rules=(
        Rule("legal", "legal", "A transition that the protocol does not have is a fault of the router."),
        Rule("reason", "reason = '' OR to_state = 'INVALID'", "Only what is invalid has a reason."),
    ),
    where="anywhere: sums only",
    size="about 6 rows per router and minute",
    why_spark="it is one more sum over the same files, in the same run",
)
