"""What waits in each router, how old it is, and whether totals balance."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input, Kept
from blindpost.pipeline.meters import HOUR, beside, hour_of, since_start
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.snapshots import complete, sums
from blindpost.pipeline.sums import COUNTER_HOURS, GAUGE_HOURS, QUEUE_SETS
from blindpost.pipeline.types import columns

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
    counter_hours: DataFrame,
    gauge_hours: DataFrame,
    s_queues: DataFrame,
    p_boots: DataFrame,
    exported: DataFrame,
) -> DataFrame:
    waiting = _waiting(gauge_hours, p_boots)
    counted = beside(counter_hours, "smp", COUNTED)
    joined = waiting.join(counted, list(HOUR), "left").fillna(0, list(COUNTED))
    deleted = (
        F.col("backlog_before") + F.col("accepted") - F.col("acked") - F.col("expired") - F.col("backlog")
    )
    return (
        joined.withColumn("deleted", deleted)
        .join(_undelivered(s_queues, exported), list(HOUR), "left")
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


def _waiting(gauge_hours: DataFrame, p_boots: DataFrame) -> DataFrame:
    """Levels of each hour, and the last level before it if that is not too long ago."""
    levels = gauge_hours.where((F.col("role") == "smp") & (F.col("name") == "messages"))
    last = F.max(F.struct("last_s", "started_s", "boot", "last_seq", "last"))
    by_hour = (
        since_start(levels, p_boots)
        .groupBy(*HOUR)
        .agg(
            last["last"].cast("long").alias("backlog"),
            F.max("greatest").cast("long").alias("backlog_max"),
            F.bit_count(F.bit_or("minutes")).cast("int").alias("minutes"),
            F.count_distinct("boot").cast("int").alias("boots"),
            last["last_s"].alias("last_s"),
        )
    )
    earlier = Window.partitionBy("router").orderBy("hour_s")
    recent = F.col("hour_s") - F.lag("last_s").over(earlier) <= BEFORE_S
    return by_hour.withColumn("backlog_before", F.when(recent, F.lag("backlog").over(earlier))).drop("last_s")


def _exported(queue_sets: DataFrame, s_snapshot: DataFrame) -> DataFrame:
    """Of each hour, the router's last complete export."""
    exports = complete(s_snapshot, sums(queue_sets)).where(F.col("side") == "router")
    newest = Window.partitionBy("day", "router", "hour_s").orderBy(F.desc("at_s"), F.desc("snapshot"))
    return (
        exports.withColumn("hour_s", hour_of("at_s"))
        .withColumn("place", F.row_number().over(newest))
        .where("place = 1")
        .select(*HOUR, "snapshot", "side")
    )


def _undelivered(s_queues: DataFrame, exported: DataFrame) -> DataFrame:
    """What these exports say about messages that wait."""
    return (
        s_queues.where(F.col("role") == "messaging")
        .join(F.broadcast(exported), ["day", "router", "side", "snapshot"])
        .groupBy(*HOUR)
        .agg(
            F.count_if(F.col("waiting") > 0).alias("waiting_queues"),
            F.count_if("full").alias("full_queues"),
            F.max("oldest_s").alias("oldest_s"),
        )
    )


DATASET = Dataset(
    name="router_backlog",
    title="How much waits in each router and how old is it, and did everything that came in go out?",
    schema=columns(
        ("day", DateType(), "The UTC day."),
        ("router", StringType(), "The router's name."),
        ("hour_s", LongType(), "The hour, in Unix seconds."),
        ("accepted", LongType(), "Messages taken."),
        ("acked", LongType(), "Messages acknowledged."),
        ("expired", LongType(), "Messages dropped because their time was over."),
        ("refused_full", LongType(), "Messages refused because their queue was full."),
        ("queues_deleted", LongType(), "Queues deleted, with what waited in them."),
        ("backlog_before", LongType(), "Messages stored before the hour; null if unknown."),
        ("backlog", LongType(), "Messages stored at its end."),
        ("backlog_max", LongType(), "The most at the end of any of its minutes."),
        ("deleted", LongType(), "Messages that left otherwise: what is missing in the balance."),
        ("minutes", IntegerType(), "Minutes of the hour that are recorded."),
        ("boots", IntegerType(), "Starts of the router that wrote in this hour."),
        ("waiting_queues", LongType(), "Queues with messages, in the last export of the hour."),
        ("full_queues", LongType(), "Queues that take no message, in that export."),
        ("oldest_s", LongType(), "Age of the oldest message in it, in seconds."),
        nullable=("backlog_before", "deleted", "waiting_queues", "full_queues", "oldest_s"),
    ),
    key=("router", "hour_s"),
    inputs=(
        Input("p_counters"),
        Input("p_gauges", days_before=1),
        Input("s_queues"),
        Input("s_snapshot"),
        Input("p_boots", days_before=1),
    ),
    rows_of=("p_gauges",),
    compute=compute,
    sums=(COUNTER_HOURS, GAUGE_HOURS, QUEUE_SETS),
    kept={"exported": Kept((QUEUE_SETS.name, "s_snapshot"), _exported)},
    rules=(
        Rule(
            "balance",
            "boots > 1 OR deleted BETWEEN -refused_full AND if(queues_deleted > 0, deleted, refused_full)",
            "accepted = acked + pending + expired + deleted. Messages leave otherwise only with their queue; "
            "a full queue stores one mark that counts as none. A router that was killed loses a minute.",
        ),
        Rule("no hole", "minutes <= 60", "An hour has sixty minutes.", Breaking.STOPS),
        Rule("old mail", "oldest_s <= 21 * 86400", "Messages expire after 21 days unless set otherwise."),
    ),
    where="in the router's trust zone where exports are read, else anywhere; the result holds sums only",
    size="4 M rows of minutes a day for 20 routers, and exports of 10 to 200 M queues",
    version=2,
    why_spark="it reads exports of 10^8 queues beside a year of minutes",
)
