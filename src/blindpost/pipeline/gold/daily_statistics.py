"""Daily statistics of message routers, in the columns that operators of the reference know.

A router that restarted wrote several boots; their sums add. Estimates of who was active come from sketches,
united in a fixed order, because the estimate of a union may depend on it a little.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, IntegerType, LongType, StringType

from blindpost.journal.schema import DAILY_COLUMNS, DailyColumn, Source
from blindpost.pipeline.dataset import Dataset, Input, Kept
from blindpost.pipeline.meters import minutes_by, since_start
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.sums import COUNTER_HOURS, GAUGE_HOURS
from blindpost.pipeline.types import columns

RECORD = ("day", "router", "boot")
LONGEST_DAYS, DAY_MINUTES = 31, 1_440
EXTRA_COUNTERS = {"queues_blocked": "qBlocked"}
DISK = ("disk_free_bytes", "disk_size_bytes")
"""Levels that the reference does not have, under their own names; unknown where an older router wrote."""
ACTIVE = {"queues": "active_queues", "queues_notify": "active_queues_ntf"}
"""Sketches of message routers, and how the columns beside the reference's begin."""


def column_name(name: str) -> str:
    """A column of the reference in a form that needs no quotes."""
    return name.replace(" ", "_")


def compute(
    counter_hours: DataFrame,
    gauge_hours: DataFrame,
    p_day: DataFrame,
    p_sketches: DataFrame,
    p_day_sketches: DataFrame,
    p_boots: DataFrame,
    covered: DataFrame,
) -> DataFrame:
    minutes = [frame.where(F.col("role") == "smp") for frame in (counter_hours, gauge_hours)]
    days = p_day.where(F.col("role") == "smp")
    levels = _levels(minutes[1], days, covered, p_boots)
    sums = _sums(minutes[0], days, covered)
    written = _written(minutes[1], covered)
    active = _active(_sketches(p_sketches, p_day_sketches), covered)
    joined = (
        written.join(sums, ["day", "router"], "left")
        .join(levels, ["day", "router"], "left")
        .join(active, ["day", "router"], "left")
    )
    cells = [*_reference(), *_beside()]
    return joined.selectExpr("day", "router", *cells, "minutes", "minutes_twice", "boots")


def _covered(gauge_hours: DataFrame, p_day: DataFrame) -> DataFrame:
    """How many minutes of a day each boot wrote, and whether its own row of the day knows of more."""
    gauges, days = (frame.where(F.col("role") == "smp") for frame in (gauge_hours, p_day))
    seen = minutes_by(gauges, RECORD, "seen")
    kept = days.groupBy(*RECORD).agg(F.max("minutes").cast("long").alias("kept"))
    known = {name: F.coalesce(name, F.lit(0)) for name in ("seen", "kept")}
    return seen.join(kept, list(RECORD), "full").select(
        *RECORD,
        known["seen"].alias("seen"),
        F.greatest(known["seen"], known["kept"]).alias("minutes"),
        (known["kept"] > known["seen"]).alias("from_day"),
    )


def _written(gauges: DataFrame, covered: DataFrame) -> DataFrame:
    """Minutes of the day that somebody wrote, and those that several boots of one name wrote.

    Where only the rows of days are left, nothing says which minutes they were.
    """
    each = covered.groupBy("day", "router").agg(
        F.sum("minutes").alias("all"), F.sum("seen").alias("seen"), F.count("*").cast("int").alias("boots")
    )
    once = minutes_by(gauges, ("day", "router"), "once")
    twice = F.coalesce(F.col("seen") - F.col("once"), F.lit(0))
    return each.join(once, ["day", "router"], "left").select(
        "day",
        "router",
        F.least(F.col("all") - twice, F.lit(DAY_MINUTES)).cast("int").alias("minutes"),
        twice.cast("int").alias("minutes_twice"),
        "boots",
    )


