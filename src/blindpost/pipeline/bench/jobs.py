"""The jobs that are measured: the same question to Spark, DuckDB and Polars, with answers that must be equal.

Each is the expensive core of a gold table: grouping by few keys with XOR (audit), by some thousand keys
(meters), and by one key per message, which moves every row (reconcile).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blindpost.journal.schema import L_MESSAGES, P_COUNTERS, S_QUEUES, Table

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame

AIM_AUDIT, AIM_METERS = 0.5, 0.3


@dataclass(frozen=True, slots=True)
class Job:
    """One question. `aim` is the rate per core that Spark should reach, as a share of DuckDB's."""

    name: str
    table: Table
    spark: Callable[[DataFrame], DataFrame]
    duckdb: str
    """SQL over `source`."""
    polars: Callable[[pl.LazyFrame], pl.LazyFrame]
    aim: float | None


def _audit(queues: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        queues.where(F.col("service_id").isNotNull())
        .groupBy("router", "side", "service_id", "role")
        .agg(F.count("*").alias("count"), F.bit_xor("h_hi").alias("h_hi"), F.bit_xor("h_lo").alias("h_lo"))
    )


def _audit_polars(queues: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    return (
        queues.filter(pl.col("service_id").is_not_null())
        .group_by("router", "side", "service_id", "role")
        .agg(pl.len().alias("count"), pl.col("h_hi").bitwise_xor(), pl.col("h_lo").bitwise_xor())
    )


def _meters(counters: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    hour = (F.col("minute_s") - F.col("minute_s") % 3600).alias("hour_s")
    return counters.groupBy("router", "name", hour).agg(F.sum("value").alias("value"))


def _meters_polars(counters: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    hour = (pl.col("minute_s") - pl.col("minute_s") % 3600).alias("hour_s")
    return counters.group_by("router", "name", hour).agg(pl.col("value").sum())


_EVENTS = ("sent", "accepted", "delivered", "acked")


def _reconcile(messages: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

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
            "audit",
            S_QUEUES,
            _audit,
            "SELECT router, side, service_id, role, count(*) AS count, bit_xor(h_hi) AS h_hi, "
            "bit_xor(h_lo) AS h_lo FROM source WHERE service_id IS NOT NULL GROUP BY ALL",
            _audit_polars,
            AIM_AUDIT,
        ),
        Job(
            "meters",
            P_COUNTERS,
            _meters,
            "SELECT router, name, minute_s - minute_s % 3600 AS hour_s, sum(value)::BIGINT AS value "
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


def plain(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows that compare, in one order."""
    clean = [tuple(bytes(value) if isinstance(value, bytearray) else value for value in row) for row in rows]
    return sorted(clean, key=repr)
