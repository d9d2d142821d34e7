"""What the jobs over queue state share: which exports are complete, and sums over sets of queues.

A set of queues is compared by its count and the XOR of the MD5 of its ids, kept as two lanes of 64 bits. XOR
cancels what is there twice; silver has each queue of a snapshot once, so nothing is.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

EXPORT = ("day", "router", "side", "snapshot")
SET = (*EXPORT, "role", "service_id")
SAMPLED_OF = 1_000
"""One in this many queues has its lanes recomputed from its id; different ones in every snapshot."""


def hex_of_lanes(high: Column, low: Column) -> Column:
    """Two lanes as the 32 digits of an MD5."""
    return F.lower(F.concat(*(F.lpad(F.hex(lane), 16, "0") for lane in (high, low))))


def sums(queue_sets: DataFrame) -> DataFrame:
    """Count and XOR of each set: an export's queues of a role and a service, or of none."""
    return queue_sets.select(*SET, "count", "h_hi", "h_lo")


def sampled(s_queues: DataFrame) -> DataFrame:
    """Of each set from which a queue was drawn, how many were, and how many of their lanes are wrong.

    Apart from the sums, which need no queue id: ids are most of what an export holds.
    """
    drawn = F.pmod(F.xxhash64("snapshot", "queue_id"), F.lit(SAMPLED_OF)) == 0
    right = hex_of_lanes(F.col("h_hi"), F.col("h_lo")) == F.md5("queue_id")
    return (
        s_queues.where(drawn)
        .groupBy(*SET)
        .agg(F.count("*").alias("lanes_sampled"), F.count_if(~right).alias("lanes_wrong"))
    )


def complete(s_snapshot: DataFrame, summed: DataFrame) -> DataFrame:
    """The exports whose every queue is there, with their time and whether the router ran meanwhile."""
    there = summed.groupBy(*EXPORT).agg(F.sum("count").alias("there"))
    told = s_snapshot.where(F.col("table") == "s_queues").select(*EXPORT, "at_s", "rows", "online")
    whole = F.col("rows") == F.coalesce("there", F.lit(0))
    return told.join(there, list(EXPORT), "left").where(whole).drop("rows", "there")


def chosen(s_snapshot: DataFrame, summed: DataFrame) -> DataFrame:
    """The exports that count: each side's last complete one of a day."""
    return latest(complete(s_snapshot, summed))


def latest(exports: DataFrame) -> DataFrame:
    """Of each side of a router and each day, the last export."""
    newest = Window.partitionBy("day", "router", "side").orderBy(F.desc("at_s"), F.desc("snapshot"))
    return exports.withColumn("place", F.row_number().over(newest)).where("place = 1").drop("place")
