"""What became of notifications."""

from __future__ import annotations

from pyspark.sql.types import DateType, LongType, StringType

from blindpost.journal.schema import NOTIFICATION_STATES, TERMINAL_STATES
from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.gold.notification_funnel.compute import compute
from blindpost.pipeline.quality import Rule
from blindpost.pipeline.types import columns

DATASET = Dataset(
    name="notification_funnel",
    title="How many notifications came, how far did they get, and where did they end?",
    schema=columns(
        ("day", DateType(), "The UTC day."),
        ("router", StringType(), "The notification router's name."),
        *(
            (state, LongType(), f"How many entered the state {state}{_terminal}.")
            for state in NOTIFICATION_STATES
            for _terminal in [", which is terminal" if state in TERMINAL_STATES else ""]
        ),
        ("ended", LongType(), "How many entered a terminal state."),
        ("open", LongType(), "Received and not ended: under way at midnight, or forgotten."),
    ),
    key=("router",),
    inputs=(Input("p_funnel"),),
    compute=compute,
    rules=(
        Rule(
            "funnel narrows",
            "stored <= received AND pushed <= stored + retried AND accepted <= pushed",
            "Nothing is stored, pushed or accepted that was not received.",
        ),
        Rule("all end", "open = 0", "Each notification ends in exactly one terminal state."),
    ),
    where="anywhere: sums only",
    size="15 to 30 rows per router and minute",
    why_spark="a year of minutes of a fleet is 10^9 rows, and a backfill reads all of them",
)