def _sums(counters: DataFrame, days: DataFrame, covered: DataFrame) -> DataFrame:
    """One column for each counter."""
    by_hour = counters.select(*RECORD, "name", "value", F.lit(False).alias("from_day"))
    by_day = days.where(F.col("kind") == "counter").select(
        *RECORD, "name", F.col("value").cast("long").alias("value"), F.lit(True).alias("from_day")
    )
    chosen = by_hour.unionByName(by_day).join(covered, [*RECORD, "from_day"], "left_semi")
    names = [*_metrics(Source.COUNTER), *EXTRA_COUNTERS.values()]
    return _side_by_side(
        chosen.groupBy("day", "router", "name").agg(F.sum("value").alias("value")), "sum", names
    )


def _levels(gauges: DataFrame, days: DataFrame, covered: DataFrame, p_boots: DataFrame) -> DataFrame:
    """One column for each gauge: its last value of the day, of the later of two boots in a minute."""
    by_hour = gauges.select(
        *RECORD,
        "name",
        F.col("last").alias("value"),
        "last_s",
        F.col("last_seq").alias("seq"),
        F.lit(False).alias("from_day"),
    )
    by_day = days.where(F.col("kind") == "gauge").select(
        *RECORD,
        "name",
        "value",
        F.col("last_minute_s").alias("last_s"),
        F.lit(0).cast("long").alias("seq"),
        F.lit(True).alias("from_day"),
    )
    chosen = by_hour.unionByName(by_day).join(covered, [*RECORD, "from_day"], "left_semi")
    at = F.struct("last_s", "started_s", "boot", "seq", "value")
    chosen = since_start(chosen, p_boots)
    last = chosen.groupBy("day", "router", "name").agg(F.max(at)["value"].cast("long").alias("value"))
    return _side_by_side(last, "level", [*_metrics(Source.GAUGE), *DISK])


def _side_by_side(rows: DataFrame, kind: str, names: list[str]) -> DataFrame:
    """A column for each of these names: a look into a map is far cheaper than a sum under a condition."""
    wanted = rows.where(F.col("name").isin(*names)).groupBy("day", "router")
    found = wanted.agg(F.map_from_entries(F.collect_list(F.struct("name", "value"))).alias("found"))
    columns = [f"try_element_at(found, '{name}') AS `{kind} {name}`" for name in names]
    return found.selectExpr("day", "router", *columns)


def _metrics(source: Source) -> list[str]:
    return sorted({column.metric for column in DAILY_COLUMNS if column.source is source})


def _sketches(p_sketches: DataFrame, p_day_sketches: DataFrame) -> DataFrame:
    """The last sketch of each boot and day, of message routers; one that is kept twice counts once."""
    about = [
        *map(F.col, ("router", "boot", "name")),
        F.to_date(F.timestamp_seconds("day_s")).alias("about"),
    ]
    last = F.max(F.struct("minute_s", "seq", "sketch"))["sketch"].alias("sketch")
    by_hour = p_sketches.where(F.col("role") == "smp").groupBy(*about).agg(last)
    by_day = p_day_sketches.where(F.col("role") == "smp").select(*about, "sketch")
    return by_hour.unionByName(by_day).distinct()


def _active(sketches: DataFrame, covered: DataFrame) -> DataFrame:
    """Estimates for each day: of the day, of 7 and 30 days with it, and of its calendar month.

    Only for days on which somebody wrote: uniting sketches is most of what this table costs.
    """
    counted = F.explode(F.sequence(F.lit(0), F.lit(LONGEST_DAYS - 1))).alias("ago")
    spread = sketches.select("*", counted).withColumn("day", F.expr("date_add(about, ago)"))
    in_order = F.array_sort(F.collect_list(F.struct("about", "boot", "sketch")))
    there = F.broadcast(covered.select("day", "router").distinct())
    wanted = spread.join(there, ["day", "router"], "left_semi")
    grouped = wanted.groupBy("day", "router", "name").agg(in_order.alias("kept"))
    week = grouped.withColumns(
        {
            "day_estimate": _estimate("about = day"),
            "week_estimate": _estimate("about > date_sub(day, 7)"),
            "month_estimate": _estimate("about > date_sub(day, 30)"),
            "calendar_estimate": _estimate("about >= trunc(day, 'MM')"),
        }
    )
    return week.groupBy("day", "router").agg(
        *(
            F.max(F.when(F.col("name") == name, F.col(f"{period}_estimate"))).alias(f"{period} {name}")
            for name in ACTIVE
            for period in ("day", "week", "month", "calendar")
        )
    )


