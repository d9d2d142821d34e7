"""Which services were displaced again and again."""

from __future__ import annotations

from pyspark.sql.types import DateType, IntegerType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.gold.displacement_flapping.compute import compute
from blindpost.pipeline.quality import Rule
from blindpost.pipeline.types import columns

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
    compute=compute,
    rules=(
        Rule("displaced", "ends > 0", "Without a displaced session it only reconnects: look at its network."),
    ),
    where="anywhere: sums only",
    size="a few rows per service and day, beside the counters of the same days",
    why_spark="it reads the same rows as the other tables of minutes, and a year of backfill at once",
)
