"""Imports, copies and exports as an operator starts them: whole routers, locked while they are moved."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from blindpost.engine.loop import StoreFailedError
from blindpost.router.bulk import BulkStore
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.moving.certificate import Certificate, certificate_of, differences
from blindpost.router.moving.copying import Copier
from blindpost.router.moving.exporting import Files, certificate_of_files, export
from blindpost.router.moving.importing import Importer, Source
from blindpost.router.moving.progress import Progress, Report
from blindpost.router.running import choices
from blindpost.router.running.settings import RouterPlace
from blindpost.router.running.stores import OpenStore, open_any_store, open_store, store_name
from blindpost.router.tables import LmdbTables, RouterStore
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import telling, write_file
from blindpost.store.contract import Durability

RESTART = ".start"
"""The suffix of a store log left by a reference router that was stopped while starting."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What an import, a copy or an export did."""

    counts: dict[str, int]
    source: Certificate
    result: Certificate
    report: Path | None
    """The file with the lines that were skipped or changed; None if there are none."""
    done_before: bool = False
    """It was already complete, and nothing was checked again."""

    @property
    def differing(self) -> list[str]:
        return differences(self.source, self.result)

    @property
    def text(self) -> str:
        """The certificate, for programs."""
        sides = {"source": self.source, "result": self.result}
        return json.dumps({**sides, "equal": not self.differing, "differing": self.differing}, indent=2)


async def import_files(
    to: RouterPlace, source: Source, report: Path, certificate: Path, progress: Progress
) -> Moved:
    """Import everything from `source` into the empty store of a router, or resume such an import."""
    source = _usable(source)
    with to.locked():
        async with _opened(to, open_any_store) as (store, bulk):
            return await _import(to, source, store, bulk, report, certificate, progress)


async def rehearse_files(to: RouterPlace, source: Source, report: Path, progress: Progress) -> Moved:
    """The same import into a temporary store."""
    source = _usable(source)
    with tempfile.TemporaryDirectory(prefix="blindpost-rehearsal-", dir=to.folder) as folder:
        tables = LmdbTables(Path(folder), Durability.OS)
        try:
            return await _import(to, source, tables, LmdbBulk(tables), report, None, progress)
        finally:
            tables.close()


async def _import(
    to: RouterPlace,
    source: Source,
    store: RouterStore,
    bulk: BulkStore,
    report: Path,
    certificate: Path | None,
    progress: Progress,
) -> Moved:
    rules = choices.router_rules(to.settings)
    importer = Importer(source, store, bulk, report, rules, progress=progress)
    with telling(source.store_log):
        if not await importer.run():
            return Moved(importer.mark.counts, {}, {}, _written(report), done_before=True)
        told = await importer.check()
    moved = Moved(importer.mark.counts, told, await certificate_of(bulk), _written(report))
    if certificate is not None:
        _save(moved, certificate)
    if not moved.differing:
        await importer.finish()
    return moved


async def copy(source: RouterPlace, to: RouterPlace, certificate: Path, progress: Progress) -> Moved:
    """Copy everything from one router's store into the empty one of another, or resume such a copy."""
    if source.file == to.file:
        raise OperatorError(f"{to.file}: a router cannot be copied into itself.")
    with source.locked(), to.locked():
        async with _opened(source) as (_, old), _opened(to, open_any_store) as (store, bulk):
            copier = Copier(old, f"store of {source.folder}", store, bulk, progress)
            if not await copier.run():
                return Moved(copier.mark.counts, {}, {}, None, done_before=True)
            moved = Moved(copier.mark.counts, await certificate_of(old), await certificate_of(bulk), None)
            _save(moved, certificate)
            if not moved.differing:
                await copier.finish()
            return moved


async def export_files(
    source: RouterPlace, files: Files, report_path: Path, certificate: Path, progress: Progress
) -> Moved:
    """Write everything that a router's store holds, as far as the files can tell it."""
    with source.locked(), telling(files.store_log):
        async with _opened(source) as (_, bulk):
            report = Report(report_path)
            try:
                counts = await export(bulk, files, report, progress)
                report.sync()
            finally:
                report.close()
            told = await certificate_of(bulk, as_lines=True)
    moved = Moved(counts, told, certificate_of_files(files), _written(report_path))
    _save(moved, certificate)
    return moved


def _save(moved: Moved, certificate: Path) -> None:
    """Keep the proof, before what it proves is final: a router that has served cannot be compared again."""
    write_file(certificate, moved.text.encode())


def _usable(source: Source) -> Source:
    """Check that all files exist and that the store log is the one the reference would read."""
    for _, path in source.parts:
        if not path.exists():
            raise OperatorError(f"{path}: there is no such file or folder.")
    unfinished = source.store_log.with_name(source.store_log.name + RESTART)
    if unfinished.exists():
        raise OperatorError(
            f"{unfinished}: smp-server was stopped while it rewrote its store log, and this is the complete "
            "file. Start and stop smp-server once more, or name this file with --from-log."
        )
    return source


def _written(report: Path) -> Path | None:
    """The report, if something is in it; an empty one is removed."""
    if report.exists() and report.stat().st_size:
        return report
    report.unlink(missing_ok=True)
    return None


@contextlib.asynccontextmanager
async def _opened(
    place: RouterPlace, opening: Callable[[RouterPlace], Awaitable[OpenStore]] = open_store
) -> AsyncIterator[tuple[RouterStore, BulkStore]]:
    """The store of a stopped router."""
    opened = await opening(place)
    try:
        yield opened.tables, opened.bulk
    except StoreFailedError as error:
        raise OperatorError(f"{store_name(place)}: {error}.") from error
    finally:
        opened.tables.close()
