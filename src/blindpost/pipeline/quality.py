"""Rules about the rows of a table, checked on what was written and before anybody can see it.

A rule that must hold for the table to make sense (a key that is unique, a column that is never null) stops
its publication. A rule about the world (totals balance, a funnel narrows) is counted instead: rows that break
it are what an operator wants to see, so they are published and the count stands beside the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many rows of a partition there are, what they are, and how many of them break which rule."""

    rows: int
    content: str
    """The same for the same rows in any order: their number and the XOR of their hashes."""
    broken: dict[str, int]


NOTHING = Outcome(0, "0-0000000000000000", {})
"""Of a partition without rows."""


def not_null(schema: StructType) -> Rule:
    """The rule that columns that are not nullable are not null."""
    names = [field.name for field in schema.fields if not field.nullable]
    condition = " AND ".join(f"`{name}` IS NOT NULL" for name in names)
    return Rule("not null", condition, "Only columns that say so may be unknown.", Breaking.STOPS)


def check(frame: DataFrame, key: Sequence[str], rules: Sequence[Rule]) -> dict[str, Outcome]:
    """The outcome for each day of a table: one pass, and one more for the key if there is one."""
    from pyspark.sql import functions as F

    def broken(rule: Rule) -> Column:
        return F.count_if(~F.expr(rule.condition)).alias(f"rule {rule.name}")

    day = F.col("day").cast("string").alias("day")
    content = F.format_string("%d-%016x", F.count("*"), F.bit_xor(F.xxhash64(*frame.columns))).alias(
        "content"
    )
    counted = frame.groupBy(day).agg(F.count("*").alias("rows"), content, *map(broken, rules)).collect()
    twice = {}
    if key:
        groups = frame.groupBy(day, *key).count().where("count > 1")
        twice = {row["day"]: row["count"] for row in groups.groupBy("day").count().collect()}
    return {
        row["day"]: Outcome(
            row["rows"],
            row["content"],
            {"key": twice.get(row["day"], 0), **{rule.name: row[f"rule {rule.name}"] for rule in rules}},
        )
        for row in counted
    }


def stopping(outcome: Outcome, rules: Sequence[Rule]) -> list[str]:
    """The names of the broken rules that forbid publication."""
    stops = {"key", *(rule.name for rule in rules if rule.breaking is Breaking.STOPS)}
    return [name for name, count in outcome.broken.items() if count and name in stops]
