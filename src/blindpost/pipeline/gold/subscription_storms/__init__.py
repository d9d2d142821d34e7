"""When everybody subscribed at once, how hard it was, and whether a restart explains it."""

from __future__ import annotations

from pyspark.sql.types import DateType, DoubleType, IntegerType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.gold.subscription_storms.compute import compute
from blindpost.pipeline.quality import Rule
from blindpost.pipeline.types import columns

DATASET = Dataset(
    name="subscription_storms",
    title="When did far more queues than usual get subscribed, and was it after a restart?",
    schema=columns(
        ("day", DateType(), "The UTC day; a storm that goes on after midnight is one of each day."),
        ("router", StringType(), "The router's name."),
        ("first_s", LongType(), "The first minute of the storm, in Unix seconds."),
        ("minutes", IntegerType(), "How long it lasted, in minutes."),
        ("subscribed", LongType(), "Queues subscribed one by one in it."),
        ("peak_per_minute", LongType(), "Of these in the worst minute."),
        ("usual_per_minute", DoubleType(), "The router's median minute of the day."),
        ("cause", StringType(), "`restart` if the router had just started, else `unknown`."),
        ("restarted_s", LongType(), "When it had started, in Unix seconds."),
        nullable=("restarted_s",),
    ),
    key=("router", "first_s"),
    inputs=(Input("p_counters"), Input("p_gauges"), Input("p_boots", days_before=1)),
    compute=compute,
    rules=(
        Rule("peak fits", "peak_per_minute * minutes >= subscribed", "No minute is above the peak."),
        Rule("explained", "cause = 'restart'", "A storm without a restart: clients were cut off otherwise."),
    ),
    where="anywhere: sums only",
    size="1,440 minutes per router and day, about 100 rows each; 2 M rows a day for 20 routers",
    why_spark="it reads the same rows as the other tables of minutes, and a year of backfill at once",
)
