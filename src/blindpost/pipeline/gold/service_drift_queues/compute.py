"""The very queues that router and subscriber differ about, and what repairs each."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from blindpost.pipeline.drift import different_queues, differing
from blindpost.pipeline.snapshots import EXPORT, complete, latest


def compute(s_queues: DataFrame, s_snapshot: DataFrame, summed: DataFrame) -> DataFrame:
    chosen = latest(complete(s_snapshot, summed))
    sets = summed.join(F.broadcast(chosen.select(*EXPORT)), list(EXPORT))
    found = different_queues(s_queues, chosen, differing(sets, chosen))
    subscribing = F.when(F.col("role") == "messaging", "SUB").otherwise("NSUB")
    repair = (
        F.when(F.col("problem") == "unassociated", subscribing)
        .when(F.col("problem") == "gone", "forget")
        .otherwise("review")
    )
    return found.select("day", "router", "service_id", "role", "queue_id", "problem", repair.alias("repair"))
