"""Whether routers and services agree about which queues belong to whom."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DateType, IntegerType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.drift import KEPT, SET, different_queues, side
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.snapshots import counting, sampled
from blindpost.pipeline.sums import QUEUE_SETS
from blindpost.pipeline.types import columns

PROBLEMS = ("unassociated", "gone", "unclaimed")


def compute(
    s_queues: DataFrame,
    s_service_claims: DataFrame,
    summed: DataFrame,
    chosen: DataFrame,
    different: DataFrame,
) -> DataFrame:
    sets = counting(summed, chosen)
    claims = counting(s_service_claims, chosen)
    found = different_queues(s_queues, chosen, different)
    problems = found.groupBy(*SET).agg(
        *(F.count_if(F.col("problem") == problem).alias(problem) for problem in PROBLEMS)
    )
    lanes = (
        counting(sampled(s_queues), chosen)
        .groupBy(*SET)
        .agg(F.sum("lanes_sampled").alias("lanes_sampled"), F.sum("lanes_wrong").alias("lanes_wrong"))
    )
    named = ["day", "router"]
    rows = (
        side(sets, "router")
        .join(side(sets, "subscriber"), list(SET), "full")
        .join(_claimed(claims, "router"), list(SET), "full")
        .join(_claimed(claims, "subscriber"), list(SET), "full")
        .join(lanes, list(SET), "left")
        .join(problems, list(SET), "left")
        .join(_exported(chosen, "router", *named), named, "left")
        .join(_exported(chosen, "subscriber", *named, "service_id"), [*named, "service_id"], "left")
    )
    return _judged(rows)


def _claimed(claims: DataFrame, name: str) -> DataFrame:
    columns = [F.col(column).alias(f"{name}_claim_{column}") for column in ("count", "h_hi", "h_lo")]
    return claims.where(F.col("side") == name).select(*SET, *columns)


def _exported(chosen: DataFrame, name: str, *about: str) -> DataFrame:
    """What has a complete export by this side, and whether the router ran meanwhile."""
    return chosen.where(F.col("side") == name).select(*about, F.col("online").alias(f"{name}_online"))


def _judged(rows: DataFrame) -> DataFrame:
    known = {name: F.col(f"{name}_online").isNotNull() for name in ("router", "subscriber")}
    stored = F.when(known["router"], F.coalesce("router_count", F.lit(0)))
    listed = F.when(known["subscriber"], F.coalesce("subscriber_count", F.lit(0)))
    both = known["router"] & known["subscriber"]
    online = F.coalesce("router_online", F.lit(False)) | F.coalesce("subscriber_online", F.lit(False))
    ordinal = F.dense_rank().over(Window.partitionBy("day", "router").orderBy("service_id")).cast("int")
    problems = {name: F.when(both, F.coalesce(name, F.lit(0))) for name in PROBLEMS}
    told = rows.select(
        "day",
        "router",
        ordinal.alias("service"),
        "role",
        stored.alias("router_stored"),
        F.col("router_claim_count").alias("router_claimed"),
        _agrees("router").alias("router_agrees"),
        listed.alias("subscriber_stored"),
        F.col("subscriber_claim_count").alias("subscriber_claimed"),
        _agrees("subscriber").alias("subscriber_agrees"),
        *(column.alias(name) for name, column in problems.items()),
        F.coalesce("lanes_sampled", F.lit(0)).alias("lanes_sampled"),
        F.coalesce("lanes_wrong", F.lit(0)).alias("lanes_wrong"),
        online.alias("online"),
        both.alias("both"),
    )
    return told.withColumn("verdict", _verdict()).drop("both")


def _agrees(name: str) -> Column:
    """Whether a side's claim is what the router stores; null without a claim or the router's state."""
    same = [
        F.col(f"{name}_claim_{column}") == F.coalesce(f"router_{column}", F.lit(0))
        for column in ("count", "h_hi", "h_lo")
    ]
    return F.when(F.col("router_online").isNotNull(), same[0] & same[1] & same[2])


def _verdict() -> Column:
    differs = F.col("unassociated") + F.col("gone") + F.col("unclaimed") > 0
    return (
        F.when(F.col("lanes_wrong") > 0, "hashes wrong")
        .when(~F.col("router_agrees"), "router's claim wrong")
        .when(differs | ~F.col("subscriber_agrees"), "drift")
        .when(F.col("both") | F.col("subscriber_agrees"), "agrees")
        .otherwise("one side only")
    )


DATASET = Dataset(
    name="service_drift",
    title="Do router and subscriber agree about the queues of each service, and if not, by how many?",
    schema=columns(
        (
            "day",
            DateType(),
            "The UTC day of the exports; of several about a service, the last complete counts.",
        ),
        ("router", StringType(), "The router's name."),
        ("service", IntegerType(), "Which service, numbered within day and router; the zone knows which."),
        ("role", StringType(), "By which ids: messaging (SUBS) or notifier (NSUBS)."),
        ("router_stored", LongType(), "Queues of the service in the router's state; null without export."),
        ("router_claimed", LongType(), "How many the router says there are."),
        (
            "router_agrees",
            BooleanType(),
            "Whether count and hash that the router says are those of its state.",
        ),
        (
            "subscriber_stored",
            LongType(),
            "Queues that the subscriber has; null without export of this service.",
        ),
        ("subscriber_claimed", LongType(), "How many the subscriber says there are."),
        ("subscriber_agrees", BooleanType(), "Whether what the subscriber says is the router's state."),
        (
            "unassociated",
            LongType(),
            "Queues only the subscriber has, and the router knows: SUB repairs them.",
        ),
        ("gone", LongType(), "Queues only the subscriber has, and the router does not know."),
        ("unclaimed", LongType(), "Queues only the router has for this service."),
        ("lanes_sampled", LongType(), "Queues whose hash was computed again."),
        ("lanes_wrong", LongType(), "Of these, how many hashes were wrong."),
        (
            "online",
            BooleanType(),
            "Whether an export was made while the router ran: small drift is normal then.",
        ),
        ("verdict", StringType(), "agrees, drift, router's claim wrong, hashes wrong, one side only."),
        nullable=(
            "router_stored",
            "router_claimed",
            "router_agrees",
            "subscriber_stored",
            "subscriber_claimed",
            "subscriber_agrees",
            "unassociated",
            "gone",
            "unclaimed",
        ),
    ),
    key=("router", "service", "role"),
    version=2,
    inputs=(Input("s_queues"), Input("s_service_claims"), Input("s_snapshot")),
    rows_of=("s_snapshot",),
    compute=compute,
    sums=(QUEUE_SETS,),
    kept=KEPT,
    rules=(
        Rule(
            "agrees", "verdict IN ('agrees', 'one side only')", "A drift loses messages until it is repaired."
        ),
        Rule("hashes are right", "lanes_wrong = 0", "The hashes that are summed must be those of the ids."),
        Rule(
            "differences add up",
            "subscriber_stored - router_stored = unassociated + gone - unclaimed",
            "The queues that differ must explain the difference of the counts.",
            Breaking.STOPS,
        ),
    ),
    where="in the router's trust zone, beside its exports; the result holds counts only",
    size="10 to 200 M queues of one audit, twice if the subscriber's state is at hand",
    why_spark="XOR over two lanes of 200 M rows, and an exact join of the services that differ, on all cores",
)
