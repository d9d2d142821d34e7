"""Whether everything arrived when a router moved in."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DateType, IntegerType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input, Kept
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.snapshots import complete, hex_of_lanes, sums
from blindpost.pipeline.sums import QUEUE_SETS
from blindpost.pipeline.types import columns

LINE = ("day", "router", "migration", "name", "service_id", "role")
WITHIN_S = 86_400
"""Only an export that began this soon after the import is compared with it."""


def compute(s_migration: DataFrame, s_snapshot: DataFrame, summed: DataFrame) -> DataFrame:
    lines = s_migration.groupBy(*LINE).agg(
        F.min("at_s").alias("at_s"),
        *(
            _of(side, column)
            for side in ("source", "result")
            for column in ("count", "ids_hash", "content_hash")
        ),
        *(F.bool_or(F.col("side") == side).alias(f"{side}_there") for side in ("source", "result")),
    )
    both = F.col("source_there") & F.col("result_there")
    counted = lines.withColumns(
        {
            "counts_equal": both & F.col("source_count").eqNullSafe(F.col("result_count")),
            "hashes_equal": both
            & F.col("source_ids_hash").eqNullSafe(F.col("result_ids_hash"))
            & F.col("source_content_hash").eqNullSafe(F.col("result_content_hash")),
            "service": F.when(
                F.col("service_id").isNotNull(),
                F.dense_rank().over(
                    Window.partitionBy("day", "router", "migration").orderBy(F.asc_nulls_last("service_id"))
                ),
            ),
        }
    )
    stored = _stored(s_migration, s_snapshot, summed)
    same = (
        (counted["router"] == stored["stored_router"])
        & (counted["migration"] == stored["stored_migration"])
        & (counted["name"] == stored["stored_name"])
        & counted["service_id"].eqNullSafe(stored["stored_service_id"])
        & (counted["role"].isNull() | counted["role"].eqNullSafe(stored["stored_role"]))
    )
    agrees = (F.col("stored_count") == F.col("result_count")) & (
        F.col("stored_hash") == F.col("result_ids_hash")
    )
    return counted.join(stored, same, "left").select(
        "day",
        "router",
        "migration",
        "name",
        F.col("service").cast("int").alias("service"),
        "role",
        "source_count",
        "result_count",
        "counts_equal",
        "hashes_equal",
        _verdict().alias("verdict"),
        "stored_count",
        agrees.alias("stored_agrees"),
        F.col("stored_online").alias("stored_online"),
    )


def _of(side: str, column: str) -> Column:
    return F.max(F.when(F.col("side") == side, F.col(column))).alias(f"{side}_{column}")


def _verdict() -> Column:
    return (
        F.when(~F.col("result_there"), "only in the source")
        .when(~F.col("source_there"), "only in the result")
        .when(F.col("counts_equal") & F.col("hashes_equal"), "equal")
        .otherwise("different")
    )


def _stored(s_migration: DataFrame, s_snapshot: DataFrame, summed: DataFrame) -> DataFrame:
    """What the first complete export after each import says of the sets whose ids it has."""
    began = s_migration.groupBy("router", "migration").agg(F.min("at_s").alias("began_s"))
    exports = complete(s_snapshot, summed).where(F.col("side") == "router").drop("day", "side")
    soon = F.col("at_s").between(F.col("began_s"), F.col("began_s") + WITHIN_S - 1)
    first = Window.partitionBy("router", "migration").orderBy("at_s", "snapshot")
    chosen = (
        began.join(exports, "router")
        .where(soon)
        .withColumn("place", F.row_number().over(first))
        .where("place = 1")
        .select("router", "migration", "snapshot", "online")
    )
    sets = summed.where(F.col("side") == "router").join(chosen, ["router", "snapshot"])
    whole = sets.groupBy("router", "migration", "role").agg(
        F.when(F.col("role") == "messaging", "queues").otherwise("notifiers").alias("name"),
        F.lit(None).cast("binary").alias("service_id"),
        F.sum("count").alias("count"),
        F.bit_xor("h_hi").alias("h_hi"),
        F.bit_xor("h_lo").alias("h_lo"),
        F.first("online").alias("online"),
    )
    of_services = sets.where(F.col("service_id").isNotNull()).withColumn("name", F.lit("service"))
    return whole.unionByName(of_services.select(*whole.columns)).select(
        *(
            F.col(name).alias(f"stored_{name}")
            for name in ("router", "migration", "name", "service_id", "role")
        ),
        F.col("count").alias("stored_count"),
        hex_of_lanes(F.col("h_hi"), F.col("h_lo")).alias("stored_hash"),
        F.col("online").alias("stored_online"),
    )


DATASET = Dataset(
    name="migration_proof",
    title="Did everything arrive? Counts and hashes of source and result of each import, and what is stored.",
    schema=columns(
        ("day", DateType(), "The UTC day on which the import began."),
        ("router", StringType(), "The router's name."),
        ("migration", StringType(), "Which import."),
        ("name", StringType(), "What was counted: queues, messages, service ..."),
        ("service", IntegerType(), "Which service, numbered within the import."),
        ("role", StringType(), "By which ids: messaging or notifier."),
        ("source_count", LongType(), "How many there were in the source."),
        ("result_count", LongType(), "How many there are in the result."),
        ("counts_equal", BooleanType(), "Whether these are equal and both sides are there."),
        ("hashes_equal", BooleanType(), "Whether the hashes over ids and contents are equal."),
        ("verdict", StringType(), "equal, different, only in the source, only in the result."),
        ("stored_count", LongType(), "How many the first complete export within a day after it has."),
        ("stored_agrees", BooleanType(), "Whether count and ids hash of that export are the result's."),
        ("stored_online", BooleanType(), "Whether the router ran while it was exported."),
        nullable=(
            "service",
            "role",
            "source_count",
            "result_count",
            "stored_count",
            "stored_agrees",
            "stored_online",
        ),
    ),
    key=("router", "migration", "name", "service", "role"),
    inputs=(Input("s_migration"), Input("s_queues", days_after=1), Input("s_snapshot", days_after=1)),
    rows_of=("s_migration",),
    compute=compute,
    sums=(QUEUE_SETS,),
    kept={"summed": Kept((QUEUE_SETS.name,), sums)},
    rules=(
        Rule("equal", "verdict = 'equal'", "Nothing may be lost or changed by an import."),
        Rule(
            "stored as imported",
            "stored_online OR stored_agrees",
            "A router that has not run yet stores what was imported.",
        ),
        Rule(
            "equal sides have equal counts",
            "verdict <> 'equal' OR source_count <=> result_count",
            "Equal hashes over different counts would be a bug here.",
            Breaking.STOPS,
        ),
    ),
    where="in the router's trust zone, beside its exports; the result holds counts only",
    size="a few lines per import, and one export of 10 to 200 M queues",
    why_spark="the stored queues are counted and hashed anew, apart from the code that imported them",
)
