"""The messages of canaries that something happened to, one by one."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from blindpost.pipeline.gold.canary_integrity.compute import WRONG, judged


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
    return judged(l_messages).select(
        "day",
        "from_router",
        "to_router",
        "number",
        "sent_us",
        F.explode(faults).alias("fault"),
        stage.alias("stage"),
        "size",
    )
