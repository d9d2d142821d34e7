"""Published tables as Delta tables: the same files, and a log beside them that says which of them count.

The folder of a table's versions is the Delta table. A commit removes and adds the files of whole days at
once, so a reader sees the table as of one moment, before or after. The manifest is published first and the
log follows it: if a run is killed in between, the next one catches up. The log holds names, sizes and
days, and no other value of a row.

Only tables of this machine (or mounted on it) get a log.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from blindpost.pipeline.publish import Partition

if TYPE_CHECKING:
    from deltalake.transaction import AddAction
    from pyspark.sql.types import StructType


def follow_manifest(
    root: str, name: str, schema: StructType, partitions: Mapping[str, Partition]
) -> int | None:
    """Bring the log in line with the manifest; its version, or None if there is nothing to log yet."""
    wanted = {
        f"day={day}/{partition.inputs}/{file}": day
        for day, partition in partitions.items()
        for file in partition.files
    }
    from deltalake import DeltaTable
    from deltalake.transaction import RemoveAction

    table = DeltaTable(root) if DeltaTable.is_deltatable(root) else None
    if table is None and not wanted:
        return None
    columns = _columns(schema)
    if table is None or [known.name for known in table.schema().fields] != columns.names:
        table = DeltaTable.create(root, columns, mode="overwrite", name=f"blindpost_{name}")
    known = set(table.get_add_actions(flatten=True).column("path").to_pylist())
    new = sorted(wanted.keys() - known)
    over = sorted(known - wanted.keys())
    if new or over:
        now_ms = int(time.time() * 1000)
        removed = [RemoveAction(path, data_change=True, deletion_timestamp=now_ms) for path in over]
        added = [_added(root, path, wanted[path]) for path in new]
        table.create_write_transaction([*removed, *added], "append", columns)
        table.update_incremental()
    return int(table.version())


def _added(root: str, path: str, day: str) -> AddAction:
    from deltalake.transaction import AddAction

    file = Path(root, path)
    found = os.stat(file)
    stats = {
        "numRecords": pq.read_metadata(file).num_rows,
        "minValues": {"day": day},
        "maxValues": {"day": day},
        "nullCount": {"day": 0},
    }
    return AddAction(path, found.st_size, {}, int(found.st_mtime * 1000), True, json.dumps(stats))


def _columns(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_type

    return pa.schema([(field.name, to_arrow_type(field.dataType)) for field in schema.fields])
