"""The jobs that are measured: the same question to Spark, DuckDB and Polars, with answers that must be equal.

Silver itself, which moves and writes every row (once), and the expensive cores of gold tables: grouping by
few keys with XOR (audit), by many (meters), and by one key per message, which moves every row (reconcile).
Spark's side of once, audit and meters is the very function that the tables are made with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blindpost.journal.schema import L_MESSAGES, P_COUNTERS, S_QUEUES, Table
from blindpost.pipeline.sums import COUNTER_HOURS, QUEUE_SETS, summed
from blindpost.pipeline.types import silver_schema

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

AIM_AUDIT, AIM_METERS = 0.5, 0.5


@dataclass(frozen=True, slots=True)
class Job:
    """One question. `aim` is the rate per core that Spark should reach, as a share of DuckDB's."""

    name: str
    table: Table
    spark: Callable[[SparkSession, Path], DataFrame]
    """The answer from the files in a folder."""
    duckdb: str
    """SQL over `source`."""
    polars: Callable[[pl.LazyFrame], pl.LazyFrame]
    aim: float | None


_KEY = S_QUEUES.key
_REST = tuple(column.name for column in S_QUEUES.columns if column.name not in _KEY)
_QUOTED = ", ".join(f'"{name}"' for name in _REST)
_ONCE_SQL = f"""
    SELECT {", ".join(_KEY)}, unnest(rest), epoch_ms(rest.at_s * 1000)::DATE AS day
    FROM (SELECT {", ".join(_KEY)}, min(struct_pack({_QUOTED})) AS rest FROM source GROUP BY ALL)
"""  # noqa: S608 (names of our own schema)


def paths_of(files: Path) -> list[str]:
    return sorted(map(str, files.glob("*/*.parquet")))


def _rows(spark: SparkSession, table: Table, files: Path) -> DataFrame:
    return spark.read.schema(silver_schema(table)).parquet(str(files))


def _once(spark: SparkSession, files: Path) -> DataFrame:
    from blindpost.pipeline.silver import silver

    return silver(S_QUEUES, _rows(spark, S_QUEUES, files).drop("day"))


def _once_polars(queues: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    day = pl.from_epoch("at_s", time_unit="s").dt.date().alias("day")
    smaller = queues.drop("day").sort(_REST, nulls_last=False)
    return smaller.unique(_KEY, keep="first", maintain_order=True).with_columns(day)


def _audit(spark: SparkSession, files: Path) -> DataFrame:
    return summed(spark, QUEUE_SETS, paths_of(files)).drop(QUEUE_SETS.span)


def _audit_polars(queues: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    return queues.group_by("day", "router", "side", "snapshot", "role", "service_id").agg(
        pl.len().alias("count"), pl.col("h_hi").bitwise_xor(), pl.col("h_lo").bitwise_xor()
    )


def _meters(spark: SparkSession, files: Path) -> DataFrame:
    from pyspark.sql import functions as F

    hours = summed(spark, COUNTER_HOURS, paths_of(files))
    return hours.groupBy("day", "router", "hour_s", "name").agg(F.sum("value").alias("value"))


def _meters_polars(counters: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    hour = (pl.col("minute_s") - pl.col("minute_s") % 3600).alias("hour_s")
    return counters.group_by("day", "router", hour, "name").agg(pl.col("value").sum())


_EVENTS = ("sent", "accepted", "delivered", "acked")


def _reconcile(spark: SparkSession, files: Path) -> DataFrame:
    from pyspark.sql import functions as F

    messages = _rows(spark, L_MESSAGES, files)
    fates = messages.groupBy("from_router", "to_router", "connection", "number").agg(
        *(F.min(F.when(F.col("event") == event, F.col("time_us"))).alias(event) for event in _EVENTS)
    )
    return fates.groupBy("from_router", "to_router").agg(
        F.count("*").alias("messages"),
        F.count("delivered").alias("delivered"),
        F.count_if(F.col("accepted").isNotNull() & F.col("delivered").isNull()).alias("lost"),
        F.max(F.col("delivered") - F.col("sent")).alias("longest_us"),
    )


def _reconcile_polars(messages: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    fates = messages.group_by("from_router", "to_router", "connection", "number").agg(
        *(pl.col("time_us").filter(pl.col("event") == event).min().alias(event) for event in _EVENTS)
    )
    return fates.group_by("from_router", "to_router").agg(
        pl.len().alias("messages"),
        pl.col("delivered").count().alias("delivered"),
        (pl.col("accepted").is_not_null() & pl.col("delivered").is_null()).sum().alias("lost"),
        (pl.col("delivered") - pl.col("sent")).max().alias("longest_us"),
    )


JOBS = {
    job.name: job
    for job in (
        Job(
            "once",
            S_QUEUES,
            _once,
            _ONCE_SQL,
            _once_polars,
            None,
        ),
        Job(
            "audit",
            S_QUEUES,
            _audit,
            "SELECT day, router, side, snapshot, role, service_id, count(*) AS count, "
            "bit_xor(h_hi) AS h_hi, bit_xor(h_lo) AS h_lo FROM source GROUP BY ALL",
            _audit_polars,
            AIM_AUDIT,
        ),
        Job(
            "meters",
            P_COUNTERS,
            _meters,
            "SELECT day, router, minute_s - minute_s % 3600 AS hour_s, name, sum(value)::BIGINT AS value "
            "FROM source GROUP BY ALL",
            _meters_polars,
            AIM_METERS,
        ),
        Job(
            "reconcile",
            L_MESSAGES,
            _reconcile,
            "SELECT from_router, to_router, count(*) AS messages, count(delivered) AS delivered, "
            "count_if(accepted IS NOT NULL AND delivered IS NULL)::BIGINT AS lost, "
            "max(delivered - sent) AS longest_us FROM (SELECT from_router, to_router, "
            "min(time_us) FILTER (event = 'sent') AS sent, "
            "min(time_us) FILTER (event = 'accepted') AS accepted, "
            "min(time_us) FILTER (event = 'delivered') AS delivered, "
            "min(time_us) FILTER (event = 'acked') AS acked "
            "FROM source GROUP BY from_router, to_router, connection, number) "
            "GROUP BY from_router, to_router",
            _reconcile_polars,
            None,
        ),
    )
}
