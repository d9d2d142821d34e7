"""The store that a configuration names, whichever it is: made by `init`, opened by everything else."""

from __future__ import annotations

from dataclasses import dataclass

from blindpost.engine.loop import StoreFailedError
from blindpost.router.bulk import BulkStore
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.moving.progress import NAME, is_unfinished
from blindpost.router.running import choices
from blindpost.router.running.settings import RouterPlace
from blindpost.router.tables import LmdbTables, RouterStore
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import make_folder
from blindpost.store.contract import StoreVersionError

DATA_FILE = "data.mdb"


@dataclass(frozen=True, slots=True)
class OpenStore:
    """One store: as the router uses it, and in chunks."""

    tables: RouterStore
    bulk: BulkStore


def in_database(place: RouterPlace) -> bool:
    return place.settings.store.kind == "postgres"


def store_name(place: RouterPlace) -> str:
    """How messages name the store; not by its database address, which may contain a password."""
    return f"{place.file}, [store] dsn" if in_database(place) else str(place.store)


async def make_store(place: RouterPlace) -> None:
    """An empty store for a new router."""
    if not in_database(place):
        make_folder(place.store)
    opened = await _open(place)
    try:
        if any(opened.tables.counts().values()):
            raise OperatorError(
                f"{store_name(place)}: this database holds the queues of a router already. "
                "Give each router a database of its own."
            )
    finally:
        opened.tables.close()


async def open_store(place: RouterPlace) -> OpenStore:
    """The store, if a router may run with it."""
    opened = await open_any_store(place)
    try:
        unfinished = is_unfinished(await opened.bulk.mark(NAME))
    except StoreFailedError as error:
        opened.tables.close()
        raise OperatorError(f"{store_name(place)}: {error}.") from error
    if unfinished:
        opened.tables.close()
        raise OperatorError(
            f"{store_name(place)}: an import into this store is not complete. Give the same "
            "`blindpost router import` again: it continues where it stopped."
        )
    return opened


async def open_any_store(place: RouterPlace) -> OpenStore:
    """The store, which must exist: an empty one in its place would look like lost messages."""
    if not in_database(place):
        place.require_store(place.store / DATA_FILE)
    return await _open(place)


async def _open(place: RouterPlace) -> OpenStore:
    durability = choices.durability(place.settings)
    try:
        if not in_database(place):
            tables = LmdbTables(place.store, durability)
            return OpenStore(tables, LmdbBulk(tables))
        # Imported only when a database is used.
        from blindpost.router.bulk_postgres import PostgresBulk
        from blindpost.router.tables_postgres import PostgresTables

        store = place.settings.store
        database = await PostgresTables.open(store.dsn, durability, in_turn=store.standby)
        return OpenStore(database, PostgresBulk(database.store))
    except (StoreVersionError, StoreFailedError) as error:
        raise OperatorError(f"{store_name(place)}: {error}.") from error
