"""Tier S: a snapshot of state, written by a separate process and complete once its manifest is there."""

from __future__ import annotations

import struct
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.journal import arrow
from blindpost.journal.author import checked_name
from blindpost.journal.folder import SUFFIX, day_of, partition
from blindpost.journal.schema import S_MIGRATION, S_QUEUES, S_SERVICE_CLAIMS, S_SNAPSHOT, SIDES, Table

PART_ROWS = 250_000
_PREFIX = ("snapshot", "router", "side", "at_s")
_LANES = struct.Struct(">qq")


def lanes(digest: bytes) -> tuple[int, int]:
    """The two halves of an MD5 or of an XOR of them, as signed numbers."""
    high, low = _LANES.unpack(digest)
    return high, low


def write_migration(
    root: Path, router: str, migration: str, at_s: int, lines: Sequence[Mapping[str, Any]]
) -> None:
    """Write the certificate of an import; writing it again replaces the earlier one."""
    fixed = {"migration": migration, "router": checked_name(router), "at_s": at_s}
    columns = {
        column.name: [{**line, **fixed}.get(column.name) for line in lines] for column in S_MIGRATION.columns
    }
    path = partition(root, S_MIGRATION, day_of(at_s)) / f"{router}-{migration}{SUFFIX}"
    arrow.seal(path, S_MIGRATION, arrow.rows_of(S_MIGRATION, columns))


class StateWriter:
    """Writes one snapshot in parts, each in its own order: none reveals which rows came together."""

    def __init__(
        self,
        root: Path,
        router: str,
        *,
        side: str,
        online: bool,
        now: float | None = None,
        entropy: Entropy = system_entropy,
        part_rows: int = PART_ROWS,
    ) -> None:
        if side not in SIDES:
            raise ValueError(f"one of {', '.join(SIDES)} expected")
        self.snapshot = entropy(8).hex()
        self._root, self._router, self._side = root, checked_name(router), side
        self._online = online
        self._at_s = int(time.time() if now is None else now)
        self._part_rows = part_rows
        self._waiting: defaultdict[tuple[Table, Any], list[tuple[Any, ...]]] = defaultdict(list)
        self._parts = 0
        self.counts: dict[str, int] = {S_QUEUES.name: 0, S_SERVICE_CLAIMS.name: 0}

    @property
    def at_s(self) -> int:
        return self._at_s

    def add_queue(self, role: str, queue_id: bytes, digest: bytes, *known: Any) -> None:
        """A queue by one of its ids; `known` are the columns from `service_id` on, as far as they go."""
        self._add(S_QUEUES, role, (role, queue_id, *lanes(digest), *known))

    def add_claim(self, service_id: bytes, role: str, count: int, ids_hash: bytes) -> None:
        """What this side claims about a service's queues."""
        self._add(S_SERVICE_CLAIMS, None, (service_id, role, count, *lanes(ids_hash)))

    def finish(self) -> None:
        """Write the rest, then the manifest."""
        for (table, _), listed in self._waiting.items():
            self._write(table, listed)
        self._waiting.clear()
        finished = int(time.time())
        listed = [(name, count, finished, self._online) for name, count in self.counts.items()]
        self._write(S_SNAPSHOT, listed)

    def _add(self, table: Table, group: str | None, row: tuple[Any, ...]) -> None:
        self.counts[table.name] += 1
        listed = self._waiting[table, group]
        listed.append(row)
        if len(listed) >= self._part_rows:
            self._write(table, listed)
            listed.clear()

    def _write(self, table: Table, listed: Sequence[tuple[Any, ...]]) -> None:
        if not listed:
            return
        own = [column.name for column in table.columns if column.name not in _PREFIX]
        columns: dict[str, Any] = {name: [None] * len(listed) for name in own}
        columns |= dict(zip(own, map(list, zip(*listed, strict=True)), strict=False))
        fixed = (self.snapshot, self._router, self._side, self._at_s)
        columns |= {name: [value] * len(listed) for name, value in zip(_PREFIX, fixed, strict=True)}
        rows = arrow.rows_of(table, columns)
        if "h_hi" in own:
            rows = rows.sort_by([("h_hi", "ascending"), ("h_lo", "ascending")])
        name = f"{self._router}-{self._side}-{self.snapshot}-{self._parts:06d}{SUFFIX}"
        arrow.seal(partition(self._root, table, day_of(self._at_s)) / name, table, rows)
        self._parts += 1
