"""The list that repairs a drift. It names queues, so it stays in the trust zone."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DateType, StringType

from blindpost.journal.schema import Tier
from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.drift import KEPT, different_queues
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.sums import QUEUE_SETS
from blindpost.pipeline.types import columns


def compute(s_queues: DataFrame, chosen: DataFrame, different: DataFrame) -> DataFrame:
    found = different_queues(s_queues, chosen, different)
    subscribing = F.when(F.col("role") == "messaging", "SUB").otherwise("NSUB")
    repair = (
        F.when(F.col("problem") == "unassociated", subscribing)
        .when(F.col("problem") == "gone", "forget")
        .otherwise("review")
    )
    return found.select("day", "router", "service_id", "role", "queue_id", "problem", repair.alias("repair"))


DATASET = Dataset(
    name="service_drift_queues",
    title="Which queues do router and subscriber differ about, and which of them does a SUB repair?",
    schema=columns(
        ("day", DateType(), "The UTC day of the exports."),
        ("router", StringType(), "The router's name."),
        ("service_id", BinaryType(), "The service."),
        ("role", StringType(), "By which ids: messaging or notifier."),
        ("queue_id", BinaryType(), "The queue: its recipient id or its notifier id."),
        ("problem", StringType(), "unassociated, gone or unclaimed."),
        (
            "repair",
            StringType(),
            "SUB or NSUB: the subscriber sends it. forget: the subscriber drops it. review: the router keeps "
            "a queue for a service that does not know it.",
        ),
    ),
    key=("router", "service_id", "role", "queue_id"),
    inputs=(Input("s_queues"), Input("s_service_claims"), Input("s_snapshot")),
    rows_of=("s_snapshot",),
    compute=compute,
    sums=(QUEUE_SETS,),
    kept=KEPT,
    rules=(
        Rule(
            "known problem",
            "problem IN ('unassociated', 'gone', 'unclaimed')",
            "Every difference is of one of these kinds.",
            Breaking.STOPS,
        ),
    ),
    where="in the router's trust zone; so is the result",
    size="10 to 200 M queues; only the services that differ are joined",
    why_spark="an exact join of two states of 10^8 rows does not fit into one process",
    tier=Tier.STATE,
    version=2,
)
