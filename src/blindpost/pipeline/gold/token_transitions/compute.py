"""How device tokens went from state to state, and whether they may."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from blindpost.journal.schema import TOKEN_STATES

LEGAL = frozenset(
    {
        ("", "REGISTERED"),
        *((state, "CONFIRMED") for state in ("REGISTERED", "INVALID", "EXPIRED")),
        *((state, "ACTIVE") for state in ("REGISTERED", "CONFIRMED", "ACTIVE")),
        *((state, to) for state in TOKEN_STATES for to in ("REGISTERED", "INVALID", "")),
    }
)
"""Registered; confirmed when the provider took the code; active when the code came back; registered anew when
it was replaced; invalid when the provider says so; deleted."""


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
