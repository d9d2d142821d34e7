"""Upgrades a sealed store of the first format: every value is sealed again, bound to its place."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from blindpost.agent.store.places import BLINDED, OLD_CLEAR, SEALED
from blindpost.agent.store.vault import FirstFormat, Vault


def seal_anew(sql: sqlite3.Connection, first: FirstFormat, vault: Vault) -> None:
    """All values, inside the transaction that also changes the store's key: it is done, or nothing is."""
    for table, places in SEALED.items():
        for row_columns, columns in places.items():
            for column in columns:
                was_clear = column in OLD_CLEAR.get(table, ())
                _seal_column(sql, table, column, row_columns, first, vault, was_clear=was_clear)
    for table, columns in BLINDED.items():
        for column in columns:
            for value, put in _cells(sql, table, column, ()):
                put(vault.blind(value[0], f"{table}.{column}"))


def _seal_column(
    sql: sqlite3.Connection,
    table: str,
    column: str,
    row_columns: tuple[str, ...],
    first: FirstFormat,
    vault: Vault,
    *,
    was_clear: bool,
) -> None:
    for (value, *row), put in _cells(sql, table, column, row_columns):
        if value is not None:
            opened = value if was_clear else first.open(value)
            put(vault.seal(opened, f"{table}.{column}", *row))


def _cells(
    sql: sqlite3.Connection, table: str, column: str, row_columns: tuple[str, ...]
) -> Iterator[tuple[Sequence[Any], Callable[[bytes], object]]]:
    """The column of each row with the columns that name it, and what puts another value in its place."""
    keys = [name for _, name, *_, number in sql.execute(f"PRAGMA table_info({table})") if number] or ["rowid"]
    chosen = ", ".join((column, *row_columns, *keys))
    where = " AND ".join(f"{key} = ?" for key in keys)
    for found in sql.execute(f"SELECT {chosen} FROM {table}").fetchall():  # noqa: S608 (names of ours)
        key = found[-len(keys) :]

        def put(value: bytes, key: tuple[Any, ...] = key) -> None:
            statement = f"UPDATE {table} SET {column} = ? WHERE {where}"  # noqa: S608 (names of ours)
            sql.execute(statement, (value, *key))

        yield found[: -len(keys)], put
