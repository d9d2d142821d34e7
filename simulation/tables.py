"""The journals of many runs through the real pipeline, and its tables beside what stores took.

A server that was killed loses what came after its last record; the books know which one that was, so that
tables are compared number by number all the same.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindpost.journal.seal import Rules, seal_folder
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.runner import CONFLICTS, run
from blindpost.pipeline.session import SparkOptions, spark_session
from blindpost.pipeline.settings import Keep, Settings
from blindpost.pipeline.sizing import is_small
from blindpost.testing.agents import EPOCH
from simulation.journals import TRUTH
from simulation.simulate import fast_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ_S = EPOCH + 3 * 86_400
"""When the journals are sealed and read: days are over, so that their sums are made too."""
DAYS = 400
LASTING = Settings(keep=Keep(DAYS, DAYS, DAYS))
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """A number of a table, and the name under which books have it."""

    role: str
    table: str
    number: Callable[[Row], int]
    book: str

    @property
    def what(self) -> str:
        return f"{self.book} in {self.table}"


def _column(role: str, table: str, *columns: str, book: str = "") -> Shown:
    return Shown(role, table, lambda row: sum(row[column] or 0 for column in columns), book or columns[0])


SHOWN = (
    *(
        _column("smp", "daily_statistics", name)
        for name in (
            *("qCreated", "qDeletedAll", "qDeletedNew", "qDeletedSecured"),
            *("msgSent", "msgRecv", "msgExpired", "ntfCreated", "ntfDeleted"),
        )
    ),
    _column("smp", "router_backlog", "accepted", book="msgSent"),
    _column("smp", "router_backlog", "acked", book="msgRecv"),
    _column("smp", "router_backlog", "expired", book="msgExpired"),
    _column("smp", "router_backlog", "queues_deleted", book="qDeletedAll"),
    *(_column("ntf", "notification_funnel", name) for name in ("stored", "accepted", "replaced", "expired")),
    _column("ntf", "notification_funnel", "refused", "token_invalid"),
    Shown("ntf", "token_transitions", lambda row: row["tokens"] * (row["from_state"] == ""), "tokens"),
    _column("ds", "delivery_service", "enqueued"),
    _column("ds", "delivery_service", "acknowledged", "finished", book="removed"),
)


def put_through(journals: Path) -> list[str]:
    """The differences, by a Spark of its own."""
    lake = fast_folder()
    try:
        wrong = list(sealed(journals))
        with spark_session(SparkOptions(small=is_small(str(journals)))) as spark:
            return wrong + list(differences(spark, journals, lake))
    finally:
        shutil.rmtree(lake)


def sealed(journals: Path) -> Iterator[str]:
    """Seal what the runs left; nothing of it may be broken."""
    report = seal_folder(journals, Rules(minute_days=DAYS, lab_days=DAYS), now=READ_S)
    if report is None:
        yield f"another process seals {journals}"
    elif report.unreadable or report.damaged or report.torn_bytes:
        broken = f"{report.unreadable} segments, {report.damaged} frames, {report.torn_bytes} bytes"
        yield f"what was written cannot be read: {broken}"


def differences(spark: SparkSession, journals: Path, lake: Path) -> Iterator[str]:
    """What the tables say otherwise than the books; nothing if all is well."""
    tables = sorted({shown.table for shown in SHOWN})
    place = Lake(spark, str(journals), str(lake), settings=LASTING, clock=lambda: READ_S)
    summary = run(place, [datasets()[name] for name in tables])
    for table, why in summary.failed.items():
        yield f"{table} cannot be computed: {why}"
    for entry in summary.set_aside:
        yield f"{entry.path} was set aside: {entry.reason}"
    for table, day, rule in summary.broken:
        if rule == CONFLICTS:
            yield f"{table} of {day} has records that contradict each other"
    rows = {name: [row.asDict() for row in place.gold(datasets()[name]).collect()] for name in tables}
    yield from compared(rows, truth(journals))


def truth(journals: Path) -> dict[str, Any]:
    """By server, what its journal must come to."""
    found: dict[str, Any] = {}
    for file in sorted((journals / TRUTH).glob("*.json")):
        found |= json.loads(file.read_text())
    return found


def compared(rows: Mapping[str, list[dict[str, Any]]], books: Mapping[str, Any]) -> Iterator[str]:
    sums: defaultdict[Shown, Counter[str]] = defaultdict(Counter)
    for shown in SHOWN:
        for row in rows[shown.table]:
            sums[shown][row["router"]] += shown.number(row)
        for router in sums[shown].keys() - books.keys():
            yield f"{router}, which wrote nothing, is in {shown.table}"
    for router, book in books.items():
        for shown in SHOWN:
            low, high = (book[end].get(shown.book, 0) for end in ("low", "high"))
            found, took = sums[shown][router], str(low) if low == high else f"{low} to {high}"
            if book["role"] == shown.role and not low <= found <= high:
                yield f"{router}: {shown.what} is {found}, its store took {took}"
