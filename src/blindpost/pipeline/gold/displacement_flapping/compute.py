"""Services that subscribe again and again: two holders of one certificate displace each other."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

TIMES = 10
"""A service that subscribes so often in an hour ..."""
MINUTES = 5
"""... in so many different minutes flaps; one that reconnects a few times in a row does not."""
_ENDS = {"rcvServices.subEnd": "messaging", "ntfServices.subEnd": "notifier"}


def compute(p_services: DataFrame, p_counters: DataFrame) -> DataFrame:
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
        p_counters.where(F.col("name").isin(*_ENDS))
        .groupBy("router", "boot", role.alias("service_role"), hour)
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
