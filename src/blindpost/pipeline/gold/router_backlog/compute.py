"""What waits in each router, hour by hour, and whether what came in went out."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from blindpost.pipeline.meters import HOUR, beside, hour_of, hours
from blindpost.pipeline.snapshots import complete, sums

COUNTED = {
    "accepted": "msgSent",
    "acked": "msgRecv",
    "expired": "msgExpired",
    "refused_full": "msgSentQuota",
    "queues_deleted": "qDeletedAll",
}
BEFORE_S = 86_400
"""How long ago the last level before an hour may be."""


def compute(
    p_counters: DataFrame, p_gauges: DataFrame, s_queues: DataFrame, s_snapshot: DataFrame
) -> DataFrame:
    waiting = _waiting(p_gauges)
    wanted = p_counters.where((F.col("role") == "smp") & F.col("name").isin(*COUNTED.values()))
    counted = beside(hours(wanted), COUNTED)
    joined = waiting.join(counted, list(HOUR), "left").fillna(0, list(COUNTED))
    deleted = (
        F.col("backlog_before") + F.col("accepted") - F.col("acked") - F.col("expired") - F.col("backlog")
    )
    return (
        joined.withColumn("deleted", deleted)
        .join(_undelivered(s_queues, s_snapshot), list(HOUR), "left")
        .select(
            *HOUR,
            *COUNTED,
            "backlog_before",
            "backlog",
            "backlog_max",
            "deleted",
            "minutes",
            "boots",
            "waiting_queues",
            "full_queues",
            "oldest_s",
        )
    )


def _waiting(p_gauges: DataFrame) -> DataFrame:
    """Levels of each hour, and the last level before it if that is not too long ago."""
    levels = p_gauges.where((F.col("role") == "smp") & (F.col("name") == "messages")).withColumn(
        "hour_s", hour_of("minute_s")
    )
    last = F.max(F.struct("minute_s", "boot", "seq", "value"))
    by_hour = levels.groupBy(*HOUR).agg(
        last["value"].cast("long").alias("backlog"),
        F.max("value").cast("long").alias("backlog_max"),
        F.count_distinct("minute_s").cast("int").alias("minutes"),
        F.count_distinct("boot").cast("int").alias("boots"),
        last["minute_s"].alias("last_s"),
    )
    earlier = Window.partitionBy("router").orderBy("hour_s")
    recent = F.col("hour_s") - F.lag("last_s").over(earlier) <= BEFORE_S
    return by_hour.withColumn("backlog_before", F.when(recent, F.lag("backlog").over(earlier))).drop("last_s")


def _undelivered(s_queues: DataFrame, s_snapshot: DataFrame) -> DataFrame:
    """What the last complete export of an hour says about messages that wait."""
    exports = complete(s_snapshot, sums(s_queues)).where(F.col("side") == "router")
    newest = Window.partitionBy("day", "router", "hour_s").orderBy(F.desc("at_s"), F.desc("snapshot"))
    chosen = (
        exports.withColumn("hour_s", hour_of("at_s"))
        .withColumn("place", F.row_number().over(newest))
        .where("place = 1")
        .select(*HOUR, "snapshot", "side")
    )
    return (
        s_queues.where(F.col("role") == "messaging")
        .join(F.broadcast(chosen), ["day", "router", "side", "snapshot"])
        .groupBy(*HOUR)
        .agg(
            F.count_if(F.col("waiting") > 0).alias("waiting_queues"),
            F.count_if("full").alias("full_queues"),
            F.max("oldest_s").alias("oldest_s"),
        )
    )
