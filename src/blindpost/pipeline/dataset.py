"""What a data set is: a schema, a pure function of data frames, rules about its rows, and words about it.

Each has its own module below `gold/`, which offers it as `DATASET`; nothing else has to be changed to add
one. The function gets the silver tables it names, by name, and returns rows of every day they cover; its rows
have a column `day`, by which they are stored. The caller picks the days, so that one day, a month of backfill
and a stream are the same code.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from blindpost.journal.schema import Tier
from blindpost.pipeline.quality import Rule
from blindpost.pipeline.sums import Sums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Input:
    """A silver table, and how many days before and after a day its rows for that day may be made of.

    A function must not let rows that are farther away change a day's rows: the same day must come out whether
    it is computed alone or among others.
    """

    table: str
    days_before: int = 0
    days_after: int = 0
    spills: int = 0
    """For so many days after its own there are rows, even if nothing was written on them."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Few rows made of many, which a function asks for several times.

    They are fetched once and put into its plan as literal rows: Spark would otherwise compute them again for
    each place that names them, and plan all of it each time.
    """

    of: tuple[str, ...]
    """Silver tables, sums over them, and what was kept before it."""
    make: Callable[..., DataFrame]


@dataclass(frozen=True, slots=True)
class Dataset:
    """One table that is computed and published."""

    name: str
    title: str
    """What it answers, in one sentence."""
    schema: StructType
    """All columns; the first is `day`. A column says what it means in the metadata `comment`."""
    key: tuple[str, ...]
    """What a row is known by, within its day."""
    inputs: tuple[Input, ...]
    compute: Callable[..., DataFrame]
    rules: tuple[Rule, ...]
    where: str
    """Where it runs."""
    size: str
    """How big its input is."""
    why_spark: str
    tier: Tier = Tier.PRODUCTION
    """STATE: it names queues, and stays in the trust zone beside its inputs."""
    version: int = 1
    """Raised when the function changes what it computes: old partitions are then recomputed."""
    rows_of: tuple[str, ...] = ()
    """Without rows of these inputs it has none: then nothing is computed."""
    sums: tuple[Sums, ...] = ()
    """Sums over its inputs that the function gets beside them, by their names."""
    kept: Mapping[str, Kept] = field(default_factory=dict)
    """What the function gets beside the silver tables, by name, in the order in which it is made."""

    @property
    def asks_for(self) -> set[str]:
        """The silver tables and sums that its functions get; the other inputs only say when it is stale."""
        return set(self._named).union(*(part.of for part in self.kept.values())) - self.kept.keys()

    def computed(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """The rows that come of what it asks for."""
        known = dict(frames)
        for name, part in self.kept.items():
            made = part.make(*(known[of] for of in part.of))
            known[name] = made.sparkSession.createDataFrame(made.toArrow(), made.schema)
        return self.compute(**{name: known[name] for name in self._named})

    @property
    def _named(self) -> list[str]:
        parameters = inspect.signature(self.compute).parameters.values()
        return [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]


def datasets() -> dict[str, Dataset]:
    """Every data set there is, by name."""
    from blindpost.pipeline import gold

    found: dict[str, Dataset] = {}
    for module in sorted(pkgutil.iter_modules(gold.__path__), key=lambda module: module.name):
        dataset = importlib.import_module(f"{gold.__name__}.{module.name}").DATASET
        found[dataset.name] = dataset
    return found
