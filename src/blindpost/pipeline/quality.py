"""Rules about the rows of a table, checked on what was written and before anybody can see it.

A rule that must hold for the table to make sense (a key that is unique, a column that is never null) stops
its publication. A rule about the world (totals balance, a funnel narrows) is counted instead: rows that break
it are what an operator wants to see, so they are published and the count is kept beside the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING

from blindpost.pipeline.rowhash import in_spark, of_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


class Breaking(Enum):
    """What happens when a rule does not hold."""

    STOPS = "the table is not published"
    COUNTS = "the rows are counted beside the table"


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition in SQL that each row must meet; a row where it is null meets it."""

    name: str
    condition: str
    why: str
    breaking: Breaking = Breaking.COUNTS
    of_whole_days: bool = False
    """It can be judged only once a day has ended."""


OVER_S = 3_600
"""A day counts as over this long after its end: what its last minutes wrote is sealed and copied by then."""


def is_over(day: str, now_s: float) -> bool:
    """Whether nothing more is expected of a day."""
    end = datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(days=1)
    return now_s >= end.timestamp() + OVER_S


def told(broken: Mapping[str, int], rules: Sequence[Rule], day: str, now_s: float) -> dict[str, int]:
    """Which counts of a day to report: an unfinished day is not a broken one."""
    late = set() if is_over(day, now_s) else {rule.name for rule in rules if rule.of_whole_days}
    return {name: count for name, count in broken.items() if count and name not in late}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many rows of a partition there are, what they are, and how many of them break which rule."""

    rows: int
    content: str
    """The same for the same rows in any order: their number and the XOR of their hashes."""
    broken: dict[str, int]

    def beside(self, other: Outcome) -> Outcome:
        """Of both their rows together."""
        lanes = int(self.content.partition("-")[2], 16) ^ int(other.content.partition("-")[2], 16)
        rows = self.rows + other.rows
        broken = {
            rule: self.broken.get(rule, 0) + other.broken.get(rule, 0) for rule in self.broken | other.broken
        }
        return Outcome(rows, f"{rows}-{lanes:016x}", broken)


HASH = "hash of the row"
NOTHING = Outcome(0, "0-0000000000000000", {})
"""Of a partition without rows."""


def not_null(schema: StructType) -> Rule:
    """The rule that columns that are not nullable are not null."""
    names = [field.name for field in schema.fields if not field.nullable]
    condition = " AND ".join(f"`{name}` IS NOT NULL" for name in names)
    return Rule("not null", condition, "Only columns that say so may be unknown.", Breaking.STOPS)


def judged(frame: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """The rows, and beside each the rules that it breaks."""
    from pyspark.sql import functions as F

    def broken(rule: Rule) -> Column:
        return F.coalesce(~F.expr(rule.condition), F.lit(False)).alias(_column(rule))

    return frame.select("*", *map(broken, rules))


def _column(rule: Rule) -> str:
    return f"rule {rule.name}"


def check(frame: DataFrame, key: Sequence[str], rules: Sequence[Rule]) -> dict[str, Outcome]:
    """The outcome for each day of a table, in one pass."""
    from pyspark.sql import functions as F

    day = F.col("day").cast("string").alias("day")
    flags = [_column(rule) for rule in rules]
    by_key = (
        judged(frame, rules)
        .withColumn(HASH, in_spark(frame.schema.fields))
        .groupBy(day, *key)
        .agg(
            F.count("*").alias("rows"),
            F.bit_xor(HASH).alias(HASH),
            *(F.count_if(f"`{flag}`").alias(flag) for flag in flags),
        )
    )
    by_day = by_key.groupBy("day").agg(
        F.sum("rows").alias("rows"),
        F.bit_xor(HASH).alias(HASH),
        F.count_if(F.col("rows") > 1).alias("twice"),
        *(F.sum(f"`{flag}`").alias(flag) for flag in flags),
    )
    return {
        row["day"]: _outcome(row["rows"], row[HASH], row["twice"] if key else 0, rules, row.asDict())
        for row in by_day.collect()
    }


def check_rows(rows: pa.Table, names: Sequence[str], key: Sequence[str], rules: Sequence[Rule]) -> Outcome:
    """The same of one day's judged rows that are here; these are the table's own columns."""
    import numpy as np

    broken = {_column(rule): rows[_column(rule)].to_pylist().count(True) for rule in rules}
    different = len(rows.select(list(key)).group_by(list(key)).aggregate([])) if key else len(rows)
    lanes = 0
    for batch in rows.select(list(names)).to_batches():
        lanes ^= int(np.bitwise_xor.reduce(of_rows(batch)))
    return _outcome(len(rows), lanes, len(rows) - different, rules, broken)


def _outcome(rows: int, lanes: int, twice: int, rules: Sequence[Rule], flags: Mapping[str, int]) -> Outcome:
    content = f"{rows}-{lanes & 2**64 - 1:016x}"
    return Outcome(rows, content, {"key": twice, **{rule.name: flags[_column(rule)] for rule in rules}})


def stopping(outcome: Outcome, rules: Sequence[Rule]) -> list[str]:
    """The names of the broken rules that forbid publication."""
    stops = {"key", *(rule.name for rule in rules if rule.breaking is Breaking.STOPS)}
    return [name for name, count in outcome.broken.items() if count and name in stops]
