"""Rows as Arrow tables and sealed Parquet files. Servers never import this: it costs 100 MB of memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from blindpost.journal.folder import published
from blindpost.journal.schema import METADATA_TABLE, METADATA_VERSION, TABLES, Table, Type

_TYPES = {
    Type.STRING: pa.string(),
    Type.BOOL: pa.bool_(),
    Type.INT32: pa.int32(),
    Type.INT64: pa.int64(),
    Type.FLOAT64: pa.float64(),
    Type.BINARY: pa.binary(),
    Type.INT64_LIST: pa.list_(pa.int64()),
    Type.FLOAT64_LIST: pa.list_(pa.float64()),
}
_TIMES, _SOURCES, _INPUTS = b"blindpost.times", b"blindpost.sources", b"blindpost.inputs"
ROW_GROUP = 128 << 10


class ForeignFileError(Exception):
    """A Parquet file that no journal of this version wrote, or that is damaged."""


def schema_of(table: Table, version: int | None = None) -> pa.Schema:
    """The Arrow schema of a table, with its name and version."""
    version = table.version if version is None else version
    fields = [
        pa.field(column.name, _TYPES[column.type], nullable=column.nullable) for column in table.at(version)
    ]
    return pa.schema(fields, metadata={METADATA_TABLE: table.name, METADATA_VERSION: str(version)})


def rows_of(table: Table, columns: Mapping[str, Any]) -> pa.Table:
    """A table from its columns: lists or Arrow arrays."""
    schema = schema_of(table)
    return pa.table([_array(columns[field.name], field.type) for field in schema], schema=schema)


def _array(values: Any, kind: pa.DataType) -> Any:
    return pa.array(values, kind) if isinstance(values, (list, tuple)) else values.cast(kind)


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a sealed file says about itself."""

    path: Path
    table: Table
    version: int
    first: int
    last: int
    """The earliest and the latest time in it, in the unit of its table."""
    sources: tuple[str, ...]
    """Names of the files that it was made from and replaces."""
    inputs: str
    """What a day was computed from."""
    rows: int

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def seal(path: Path, table: Table, rows: pa.Table, sources: Sequence[str] = (), inputs: str = "") -> None:
    """Write rows to a file that becomes visible when complete."""
    times = pc.min_max(rows[table.time])
    metadata = {
        **(rows.schema.metadata or {}),
        _TIMES: f"{times['min']} {times['max']}",
        _SOURCES: json.dumps(list(sources)),
        _INPUTS: inputs,
    }
    with published(path) as fresh:
        pq.write_table(
            rows.replace_schema_metadata(metadata),
            fresh,
            compression="zstd",
            row_group_size=ROW_GROUP,
            use_dictionary=table.with_dictionary(rows.column_names),
            write_page_checksum=True,
        )


def look(path: Path) -> Sealed:
    """What a file says about itself, without reading its rows."""
    try:
        found = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise ForeignFileError(str(error)) from error
    metadata = found.metadata or {}
    table = TABLES.get(metadata.get(METADATA_TABLE, b"").decode())
    if table is None or _TIMES not in metadata:
        raise ForeignFileError("not written by a journal")
    version = int(metadata[METADATA_VERSION])
    if version > table.version:
        raise ForeignFileError("written by a later version")
    first, last = map(int, metadata[_TIMES].split())
    sources = tuple(json.loads(metadata[_SOURCES]))
    return Sealed(path, table, version, first, last, sources, metadata[_INPUTS].decode(), found.num_rows)


def read(found: Sealed) -> pa.Table:
    """The rows of a file, with the current columns."""
    schema = schema_of(found.table)
    try:
        rows = pq.read_table(found.path, partitioning=None, page_checksum_verification=True)
        missing = [name for name in schema.names if name not in rows.column_names]
        for name in missing:
            rows = rows.append_column(schema.field(name), pa.nulls(len(rows), schema.field(name).type))
        return rows.select(schema.names).cast(schema)
    except (pa.ArrowException, OSError) as error:
        raise ForeignFileError(str(error)) from error
