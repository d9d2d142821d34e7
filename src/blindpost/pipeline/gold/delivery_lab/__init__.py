"""What load tests saw of a delivery service."""

from __future__ import annotations

from pyspark.sql.types import DateType, DoubleType, IntegerType, LongType, StringType

from blindpost.journal.schema import DELIVERY_EVENTS
from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.gold.delivery_lab.compute import compute
from blindpost.pipeline.quality import Rule
from blindpost.pipeline.types import columns

_TIMES = (
    ("leased_age_ms_p50", "Age of a payload when it was leased, median, in milliseconds."),
    ("leased_age_ms_p95", "The same, 95th percentile."),
    ("leased_age_ms_max", "The oldest."),
    ("woken_ms_p50", "How long a call had waited when it was woken, median, in milliseconds."),
    ("woken_ms_p95", "The same, 95th percentile."),
)

DATASET = Dataset(
    name="delivery_lab",
    title="Under a load test: how deep, how old, how often woken, and what became of the leases?",
    schema=columns(
        ("day", DateType(), "The UTC day."),
        ("router", StringType(), "The service's name."),
        ("hour_s", LongType(), "The start of the hour, in Unix seconds."),
        ("queues", LongType(), "Queues that something happened in."),
        *((event, LongType(), f"Events of the kind {event}.") for event in DELIVERY_EVENTS),
        ("depth_max", IntegerType(), "The deepest queue."),
        *((name, DoubleType(), words) for name, words in _TIMES),
        nullable=tuple(name for name, _ in _TIMES),
    ),
    key=("router", "hour_s"),
    inputs=(Input("l_delivery"),),
    compute=compute,
    rules=(Rule("depth", "depth_max >= 0", "A queue is never less than empty."),),
    where="where the lab's lake is: events of load tests, kept for 7 days",
    size="3 to 5 rows per payload: 10^8 to 10^9 in a load test",
    why_spark="exact percentiles and distinct queues over more events than one machine's memory holds",
)
