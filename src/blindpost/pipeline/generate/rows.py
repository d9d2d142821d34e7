"""From columns of numbers to Arrow tables with exactly the columns that the schema has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from blindpost.journal.schema import METADATA_TABLE, METADATA_VERSION, Table, Type
from blindpost.pipeline.generate.plan import Minutes

ARROW: Mapping[Type, pa.DataType] = {
    Type.STRING: pa.string(),
    Type.BOOL: pa.bool_(),
    Type.INT32: pa.int32(),
    Type.INT64: pa.int64(),
    Type.FLOAT64: pa.float64(),
    Type.BINARY: pa.binary(),
    Type.INT64_LIST: pa.list_(pa.int64()),
    Type.FLOAT64_LIST: pa.list_(pa.float64()),
}


def arrow_schema(table: Table) -> pa.Schema:
    """As the writers have it, with the table's name and version in the metadata."""
    return pa.schema(
        [pa.field(column.name, ARROW[column.type], column.nullable) for column in table.columns],
        {METADATA_TABLE: table.name.encode(), METADATA_VERSION: str(table.version).encode()},
    )


def words(values: Sequence[str], places: np.ndarray) -> pa.Array:
    """A column of few different words."""
    return pa.DictionaryArray.from_arrays(
        pa.array(places.astype(np.int32)), pa.array(values, pa.string())
    ).cast(pa.string())


def same(value: str, count: int) -> pa.Array:
    """A column of one word."""
    return words([value], np.zeros(count, np.int32))


def build(table: Table, columns: Mapping[str, pa.Array | np.ndarray]) -> pa.Table:
    """All columns of the table in its order; a column that is not given is null."""
    rows = len(next(iter(columns.values())))
    schema = arrow_schema(table)
    arrays = [
        columns[field.name]
        if isinstance(columns.get(field.name), pa.Array)
        else pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def of_writer(minutes: Minutes, at: np.ndarray) -> dict[str, pa.Array | np.ndarray]:
    """The first five columns of every table of minutes, for these minutes of the day."""
    return {
        "router": same(minutes.server, len(at)),
        "role": same(minutes.role, len(at)),
        "boot": words([boot.id for boot in minutes.boots], minutes.boot[at]),
        "seq": minutes.seq[at],
        "minute_s": minutes.minute_s[at],
    }


def named(table: Table, minutes: Minutes, values: Mapping[str, np.ndarray], *, zeros: bool) -> pa.Table:
    """A row for each minute and name; without zeros where the schema wants none."""
    names = sorted(values)
    grid = np.stack([values[name] for name in names], axis=1)
    there = np.broadcast_to(minutes.up[:, None], grid.shape)
    at, which = np.nonzero(there if zeros else there & (grid != 0))
    return build(table, {**of_writer(minutes, at), "name": words(names, which), "value": grid[at, which]})
