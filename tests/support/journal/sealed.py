"""Sealed journals, as any reader finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from blindpost.journal.schema import (
    Table,
)


def rows(root: Path, table: Table) -> list[dict[str, Any]]:
    """All visible rows of a table, as any reader finds them."""
    found: list[dict[str, Any]] = []
    for path in sorted((root / table.tier.value / table.name).glob("date=*/*.parquet")):
        if not path.name.startswith("."):
            found += pq.ParquetFile(path).read().to_pylist()
    return found
