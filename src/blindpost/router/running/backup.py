"""Backups: the store, the configuration and the keys in one folder, consistent while the router runs."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import blindpost
from blindpost.engine.loop import StoreFailedError
from blindpost.router.running.settings import CONFIG_NAME, RouterPlace
from blindpost.router.running.stores import DATA_FILE, in_database
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import make_folder, read_file, sync_folder, telling, write_file
from blindpost.serving.identity import CA_CERTIFICATE, CA_KEY, Identity
from blindpost.store.lmdb import copy_store

MANIFEST = "backup.json"
KEYS, STORE, COUNTERS = "keys", "store", "counters.json"
_FORMAT = 1


def back_up(place: RouterPlace, target: Path, *, with_ca_key: bool) -> int:
    """Write a backup to a new folder; returns its size in bytes. The router may be running."""
    if target.exists():
        raise OperatorError(f"{target}: there is something already. Name a folder that does not exist yet.")
    if in_database(place):
        raise OperatorError(
            f"{place.file}: the store is a database. Back it up with pg_dump, and copy {place.file.name} and "
            f"{place.keys} beside it."
        )
    if not (place.store / DATA_FILE).exists():
        raise OperatorError(f"{place.store}: the router's store is missing, there is nothing to back up.")
    fresh = target.with_name(f".{target.name}.new")
    with telling(target):
        shutil.rmtree(fresh, ignore_errors=True)
        make_folder(fresh / KEYS)
        make_folder(fresh / STORE)
        _copy_store(place.store, fresh / STORE)
        write_file(fresh / CONFIG_NAME, read_file(place.file))
        for name in (CA_CERTIFICATE, Identity(place.keys).online.name, *((CA_KEY,) if with_ca_key else ())):
            write_file(fresh / KEYS / name, read_file(place.keys / name))
        if place.counters.exists():
            write_file(fresh / COUNTERS, read_file(place.counters))
        manifest = {"format": _FORMAT, "program": blindpost.__version__, "made": int(time.time())}
        write_file(fresh / MANIFEST, json.dumps(manifest).encode())
        fresh.rename(target)
        sync_folder(target.parent)
        return sum(file.stat().st_size for file in target.rglob("*") if file.is_file())


def restore(backup: Path, folder: Path, *, force: bool) -> Path | None:
    """Restore a backup into `folder`; returns where its previous content was moved to, if any."""
    _check(backup)
    place = _place(backup, folder)
    occupied = folder.exists() and any(folder.iterdir())
    if occupied and not force:
        raise OperatorError(
            f"{folder}: there is a router already. Name another folder, or replace it with --force: "
            "what is there now is moved aside, not deleted."
        )
    fresh = folder.with_name(f".{folder.name}.new")
    aside = folder.with_name(f"{folder.name}.replaced-{int(time.time())}") if occupied else None
    with telling(folder):
        shutil.rmtree(fresh, ignore_errors=True)
        make_folder(fresh.parent)
        shutil.copytree(backup, fresh)
        (fresh / MANIFEST).unlink()
        if aside is not None:
            with place.locked():
                _keep_ca_key(folder / KEYS, fresh / KEYS)
                folder.rename(aside)
        elif folder.exists():
            folder.rmdir()
        fresh.rename(folder)
        sync_folder(folder.parent)
    return aside


def _copy_store(store: Path, target: Path) -> None:
    try:
        copy_store(store, target)
    except StoreFailedError as error:
        raise OperatorError(f"{store}: {error}.") from error


def _check(backup: Path) -> None:
    """A backup is complete, and its keys and configuration belong together."""
    if not (backup / MANIFEST).exists():
        raise OperatorError(f"{backup}: this is not a backup that `blindpost router backup` made.")
    manifest = json.loads(read_file(backup / MANIFEST))
    if manifest["format"] > _FORMAT:
        raise OperatorError(
            f"{backup}: made by Blindpost {manifest['program']}, which is newer than this one "
            f"({blindpost.__version__}). Use the newer program."
        )
    if not (backup / STORE / DATA_FILE).exists():
        raise OperatorError(f"{backup}: the store is missing in this backup.")
    settings = RouterPlace.parse(read_file(backup / CONFIG_NAME), backup / CONFIG_NAME)
    Identity(backup / KEYS).load(RouterPlace(backup / CONFIG_NAME, settings).fingerprint)


def _place(backup: Path, folder: Path) -> RouterPlace:
    place = RouterPlace(
        folder / CONFIG_NAME, RouterPlace.parse(read_file(backup / CONFIG_NAME), backup / CONFIG_NAME)
    )
    if (place.keys, place.store) != (folder / KEYS, folder / STORE):
        raise OperatorError(
            f"{backup}: its configuration keeps keys or store in other places than {folder}. "
            f"Copy `{KEYS}` and `{STORE}` of the backup there by hand."
        )
    return place


def _keep_ca_key(old: Path, new: Path) -> None:
    """The key of the same authority stays where it is, if the backup was made without it."""
    key, certificate = old / CA_KEY, old / CA_CERTIFICATE
    if (
        key.exists()
        and certificate.exists()
        and not (new / CA_KEY).exists()
        and read_file(certificate) == read_file(new / CA_CERTIFICATE)
    ):
        write_file(new / CA_KEY, read_file(key))
