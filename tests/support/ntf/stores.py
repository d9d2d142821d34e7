"""Raw looks into the store of a notification router, whichever it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from blindpost.crypto.ids_hash import QueueSet, xor
from blindpost.engine.undo import Undo
from blindpost.ntf.model import Token
from blindpost.ntf.tables import NtfStore
from blindpost.ntf.tables_postgres import PostgresTables
from blindpost.ntf.tables_sqlite import SqliteTables
from blindpost.ntf.view import View, Wanted
from tests.support.ntf.routers import RunningNtf

TABLES = ("meta", "tokens", "smp_servers", "subscriptions", "notifications")


class RawStore:
    """Statements with `?` for arguments, on either store."""

    def __init__(self, store: NtfStore) -> None:
        self._store = store

    async def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        store = self._store
        if isinstance(store, SqliteTables):
            with store.store.transaction() as sql:
                return list(sql.execute(statement, arguments).fetchall())
        assert isinstance(store, PostgresTables)
        parts = statement.split("?")
        numbered = "".join(
            f"{part}${number}" if number < len(parts) else part for number, part in enumerate(parts, 1)
        )
        return [tuple(row) for row in await store.store.fetch(numbered, *arguments)]

    async def members(self) -> dict[bytes, QueueSet]:
        """What triggers keep for each message router."""
        rows = await self.fetch("SELECT server, notifier_count, notifier_ids_hash FROM smp_servers")
        return {bytes(server): QueueSet(count, bytes(digest)) for server, count, digest in rows}

    async def recomputed(self) -> dict[bytes, QueueSet]:
        """The same from the rows."""
        found = {
            bytes(server): QueueSet() for (server,) in await self.fetch("SELECT server FROM smp_servers")
        }
        rows = await self.fetch("SELECT server, id_hash, state, associated FROM subscriptions")
        for server, digest, state, associated in rows:
            if associated and state in ("NEW", "PENDING", "ACTIVE", "INACTIVE"):
                before = found[bytes(server)]
                found[bytes(server)] = QueueSet(before.count + 1, xor(before.ids_hash, bytes(digest)))
        return found

    async def dump(self) -> bytes:
        """Everything that is stored, as bytes; of SQLite the very files."""
        store = self._store
        if isinstance(store, SqliteTables):
            return await asyncio.to_thread(_files, store.store.path)
        rows: list[bytes] = []
        for table in TABLES:
            for row in await self.fetch(f"SELECT * FROM {table}"):  # noqa: S608 (names of our own)
                rows += [value if isinstance(value, bytes) else str(value).encode() for value in row]
        return b"\n".join(rows)


def _files(database: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(database.parent.glob(f"{database.name}*")))


async def stored_token(ntf: RunningNtf, token_id: bytes) -> Token:
    """A token as the store has it."""
    view = View(Undo(), 0)
    await ntf.router.store.load(Wanted(tokens={token_id}), view)
    token = view.tokens.get(token_id)
    assert token is not None
    return token
