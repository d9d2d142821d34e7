"""What the jobs over queue state share: which exports are complete, and sums over sets of queues.

A set of queues is compared by its count and the XOR of the MD5 of its ids, kept as two lanes of 64 bits. XOR
cancels what is there twice; silver has each queue of a snapshot once, so nothing is.
"""

from __future__ import annotations

import functools

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


def with_services(exports: DataFrame, summed: DataFrame, s_service_claims: DataFrame) -> DataFrame:
    """An export of a router once: it is about all services. One of a subscriber with each of its services.

    A router may have several subscribers, each of which knows of its own services only: those that it lists
    queues of, or claims.
    """
    sets = (frame.select(*EXPORT, "service_id") for frame in (summed, s_service_claims))
    named = functools.reduce(DataFrame.unionByName, sets).where("side = 'subscriber'").distinct()
    about = exports.join(named, list(EXPORT), "left")
    return about.where((F.col("side") == "router") | F.col("service_id").isNotNull())


def chosen(s_snapshot: DataFrame, summed: DataFrame, s_service_claims: DataFrame) -> DataFrame:
    """The exports that count: of a day, a router's last complete one, and the last about each service."""
    exports = with_services(complete(s_snapshot, summed), summed, s_service_claims)
    newest = Window.partitionBy("day", "router", "side", "service_id").orderBy(
        F.desc("at_s"), F.desc("snapshot")
    )
    return exports.withColumn("place", F.row_number().over(newest)).where("place = 1").drop("place")


def counting(rows: DataFrame, chosen: DataFrame) -> DataFrame:
    """The rows of the exports that count: all of a router's, of a subscriber's those about the service."""
    all_services = F.lit(b"")
    about = F.when(F.col("side") == "router", all_services).otherwise(F.col("service_id"))
    wanted = chosen.select(*EXPORT, F.coalesce("service_id", all_services).alias("about"))
    return rows.withColumn("about", about).join(F.broadcast(wanted), [*EXPORT, "about"]).drop("about")
