"""Backups of any server: store, configuration and keys in one folder, whole or not at all.

What the server lists in `Contents` is copied beside a manifest. A restored folder replaces another as a
whole; the previous content is moved aside, never deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import blindpost
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import DAMAGED, make_folder, read_file, sync_folder, telling, write_file
from blindpost.serving.place import Place

MANIFEST = "backup.json"
DUMP = "database.sql.gz"
_FORMAT = 1

P = TypeVar("P", bound=Place[Any])


class Database(Protocol):
    """A store in PostgreSQL; what fails is an `OperatorError`."""

    def dump(self, target: Path) -> None: ...

    def load(self, source: Path, *, replace: bool) -> str | None:
        """The name under which what was there before is kept, if anything was."""


class Made(NamedTuple):
    """A backup that was written."""

    size: int
    left_out: Sequence[Path] = ()
    """Files of the server that are not in it, because they lie outside its folder."""


class Aside(NamedTuple):
    """Where a restore left what was there before."""

    folder: Path | None = None
    schema: str | None = None
    missing: Sequence[Path] = ()
    """Files outside the folder that the restored server needs, and that are not there."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What belongs to a server besides its configuration.

    Files outside its folder are in no backup, and named instead; a store there cannot be backed up.
    """

    store: Path | None
    """A file, or a folder with what `store_file` names in it; None if a database has it, or nobody."""
    store_file: str = ""
    files: Sequence[Path] = ()
    optional: Sequence[Path] = ()
    apart: Mapping[Path, Path | None] = field(default_factory=dict)
    """Keys that are kept apart from backups unless they are asked for. A restore keeps the one that is there,
    if the file that it belongs to is the same."""
    database: Database | None = None

    @property
    def is_there(self) -> bool:
        file = None if self.store is None else self.store / self.store_file
        return file is None or (file.exists() and file.stat().st_size > 0)

    def within(self, folder: Path, keys: Sequence[Path] = ()) -> None:
        """Refuse a store, or keys that are asked for, if a copy of the folder would not contain them."""
        for path in (*(() if self.store is None else (self.store,)), *keys):
            if not _is_within(path, folder):
                raise OperatorError(
                    f"{path}: this is outside {folder}. Copy it by hand: a backup covers one folder."
                )

    def outside(self, folder: Path) -> list[Path]:
        """The other files that a copy of the folder would not contain."""
        return [path for path in (*self.files, *self.optional) if not _is_within(path, folder)]


def _is_within(path: Path, folder: Path) -> bool:
    return Path(os.path.abspath(folder)) in Path(os.path.abspath(path)).parents


def back_up(
    place: Place[Any],
    contents: Contents,
    copy_store: Callable[[Path], None] | None,
    target: Path,
    with_keys: Sequence[Path] = (),
) -> Made:
    """Write a backup to a new folder. The store may be in use."""
    if target.exists():
        raise OperatorError(f"{target}: this exists already. Name a new folder.")
    if target.resolve().is_relative_to(place.folder.resolve()):
        raise OperatorError(
            f"{target}: this is in the server's own folder, which a restore replaces. Name one outside of it."
        )
    contents.within(place.folder, with_keys)
    left_out = contents.outside(place.folder)
    if not contents.is_there:
        raise OperatorError(f"{contents.store}: the store is missing, there is nothing to back up.")
    fresh = target.with_name(f".{target.name}.new")
    with telling(target), _removed_if_it_fails(fresh):
        make_folder(fresh)
        if contents.store is not None and copy_store is not None:
            store = fresh / contents.store.relative_to(place.folder)
            make_folder(store if contents.store_file else store.parent)
            copy_store(store)
        if contents.database is not None:
            contents.database.dump(fresh / DUMP)
        write_file(fresh / place.config_name(), read_file(place.file))
        there = [file for file in contents.optional if file.exists()]
        for file in (*contents.files, *there, *with_keys):
            if file in left_out:
                continue
            copied = fresh / file.relative_to(place.folder)
            make_folder(copied.parent)
            write_file(copied, read_file(file))
        manifest = {
            "format": _FORMAT,
            "program": blindpost.__version__,
            "made": int(time.time()),
            "files": {name: _digest(fresh / name) for name in _copied(fresh, place.config_name())},
        }
        write_file(fresh / MANIFEST, json.dumps(manifest).encode())
        fresh.rename(target)
        sync_folder(target.parent)
        size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
        return Made(size, [file for file in left_out if file.exists()])


def restore(
    kind: type[P],
    contents_of: Callable[[P], Contents],
    check: Callable[[P], None],
    backup: Path,
    folder: Path,
    *,
    force: bool,
) -> Aside:
    """Restore a backup into `folder`; returns where its previous content was moved to, if any.

    A link to a folder stays one: what it leads to, perhaps on a larger disk, is replaced.
    """
    folder = folder.resolve()
    kept = _checked(kind, contents_of, check, backup)
    place = kind(folder / kind.config_name(), kept.settings)
    contents_of(place).within(folder)
    if folder.is_mount():
        raise OperatorError(
            f"{folder}: a disk is mounted here, and a restore replaces the folder as a whole. Name a folder "
            "on that disk."
        )
    occupied = folder.exists() and any(folder.iterdir())
    if occupied and not force:
        raise OperatorError(
            f"{folder}: a {kind.title} is here already. Name another folder, or replace it with --force: "
            "what is there now is moved aside, not deleted."
        )
    fresh = folder.with_name(f".{folder.name}.new")
    aside = free_name(folder.with_name(f"{folder.name}.replaced-{int(time.time())}")) if occupied else None
    database = contents_of(place).database
    schema = None
    with telling(folder), _removed_if_it_fails(fresh):
        make_folder(fresh.parent)
        shutil.copytree(backup, fresh, copy_function=_copy_file)
        _check_copied(backup, fresh)
        (fresh / MANIFEST).unlink()
        with place.locked() if aside is not None else contextlib.nullcontext():
            if aside is not None:
                _keep_apart(contents_of(place), folder, fresh)
            if database is not None:
                schema = database.load(fresh / DUMP, replace=force)
                (fresh / DUMP).unlink()
            if folder.exists():
                _give_all(fresh, folder.stat())
                folder.rename(aside) if aside is not None else folder.rmdir()
        fresh.rename(folder)
        sync_folder(folder.parent)
    return Aside(aside, schema, [file for file in contents_of(place).outside(folder) if not file.exists()])


def free_name(path: Path) -> Path:
    """This name, with a number if it is taken."""
    more = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(name for name in itertools.chain([path], more) if not os.path.lexists(name))


@contextlib.contextmanager
def _removed_if_it_fails(fresh: Path) -> Iterator[None]:
    """Half of a folder is left neither by a full disk nor by Ctrl-C."""
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _checked(
    kind: type[P], contents_of: Callable[[P], Contents], check: Callable[[P], None], backup: Path
) -> P:
    """A backup is complete, and its keys and configuration belong together."""
    if not (backup / MANIFEST).exists():
        raise OperatorError(f"{backup}: this is not a backup that `blindpost {kind.word} backup` made.")
    try:
        manifest = json.loads(read_file(backup / MANIFEST))
        made_as, program = int(manifest["format"]), str(manifest["program"])
        dict(manifest.get("files", {}))
    except DAMAGED as error:
        raise OperatorError(f"{backup / MANIFEST}: this is damaged. Take another backup.") from error
    if made_as > _FORMAT:
        raise OperatorError(
            f"{backup}: made by Blindpost {program}, which is newer than this one "
            f"({blindpost.__version__}). Use the newer program."
        )
    file = backup / kind.config_name()
    if not file.exists():
        found = ", ".join(sorted(path.name for path in backup.glob("*.toml"))) or "no settings"
        raise OperatorError(f"{backup}: this is no backup of a {kind.title}: {found} in it.")
    place = kind(file, kind.parse(read_file(file), file))
    contents = contents_of(place)
    if not contents.is_there or (contents.database is not None and not (backup / DUMP).exists()):
        raise OperatorError(f"{backup}: the store is missing in this backup. Take another backup.")
    if not set(contents.files) & set(contents.outside(backup)):  # which may be made, or mounted, later
        check(place)
    return place


def _copy_file(source: str, target: str) -> None:
    """One message about the first failure, instead of a list of all."""
    with telling(Path(target)):
        shutil.copy2(source, target)


def _copied(folder: Path, config_name: str) -> list[str]:
    """All files of a backup but its settings, which may be edited before they are restored."""
    names = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return sorted(name for name in names if name != config_name)


def _give_all(folder: Path, like: os.stat_result) -> None:
    """What root restores belongs to the owner of what it replaces: the folder last, so that nobody enters."""
    if os.geteuid() != 0:
        return
    with contextlib.suppress(PermissionError):  # a root without that right, as in a container
        for path in (*folder.rglob("*"), folder):
            os.chown(path, like.st_uid, like.st_gid, follow_symlinks=False)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _check_copied(backup: Path, fresh: Path) -> None:
    """Refuse a backup that was cut short or damaged on its way here; older ones do not list their files."""
    files = json.loads(read_file(fresh / MANIFEST)).get("files", {})
    for name, digest in files.items():
        if not (fresh / name).is_file() or _digest(fresh / name) != digest:
            found = "differs from what was backed up" if (fresh / name).is_file() else "is missing"
            raise OperatorError(
                f"{backup / name}: this {found}. Copy the backup again, or take another one. "
                "Nothing was changed."
            )


def _keep_apart(contents: Contents, old: Path, new: Path) -> None:
    """Keys left out of a backup stay in place, if they belong to its content."""
    for key, belongs_to in contents.apart.items():
        if not _is_within(key, old) or not key.exists():
            continue
        kept = new / key.relative_to(old)
        if kept.exists():
            continue
        if belongs_to is None or (
            belongs_to.exists() and read_file(belongs_to) == read_file(new / belongs_to.relative_to(old))
        ):
            write_file(kept, read_file(key))
