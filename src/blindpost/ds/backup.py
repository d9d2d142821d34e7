"""What a backup of a delivery service holds; while it runs, its store is copied consistently."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from blindpost.ds.process import DATA_FILE, own_pair
from blindpost.ds.settings import DsPlace
from blindpost.ds.tables import LARGE_FOLDER
from blindpost.engine.loop import StoreFailedError
from blindpost.serving import backups
from blindpost.serving.backups import Aside, Contents, Database, Made
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import make_folder
from blindpost.store.lmdb import copy_store


def contents_of(place: DsPlace) -> Contents:
    in_database = bool(place.settings.store.database)
    return Contents(
        None if in_database else place.store,
        DATA_FILE,
        files=(place.certificate, place.key),
        optional=(place.tokens,),
        database=_database(place) if in_database else None,
    )


def _database(place: DsPlace) -> Database:
    # Imported only when a database is used.
    from blindpost.ds.tables_postgres import SCHEMA
    from blindpost.serving.databases import DatabaseCopies

    return DatabaseCopies(place.settings.store.database, SCHEMA)


def check(place: DsPlace) -> None:
    own_pair(place)


def back_up(place: DsPlace, target: Path) -> Made:
    """Write a backup to a new folder. The service may be running."""
    return backups.back_up(place, contents_of(place), lambda store: _copy(place, store), target)


def _copy(place: DsPlace, store: Path) -> None:
    """Large payloads are files: those from before the copy of the tables, and those completed during it.

    A missing one was taken by its recipient meanwhile.
    """
    _copy_large(place.store / LARGE_FOLDER, store / LARGE_FOLDER)
    try:
        copy_store(place.store, store)
    except StoreFailedError as error:
        raise OperatorError(f"copying {place.store} to {store}: {error}.") from error
    _copy_large(place.store / LARGE_FOLDER, store / LARGE_FOLDER)


def _copy_large(source: Path, target: Path) -> None:
    make_folder(target)
    for file in source.iterdir() if source.is_dir() else ():
        copied = target / file.name
        with contextlib.suppress(FileNotFoundError):
            if not copied.exists() or copied.stat().st_size != file.stat().st_size:
                shutil.copy2(file, copied)


def restore(backup: Path, folder: Path, *, force: bool) -> Aside:
    """Restore a backup into `folder`; returns where its previous content was moved to, if any."""
    return backups.restore(DsPlace, contents_of, check, backup, folder, force=force)
