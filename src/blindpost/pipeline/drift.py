"""Where a router and a subscriber differ: sums first, then the queues themselves where sums differ."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from blindpost.pipeline.dataset import Kept
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.snapshots import chosen as chosen_exports
from blindpost.pipeline.snapshots import complete, counting, sums, with_services
from blindpost.pipeline.sums import QUEUE_SETS

SET = ("day", "router", "role", "service_id")
"""The queues of one service at one router, by one kind of id."""


def side(sets: DataFrame, name: str) -> DataFrame:
    """Sums of one side's last complete exports, with columns named after the side."""
    renamed = [F.col(column).alias(f"{name}_{column}") for column in ("count", "h_hi", "h_lo")]
    return sets.where((F.col("side") == name) & F.col("service_id").isNotNull()).select(*SET, *renamed)


def differing(summed: DataFrame, chosen: DataFrame) -> DataFrame:
    """The sets that both sides have exported and that are not the same."""
    sets = counting(summed, chosen)
    by_router = chosen.where("side = 'router'").select("day", "router")
    by_subscriber = chosen.where("side = 'subscriber'").select("day", "router", "service_id")
    both = by_subscriber.join(by_router, ["day", "router"])
    ours, theirs = side(sets, "router"), side(sets, "subscriber")
    same = [
        F.col(f"router_{name}").eqNullSafe(F.col(f"subscriber_{name}")) for name in ("count", "h_hi", "h_lo")
    ]
    return (
        ours.join(theirs, list(SET), "full")
        .where(~(same[0] & same[1] & same[2]))
        .join(both, ["day", "router", "service_id"])
        .select(*SET)
    )


def different_queues(s_queues: DataFrame, chosen: DataFrame, sets: DataFrame) -> DataFrame:
    """The queues of these sets that only one side has.

    `unassociated`: the router knows the queue, but not as one of this service: SUB or NSUB repairs it.
    `gone`: the router does not know it; the subscriber can only forget it.
    `unclaimed`: the router has it for the service, and the subscriber does not know it.
    """
    last = counting(s_queues, chosen)
    at_router = last.where(F.col("side") == "router").select(*SET, "queue_id")
    at_subscriber = last.where(F.col("side") == "subscriber").select(*SET, "queue_id")
    ours = at_router.join(F.broadcast(sets), list(SET), "left_semi")
    theirs = at_subscriber.join(F.broadcast(sets), list(SET), "left_semi")
    queue = [*SET, "queue_id"]
    unclaimed = ours.join(theirs, queue, "left_anti").withColumn("problem", F.lit("unclaimed"))
    unknown = theirs.join(ours, queue, "left_anti")
    known = at_router.select("day", "router", "role", "queue_id", F.lit(True).alias("known")).distinct()
    problem = F.when(F.col("known"), "unassociated").otherwise("gone").alias("problem")
    missing = unknown.join(known, ["day", "router", "role", "queue_id"], "left").select(*queue, problem)
    return unclaimed.unionByName(missing)


KEPT = {
    "summed": Kept((QUEUE_SETS.name,), sums),
    "chosen": Kept(("s_snapshot", "summed", "s_service_claims"), chosen_exports),
    "different": Kept(("summed", "chosen"), differing),
}
"""What both tables of the drift ask for again and again."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """One set of queues, as one side holds it."""

    router: str
    side: str
    role: str
    service: bytes


def queues_of(
    s_queues: DataFrame,
    s_snapshot: DataFrame,
    s_service_claims: DataFrame,
    queue_sets: DataFrame,
    chosen: Chosen,
) -> DataFrame:
    """The queues of a set in the last complete export: of a subscriber, in the last one about the service."""
    summed = sums(queue_sets)
    exports = with_services(complete(s_snapshot, summed), summed, s_service_claims)
    about = F.coalesce("service_id", F.lit(chosen.service)) == F.lit(chosen.service)
    mine = exports.where((F.col("router") == chosen.router) & (F.col("side") == chosen.side) & about)
    last = mine.orderBy(F.desc("at_s"), F.desc("snapshot")).first()
    if last is None:
        raise PipelineError(
            f"There is no complete export of {chosen.router} by its {chosen.side} about this service."
        )
    of_set = (
        (F.col("snapshot") == last["snapshot"])
        & (F.col("service_id") == F.lit(chosen.service))
        & (F.col("role") == chosen.role)
    )
    return s_queues.where(of_set).select("queue_id", "h_hi", "h_lo")
