"""Whether a file is what the journal writes: one verdict per file, with the reason if it is set aside.

Runs on whichever machine of the cluster reads the file, on its whole content; every page is decoded and
checked against its checksum, so that no later job stumbles over it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from blindpost.journal.schema import METADATA_TABLE, METADATA_VERSION, SCHEMA_VERSION, TABLES, Table
from blindpost.pipeline.limits import impossible
from blindpost.pipeline.spans import spans_of
from blindpost.pipeline.types import is_a

MAGIC = b"PAR1"
FIRST_DAY, LAST_DAY = date(2020, 1, 1), date(2100, 1, 1)
"""No record predates this software or is this far ahead; such a time is broken."""
_EPOCH = date(1970, 1, 1)
DAY_S = 86_400
AHEAD_S = 900
"""Clocks differ a little; a record further ahead than this is from a wrong clock."""


class Reason(Enum):
    """Why a file is set aside."""

    EMPTY = "empty"
    TRUNCATED = "truncated"
    CORRUPT = "corrupt"
    FOREIGN = "foreign"
    FUTURE = "future version"
    IMPOSSIBLE = "impossible value"
    AHEAD = "from the future"
    UNREADABLE = "unreadable"


class _RefusedError(Exception):
    def __init__(self, reason: Reason, detail: str, days: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.days = days


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a file's content. Of one that is set aside, only its hash and the reason.

    One from the future keeps its days: when the last of them has come, it is looked at again.
    """

    sha256: str
    table: str = ""
    version: int = 0
    rows: int = 0
    days: tuple[str, ...] = ()
    """The days that its rows are about."""
    reason: str = ""
    detail: str = ""
    spans: tuple[str, ...] = ()
    """The ranges of its records, by who wrote them."""


def examine(content: bytes, now_s: float = math.inf) -> Verdict:
    """The verdict at this time of the reader's clock."""
    digest = sha256(content).hexdigest()
    try:
        return _accept(content, digest, now_s)
    except _RefusedError as refused:
        return Verdict(digest, days=refused.days, reason=refused.reason.value, detail=refused.detail)


def _accept(content: bytes, digest: str, now_s: float) -> Verdict:
    if not content:
        raise _RefusedError(Reason.EMPTY, "it has no bytes")
    if not content.startswith(MAGIC):
        raise _RefusedError(Reason.FOREIGN, "it is no Parquet file")
    if len(content) < 12 or not content.endswith(MAGIC):
        raise _RefusedError(Reason.TRUNCATED, "its end is missing")
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        table, version = _named(file.schema_arrow)
        _check_columns(table, version, file.schema_arrow)
        rows = file.read()
        rows.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _RefusedError(Reason.CORRUPT, f"it cannot be decoded ({type(error).__name__})") from None
    _check_values(table, version, rows)
    days = _days(table, rows)
    _check_clock(table, rows, days, now_s)
    if (wrong := impossible(table, rows)) is not None:
        raise _RefusedError(Reason.IMPOSSIBLE, wrong)
    return Verdict(digest, table.name, version, rows.num_rows, days, spans=spans_of(table, rows))


def _named(schema: pa.Schema) -> tuple[Table, int]:
    """The table that a file says it is of, and at which version."""
    metadata = schema.metadata or {}
    name = metadata.get(METADATA_TABLE, b"").decode("utf-8", "replace")
    written = metadata.get(METADATA_VERSION, b"")
    if not name or not written.isdigit() or len(written) > 9:
        raise _RefusedError(Reason.FOREIGN, "it does not say which table it is of")
    version, table = int(written), TABLES.get(name)
    known = SCHEMA_VERSION if table is None else table.version
    if version > known:
        raise _RefusedError(Reason.FUTURE, f"version {version} of its table; this program knows {known}")
    if table is None:
        raise _RefusedError(Reason.FOREIGN, "its table is not one of ours")
    return table, version


def _check_columns(table: Table, version: int, schema: pa.Schema) -> None:
    wanted = table.at(version)
    names = {column.name for column in wanted}
    if set(schema.names) != names or len(schema.names) != len(names):
        raise _RefusedError(Reason.FOREIGN, f"its columns are not those of {table.name} at version {version}")
    for column in wanted:
        if not is_a(schema.field(column.name).type, column.type):
            raise _RefusedError(Reason.FOREIGN, f"column {column.name} is not of type {column.type.value}")


def _check_values(table: Table, version: int, rows: pa.Table) -> None:
    for column in table.at(version):
        values = rows[column.name]
        if values.null_count and not column.nullable:
            raise _RefusedError(Reason.CORRUPT, f"column {column.name} has nulls")
        if column.values:
            legal = pa.array(column.values, pa.string())
            if not pc.all(pc.is_in(values.drop_null(), legal)).as_py() and len(values.drop_null()):
                raise _RefusedError(Reason.CORRUPT, f"column {column.name} has a value that is not legal")


def _days(table: Table, rows: pa.Table) -> tuple[str, ...]:
    units = DAY_S * 1_000_000 if table.time.endswith("_us") else DAY_S
    found = {value // units for value in pc.unique(rows[table.time]).to_pylist()}
    first, last = (FIRST_DAY - _EPOCH).days, (LAST_DAY - _EPOCH).days
    if not all(first <= number < last for number in found):
        raise _RefusedError(Reason.CORRUPT, f"column {table.time} has a time that cannot be")
    return tuple((_EPOCH + timedelta(days=number)).isoformat() for number in sorted(found))


def _check_clock(table: Table, rows: pa.Table, days: tuple[str, ...], now_s: float) -> None:
    if not rows.num_rows:
        return
    newest_s = pc.max(rows[table.time]).as_py() / (1_000_000 if table.time.endswith("_us") else 1)
    if newest_s > now_s + AHEAD_S:
        raise _RefusedError(
            Reason.AHEAD, f"it has records of {days[-1]}: the clock of who wrote it is wrong", days
        )


VERDICT_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("sha256", pa.string()),
        ("table", pa.string()),
        ("version", pa.int32()),
        ("rows", pa.int64()),
        ("days", pa.list_(pa.string())),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("spans", pa.list_(pa.string())),
    ]
)


def examine_batches(now_s: float, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same over rows with paths, and with contents where this machine cannot open the files."""
    for batch in batches:
        if "content" in batch.schema.names:
            contents = (content.as_py() for content in batch.column("content"))
        else:
            contents = (Path(path.as_py()).read_bytes() for path in batch.column("path"))
        verdicts = [examine(content, now_s) for content in contents]
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "path": path.as_py(),
                    "sha256": verdict.sha256,
                    "table": verdict.table,
                    "version": verdict.version,
                    "rows": verdict.rows,
                    "days": list(verdict.days),
                    "reason": verdict.reason,
                    "detail": verdict.detail,
                    "spans": list(verdict.spans),
                }
                for path, verdict in zip(batch.column("path"), verdicts, strict=True)
            ],
            schema=VERDICT_SCHEMA,
        )
