"""Sealed files as the journal has them after compaction, and files that no pipeline should trust."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from blindpost.journal.schema import METADATA_VERSION, P_COUNTERS, Table
from blindpost.pipeline.generate.plan import Plan

ROW_GROUP = 128 << 10
_TIMES, _SOURCES, _INPUTS = b"blindpost.times", b"blindpost.sources", b"blindpost.inputs"


@dataclass(slots=True)
class Journal:
    """The folder that is written, and what was written to it."""

    root: Path
    files: int = 0
    rows: int = 0
    size: int = 0
    tables: dict[str, int] = field(default_factory=dict)

    def put(self, table: Table, day: date, stem: str, rows: pa.Table, name: str = "") -> Path | None:
        """One file with the rows of one day and one writer; nothing if there are no rows."""
        if not len(rows):
            return None
        if not name:
            ends = pc.min_max(rows["seq"]) if "seq" in table.by_name else {"min": 0, "max": len(rows)}
            name = f"{int(str(ends['min'])):012d}-{int(str(ends['max'])):012d}"
        folder = self.root / table.tier.value / table.name / f"date={day.isoformat()}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{stem}-{name}.parquet"
        times = pc.min_max(rows[table.time])
        metadata = {
            **(rows.schema.metadata or {}),
            _TIMES: f"{times['min']} {times['max']}".encode(),
            _SOURCES: json.dumps([]).encode(),
            _INPUTS: b"",
        }
        pq.write_table(
            rows.replace_schema_metadata(metadata),
            path,
            compression="zstd",
            row_group_size=ROW_GROUP,
            use_dictionary=table.with_dictionary(rows.column_names),
        )
        self.files += 1
        self.rows += len(rows)
        self.size += path.stat().st_size
        self.tables[table.name] = self.tables.get(table.name, 0) + len(rows)
        return path

    def put_boots(self, table: Table, day: date, server: str, role: str, rows: pa.Table) -> None:
        """A file for each boot of the server in these rows."""
        boots = pc.unique(rows["boot"]).to_pylist()
        for boot in boots:
            own = rows if len(boots) == 1 else rows.filter(pc.equal(rows["boot"], boot))
            self.put(table, day, f"{server}-{role}-{boot}", own)


@dataclass(frozen=True, slots=True)
class Spoiled:
    """Files that were added or kept back, as paths below the journal."""

    quarantined: dict[str, str]
    """With the reason that each of them must be set aside for."""
    repeated: list[str]
    late: list[str]


def spoil(plan: Plan, root: Path, late_folder: Path, late: int) -> Spoiled:
    """Put bad files among the good, repeat one, and keep some of the counters back for later."""
    rng = plan.rng("spoil")
    good = sorted(path for path in root.glob("P/*/date=*/*.parquet") if path.stat().st_size > 1_000)
    chosen = [good[place] for place in rng.choice(len(good), 6, replace=False)]
    counters = [path for path in good if path.parent.parent.name == P_COUNTERS.name and path != chosen[5]]
    ways: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
        ("empty", lambda _: b""),
        ("truncated", lambda content: content[: len(content) // 2]),
        ("corrupt", _damaged),
        ("foreign", lambda _: b"router,minute,value\nsmp-01,0,1\n"),
        ("future version", _future),
    )
    quarantined = {}
    for place, (reason, change) in enumerate(ways):
        path = chosen[place].with_name(f"x-{reason.split()[0]}-smp-{'0' * 16}-{0:012d}-{place:012d}.parquet")
        path.write_bytes(change(chosen[place].read_bytes()))
        quarantined[path.relative_to(root).as_posix()] = reason
    copy = chosen[5].with_name(chosen[5].name.replace(".parquet", "-copy.parquet"))
    copy.write_bytes(chosen[5].read_bytes())
    held = [counters[place] for place in rng.choice(len(counters), min(late, len(counters)), replace=False)]
    for path in held:
        target = late_folder / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    return Spoiled(
        quarantined,
        [copy.relative_to(root).as_posix()],
        [path.relative_to(root).as_posix() for path in held],
    )


def _damaged(content: bytes) -> bytes:
    """The first page is overwritten: the file opens, its rows do not decode."""
    return content[:4] + b"\xff" * 64 + content[68:]


def _future(content: bytes) -> bytes:
    """The same rows as a later version would write them, with one more column."""
    rows = pq.ParquetFile(pa.BufferReader(content)).read()
    version = int(rows.schema.metadata[METADATA_VERSION]) + 1
    metadata = {**rows.schema.metadata, METADATA_VERSION: str(version).encode()}
    more = rows.append_column("invented_later", pa.array(np.zeros(len(rows), np.int64)))
    sink = pa.BufferOutputStream()
    pq.write_table(more.replace_schema_metadata(metadata), sink, compression="zstd")
    return bytes(sink.getvalue())