def _estimate(condition: str) -> Column:
    """Of the union of the sketches that meet a condition, one after another in their order."""
    inner = condition.replace("about", "x.about")
    chosen = f"filter(kept, x -> {inner})"
    union = (
        f"aggregate(slice({chosen}, 2, greatest(size({chosen}) - 1, 0)), get({chosen}, 0).sketch, "
        "(united, x) -> hll_union(united, x.sketch))"
    )
    return F.coalesce(F.expr(f"hll_sketch_estimate({union})"), F.lit(0))


def _reference() -> list[str]:
    """The 100 cells after the day. Weeks and months have a number on the day that ends them only.

    In SQL, since a hundred columns take a thousand calls into Java to say piece by piece.
    """
    ends = {"week": "dayofweek(day) = 1", "month": "last_day(day) = day"}
    cells = []
    for column in DAILY_COLUMNS:
        cell = "0"
        if column.source is Source.COUNTER:
            cell = f"coalesce(`sum {column.metric}`, 0)"
        elif column.source is Source.GAUGE:
            cell = f"coalesce(`level {column.metric}`, 0)"
        elif column.source is Source.ACTIVE:
            period = column.name.split(" ")[1]
            cell = f"coalesce(`{'calendar' if period == 'month' else period} {column.metric}`, 0)"
            if period in ends:
                cell = f"CASE WHEN {ends[period]} THEN {cell} END"
        cells.append(f"CAST({cell} AS BIGINT) AS `{column_name(column.name)}`")
    return cells


def _beside() -> list[str]:
    """What the reference does not print, or not every day."""
    rolling = [
        f"CAST(coalesce(`{period} {name}`, 0) AS BIGINT) AS {begin}_{days}d"
        for name, begin in ACTIVE.items()
        for period, days in (("week", 7), ("month", 30))
    ]
    counters = [
        f"CAST(coalesce(`sum {meter}`, 0) AS BIGINT) AS {name}" for name, meter in EXTRA_COUNTERS.items()
    ]
    return [*rolling, *counters, *(f"`level {name}` AS {name}" for name in DISK)]


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
        ("disk_free_bytes", LongType(), "Room on the fullest disk that it writes to, at the end of the day."),
        ("disk_size_bytes", LongType(), "Size of that disk."),
        ("minutes", IntegerType(), "Minutes of the day that are recorded; sums cover no more than these."),
        (
            "minutes_twice",
            IntegerType(),
            "Of these, how many several starts of a router wrote.",
        ),
        ("boots", IntegerType(), "Starts of the router that wrote on the day."),
        nullable=(*(name for name, _, _ in _REFERENCE if name.endswith(("_week", "_month"))), *DISK),
    ),
    key=("router",),
    inputs=(
        Input("p_counters"),
        Input("p_gauges"),
        Input("p_day"),
        Input("p_sketches", days_before=LONGEST_DAYS - 1, days_after=1),
        Input("p_day_sketches", days_before=LONGEST_DAYS - 1),
        Input("p_boots"),
    ),
    compute=compute,
    sums=(COUNTER_HOURS, GAUGE_HOURS),
    kept={"covered": Kept((GAUGE_HOURS.name, "p_day"), _covered)},
    rules=(
        Rule(
            "whole day",
            f"minutes >= {DAY_MINUTES}",
            "A day with less was not recorded as a whole.",
            of_whole_days=True,
        ),
        Rule(
            "one server of a name",
            "minutes_twice < boots",
            "A restart may share a minute; two servers that run under one name share all of them.",
        ),
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
    version=3,
    why_spark="a year of history is 1.5 billion rows, and backfill computes it at once",
)
