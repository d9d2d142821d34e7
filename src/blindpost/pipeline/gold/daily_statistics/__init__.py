"""Daily statistics of message routers, in the columns that operators of the reference know."""

from __future__ import annotations

from pyspark.sql.types import DataType, DateType, IntegerType, LongType, StringType

from blindpost.journal.schema import DAILY_COLUMNS, DailyColumn, Source
from blindpost.pipeline.dataset import Dataset, Input
from blindpost.pipeline.gold.daily_statistics.compute import LONGEST_DAYS, column_name, compute
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.types import columns

_SOURCES = {
    Source.COUNTER: "sum of the day",
    Source.GAUGE: "last level of the day",
    Source.ZERO: "always 0",
}


def _comment(column: DailyColumn) -> str:
    where = f"Column {column.position + 1} of the reference's line: "
    if column.source is not Source.ACTIVE:
        return f"{where}{_SOURCES[column.source]}{f' of {column.metric}' if column.metric else ''}."
    period = column.name.split(" ")[1]
    ends = {"week": ", on Sundays", "month": ", on the last of a month"}.get(period, "")
    return f"{where}estimate of different {column.metric} in use in this {period}{ends}."


_REFERENCE: list[tuple[str, DataType, str]] = [
    (column_name(column.name), LongType(), _comment(column)) for column in DAILY_COLUMNS
]

DATASET = Dataset(
    name="daily_statistics",
    title="The reference's daily statistics of each router, with rolling actives beside them.",
    schema=columns(
        ("day", DateType(), "The UTC day; column 1 of the reference's line."),
        ("router", StringType(), "The router's name."),
        *_REFERENCE,
        ("active_queues_7d", LongType(), "Estimate of different queues in use in 7 days, on every day."),
        ("active_queues_30d", LongType(), "The same of 30 days."),
        ("active_queues_ntf_7d", LongType(), "The same of queues with notifications, in 7 days."),
        ("active_queues_ntf_30d", LongType(), "The same of 30 days."),
        (
            "queues_blocked",
            LongType(),
            "Queues blocked on the day, which the reference counts and never prints.",
        ),
        ("minutes", IntegerType(), "Minutes of the day that are recorded; sums cover no more than these."),
        ("boots", IntegerType(), "Starts of the router that wrote on the day."),
        nullable=tuple(name for name, _, _ in _REFERENCE if name.endswith(("_week", "_month"))),
    ),
    key=("router",),
    inputs=(
        Input("p_counters"),
        Input("p_gauges"),
        Input("p_day"),
        Input("p_sketches", days_before=LONGEST_DAYS - 1, days_after=1),
        Input("p_day_sketches", days_before=LONGEST_DAYS - 1),
    ),
    compute=compute,
    rules=(
        Rule("whole day", "minutes >= 1440", "A day with less was not recorded as a whole."),
        Rule(
            "periods contain each other",
            "activeQueues_day <= 1.1 * active_queues_7d AND active_queues_7d <= 1.1 * active_queues_30d",
            "Who is active on a day is active in its week; estimates may err by a few percent.",
        ),
        Rule("ntf within all", "msgSentNtf <= msgSent", "Messages with notifications are messages."),
        Rule(
            "no negative levels",
            "qCount >= 0 AND msgCount >= 0",
            "A level is a number of things.",
            Breaking.STOPS,
        ),
    ),
    where="anywhere: sums and sketches only",
    size="4 M rows of minutes a day for 20 routers, and 31 days of sketches of 4 KB",
    why_spark="a year of history is 1.5 billion rows, and backfill computes it at once",
)
