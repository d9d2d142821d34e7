"""The audit of a router's store on command, whether the router runs or not."""

from __future__ import annotations

import tempfile
from pathlib import Path

from blindpost.engine.loop import StoreFailedError
from blindpost.router.audit import Findings, audit, repair
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.running.settings import RouterPlace
from blindpost.router.running.stores import OpenStore, in_database, open_any_store, store_name
from blindpost.router.tables import LmdbTables
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import telling
from blindpost.serving.locking import RunningError
from blindpost.store.contract import StoreVersionError
from blindpost.store.lmdb import copy_store


async def audit_place(place: RouterPlace, *, repairs: bool) -> Findings:
    """Audit the store of a router; while it runs, a copy or snapshot of it, which cannot be repaired."""
    try:
        with place.locked():
            return await _audited(place, await open_any_store(place), repairs=repairs)
    except RunningError:
        if repairs:
            raise
    return await (_audit_snapshot(place) if in_database(place) else _audit_copy(place))


async def _audit_snapshot(place: RouterPlace) -> Findings:
    """The database provides a consistent snapshot, whatever is written meanwhile."""
    # Imported only when a database is used.
    from blindpost.router.bulk_postgres import PostgresBulk
    from blindpost.router.postgres_schema import SCHEMA
    from blindpost.store import postgres

    try:
        async with postgres.snapshot(place.settings.store.dsn, SCHEMA) as connection:
            return await audit(PostgresBulk(connection))
    except (StoreFailedError, StoreVersionError) as error:
        raise OperatorError(f"{store_name(place)}: {error}.") from error


async def _audit_copy(place: RouterPlace) -> Findings:
    with telling(place.folder), tempfile.TemporaryDirectory(prefix=".audit-", dir=place.folder) as folder:
        try:
            copy_store(place.store, Path(folder))
            tables = LmdbTables(Path(folder))
            return await _audited(place, OpenStore(tables, LmdbBulk(tables)), repairs=False)
        except StoreFailedError as error:
            raise OperatorError(f"{place.store}: {error}.") from error


async def _audited(place: RouterPlace, store: OpenStore, *, repairs: bool) -> Findings:
    try:
        found = await audit(store.bulk)
        if repairs:
            await repair(store.tables, found)
        return found
    except StoreFailedError as error:
        raise OperatorError(f"{store_name(place)}: {error}.") from error
    finally:
        store.tables.close()
