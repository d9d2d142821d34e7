"""What a backup of a notification router holds; a running router copies its store itself."""

from __future__ import annotations

import errno
from pathlib import Path

from blindpost.ntf.process import KIND
from blindpost.ntf.push_keys import former_files
from blindpost.ntf.schema_sqlite import MIGRATIONS
from blindpost.ntf.settings import NtfPlace
from blindpost.serving import backups
from blindpost.serving.backups import Aside, Contents, Database, Made
from blindpost.serving.control import NotRunningError, ask
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import telling
from blindpost.serving.identity import Identity
from blindpost.store import copying
from blindpost.store.file_locks import in_turn
from blindpost.store.sqlite import NTF, UNUSABLE, SqliteStore

COPY_S_MAX = 86_400.0
"""A router that ends meanwhile is noticed at once; one that copies may have much to copy."""


def contents_of(place: NtfPlace) -> Contents:
    identity = Identity(place.keys, KIND)
    apple = place.settings.apns.key_file
    is_file = place.settings.store.kind == "sqlite"
    return Contents(
        place.database if is_file else None,
        files=(identity.ca_certificate, identity.online),
        optional=(
            place.counters,
            place.vapid_file,
            *(path for _, path in former_files(place)),
            *((place.folder / apple,) if apple else ()),
        ),
        apart={identity.ca_key: identity.ca_certificate, place.key_file: None},
        database=None if is_file else _database(place),
    )


def _database(place: NtfPlace) -> Database:
    # Imported only when a database is used.
    from blindpost.ntf.tables_postgres import SCHEMA
    from blindpost.serving.databases import DatabaseCopies

    return DatabaseCopies(place.settings.store.dsn, SCHEMA)


def check(place: NtfPlace) -> None:
    Identity(place.keys, KIND).load(place.fingerprint)


def back_up(place: NtfPlace, target: Path, *, with_ca_key: bool, with_store_key: bool) -> Made:
    """Write a backup to a new folder. The router may be running."""
    keys = {Identity(place.keys, KIND).ca_key: with_ca_key, place.key_file: with_store_key}
    wanted = tuple(key for key, is_wanted in keys.items() if is_wanted)
    return backups.back_up(place, contents_of(place), lambda store: _copy(place, store), target, wanted)


def _copy(place: NtfPlace, target: Path) -> None:
    """Only one process may open the file: a running router, or this one."""
    try:
        return _fetch(place, target)
    except NotRunningError:
        pass
    try:
        with place.locked():
            store = SqliteStore.open(place.database, MIGRATIONS, NTF)
            try:
                store.backup(target)
            finally:
                store.close()
    except UNUSABLE as error:
        raise OperatorError(f"{place.database}: {error}.") from error


def _fetch(place: NtfPlace, target: Path) -> None:
    """A running router may be allowed to write nowhere else: it copies its file beside it, and we take that.

    What a command that was killed left there is replaced.
    """
    copy = place.database.with_name(f".{place.database.name}.copy")
    with telling(target), in_turn(place.folder / "backup.lock"):
        try:
            copy.unlink(missing_ok=True)
            ask(place.control, "copy-store", timeout_s=COPY_S_MAX, to=str(copy))
            try:
                copy.rename(target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                copying.copy(copy, target)
        finally:
            copy.unlink(missing_ok=True)


def restore(backup: Path, folder: Path, *, force: bool) -> Aside:
    """Restore a backup into `folder`; returns where its previous content was moved to, if any."""
    return backups.restore(NtfPlace, contents_of, check, backup, folder, force=force)
