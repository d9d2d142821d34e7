"""What a backup of a router holds; while the router runs, its store is copied consistently."""

from __future__ import annotations

from pathlib import Path

from blindpost.engine.loop import StoreFailedError
from blindpost.router.running.settings import RouterPlace
from blindpost.router.running.stores import DATA_FILE, in_database
from blindpost.serving import backups
from blindpost.serving.backups import Aside, Contents, Database, Made
from blindpost.serving.failures import OperatorError
from blindpost.serving.identity import Identity
from blindpost.store.lmdb import copy_store


def contents_of(place: RouterPlace) -> Contents:
    identity = Identity(place.keys)
    return Contents(
        None if in_database(place) else place.store,
        DATA_FILE,
        files=(identity.ca_certificate, identity.online),
        optional=(place.counters,),
        apart={identity.ca_key: identity.ca_certificate},
        database=_database(place) if in_database(place) else None,
    )


def _database(place: RouterPlace) -> Database:
    # Imported only when a database is used.
    from blindpost.router.postgres_schema import SCHEMA
    from blindpost.serving.databases import DatabaseCopies

    return DatabaseCopies(place.settings.store.dsn, SCHEMA)


def check(place: RouterPlace) -> None:
    Identity(place.keys).load(place.fingerprint)


def back_up(place: RouterPlace, target: Path, *, with_ca_key: bool) -> Made:
    """Write a backup to a new folder. The router may be running."""

    def copied(store: Path) -> None:
        try:
            copy_store(place.store, store)
        except StoreFailedError as error:
            raise OperatorError(f"copying {place.store} to {store}: {error}.") from error

    keys = (Identity(place.keys).ca_key,) if with_ca_key else ()
    return backups.back_up(place, contents_of(place), copied, target, keys)


def restore(backup: Path, folder: Path, *, force: bool) -> Aside:
    """Restore a backup into `folder`; returns where its previous content was moved to, if any."""
    return backups.restore(RouterPlace, contents_of, check, backup, folder, force=force)
