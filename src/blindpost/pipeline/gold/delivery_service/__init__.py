"""How a delivery service fares, hour by hour."""

from __future__ import annotations

from pyspark.sql.types import DateType, DoubleType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.gold.delivery_service.compute import COUNTERS, compute
from blindpost.pipeline.quality import Rule
from blindpost.pipeline.types import columns

_WORDS = {
    "enqueued": "Payloads that came.",
    "handed_out": "Payloads given to callers, again after a lease that ended counted again.",
    "finished": "Payloads that left because their answer was finished.",
    "acknowledged": "Payloads that left because they were acknowledged.",
    "put_back": "Leases that were given back.",
    "displaced": "Leases that ended because another caller came after their time.",
    "refused_full": "Payloads refused because a bound was reached.",
    "waits": "Calls that began to wait.",
    "wakes": "Times a waiting call was looked at again because something came.",
    "waits_expired": "Waits that ended without anything.",
    "waits_canceled": "Waits whose caller went away.",
}
_LEVELS = ("depth_last", "depth_mean", "depth_max", "leases_max", "waiting_max")
_TIMES = ("wait_s_p50", "wait_s_p95")

DATASET = Dataset(
    name="delivery_service",
    title="How deep are the delivery service's queues, and are its callers woken when something comes?",
    schema=columns(
        ("day", DateType(), "The UTC day."),
        ("router", StringType(), "The service's name."),
        ("hour_s", LongType(), "The start of the hour, in Unix seconds."),
        *((name, LongType(), _WORDS[name]) for name in COUNTERS),
        ("depth_last", DoubleType(), "Payloads stored at the end of the hour."),
        ("depth_mean", DoubleType(), "The mean over its minutes."),
        ("depth_max", DoubleType(), "The most at the end of a minute."),
        ("leases_max", DoubleType(), "The most payloads in callers' hands at the end of a minute."),
        ("waiting_max", DoubleType(), "The most waiting calls at the end of a minute."),
        ("waits_answered", LongType(), "Waits that ended with payloads."),
        ("wait_s_p50", DoubleType(), "How long they took: upper bound of the median's bucket, in seconds."),
        ("wait_s_p95", DoubleType(), "The same for the 95th percentile; infinite above all bounds."),
        nullable=(*_LEVELS, *_TIMES),
    ),
    key=("router", "hour_s"),
    inputs=(Input("p_counters"), Input("p_gauges"), Input("p_histograms")),
    compute=compute,
    rules=(
        Rule(
            "leaves once",
            "acknowledged + finished <= handed_out + depth_max",
            "What leaves was handed out in this hour, or was in somebody's hands before it.",
        ),
    ),
    where="anywhere: sums only",
    size="about 15 rows per service and minute, among the counters of all servers",
    why_spark="it reads the same rows as the other tables of minutes, and a year of backfill at once",
    version=2,
)
