"""What waits in each router, how old it is, and whether totals balance."""

from __future__ import annotations

from pyspark.sql.types import DateType, IntegerType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.gold.router_backlog.compute import compute
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.types import columns

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
    ),
    compute=compute,
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
    why_spark="it reads exports of 10^8 queues beside a year of minutes",
)
