"""Which services were displaced again and again."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.quality import Rule
from blindpost.pipeline.sums import COUNTER_HOURS
from blindpost.pipeline.types import columns

TIMES = 10
"""A service that subscribes this often in an hour ..."""
MINUTES = 5
"""... in this many different minutes flaps; one that reconnects a few times in a row does not."""
_ENDS = {"rcvServices.subEnd": "messaging", "ntfServices.subEnd": "notifier"}


def compute(p_services: DataFrame, counter_hours: DataFrame) -> DataFrame:
    """One row for each service, role and hour that flaps, beside the router's count of displaced ones."""
    hour = (F.col("minute_s") - F.col("minute_s") % 3600).alias("hour_s")
    often = (
        p_services.groupBy("router", "boot", "ordinal", "service_role", hour)
        .agg(
            F.sum("times").alias("times"),
            F.count_distinct("minute_s").cast("int").alias("minutes"),
            F.count_if(~F.col("agreed")).cast("int").alias("minutes_disagreed"),
        )
        .where((F.col("times") >= TIMES) & (F.col("minutes") >= MINUTES))
    )
    role = F.when(F.col("name") == "rcvServices.subEnd", "messaging").otherwise("notifier")
    ends = (
        counter_hours.where(F.col("name").isin(*_ENDS))
        .groupBy("router", "boot", role.alias("service_role"), "hour_s")
        .agg(F.sum("value").alias("ends"))
    )
    return often.join(ends, ["router", "boot", "service_role", "hour_s"], "left").select(
        F.to_date(F.timestamp_seconds("hour_s")).alias("day"),
        "router",
        "boot",
        "ordinal",
        "service_role",
        "hour_s",
        "times",
        "minutes",
        "minutes_disagreed",
        F.coalesce("ends", F.lit(0)).alias("ends"),
    )


DATASET = Dataset(
    name="displacement_flapping",
    title="Which service subscribed so often within an hour that two programs must be using its certificate?",
    schema=columns(
        ("day", DateType(), "The UTC day."),
        ("router", StringType(), "The router's name."),
        ("boot", StringType(), "The run of the router: ordinals mean nothing beyond it."),
        ("ordinal", IntegerType(), "Which service, in the order in which they came to this boot."),
        ("service_role", StringType(), "What it subscribed to: messages or notifications."),
        ("hour_s", LongType(), "The start of the hour, in Unix seconds."),
        ("times", LongType(), "How often it subscribed in the hour."),
        ("minutes", IntegerType(), "In how many minutes of it."),
        ("minutes_disagreed", IntegerType(), "In how many of these the two sides' queues differed."),
        ("ends", LongType(), "How many services of this role the router displaced in the hour."),
    ),
    key=("router", "boot", "ordinal", "service_role", "hour_s"),
    inputs=(Input("p_services"), Input("p_counters")),
    rows_of=("p_services",),
    compute=compute,
    sums=(COUNTER_HOURS,),
    rules=(
        Rule("displaced", "ends > 0", "Without a displaced session it only reconnects: look at its network."),
    ),
    where="anywhere: sums only",
    size="a few rows per service and day, beside the counters of the same days",
    why_spark="it reads the same rows as the other tables of minutes, and a year of backfill at once",
)
