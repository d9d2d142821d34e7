"""A store belongs to one kind of server and to one process at a time, by whatever path it is opened."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from blindpost.ds import tables as ds_tables
from blindpost.ds import tables_postgres as ds_postgres
from blindpost.engine.loop import StoreFailedError
from blindpost.router import tables as router_tables
from blindpost.router import tables_postgres as router_postgres
from blindpost.store.contract import NotTheirStoreError
from blindpost.store.sqlite import AGENT, NTF, SqliteStore
from tests.support.store.postgres import database, postgres

__all__ = ["database", "postgres"]

TOKENS = "CREATE TABLE tokens (id INTEGER)"
USERS = "CREATE TABLE users (id INTEGER)"


def digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()


def test_one_process_at_a_time_owns_a_store_by_any_path(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = router_tables.LmdbTables(store)
    (tmp_path / "link").symlink_to(store)
    for path in (store, tmp_path / "link"):
        with pytest.raises(StoreFailedError, match="another process uses this store"):
            router_tables.LmdbTables(path)
    first.close()
    router_tables.LmdbTables(tmp_path / "link").close()


@pytest.mark.parametrize("named", [True, False])
def test_a_store_of_another_kind_is_refused_untouched(tmp_path: Path, named: bool) -> None:
    """Also one from before stores recorded their kind."""
    router_tables.LmdbTables(tmp_path).close()
    if not named:
        with lmdb.open(str(tmp_path), max_dbs=1) as environment, environment.begin(write=True) as change:
            assert change.delete(b"owner", db=environment.open_db(b"meta", change))
    before = digest(tmp_path / "data.mdb")
    with pytest.raises(NotTheirStoreError, match="not to a delivery service, and was not touched"):
        ds_tables.LmdbTables(tmp_path)
    assert digest(tmp_path / "data.mdb") == before
    router_tables.LmdbTables(tmp_path).close()
    with pytest.raises(NotTheirStoreError, match="belongs to a router"):
        ds_tables.LmdbTables(tmp_path)


@pytest.mark.parametrize("named", [True, False])
def test_a_file_of_another_kind_is_refused_untouched(tmp_path: Path, named: bool) -> None:
    file = tmp_path / "a.db"
    SqliteStore.open(file, [USERS], AGENT).close()
    if not named:
        with closing(sqlite3.connect(file)) as sql:
            sql.execute(f"PRAGMA application_id = {0x426C706F}")
    before = digest(file)
    with pytest.raises(NotTheirStoreError, match="not to a notification router"):
        SqliteStore.open(file, [USERS, TOKENS], NTF)
    assert digest(file) == before
    SqliteStore.open(file, [USERS], AGENT).close()


async def test_a_database_keeps_each_kind_to_itself(database: str) -> None:
    """Each kind has a separate schema: a delivery service leaves the router's rows alone."""
    router = await router_postgres.PostgresTables.open(database)
    counts = router.counts()
    service = await ds_postgres.PostgresTables.open(database)
    service.close()
    await router.probe()
    assert router.counts() == counts
    router.close()
    (await router_postgres.PostgresTables.open(database)).close()
