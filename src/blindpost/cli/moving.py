"""`blindpost router import` and `export`: move in from smp-server, out again, or to another store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blindpost.cli.options import CertificateOption, NewRouterOption, StoppedOption, UnstartedOption
from blindpost.cli.output import JsonOption, place_of, say
from blindpost.router.running.settings import RouterPlace
from blindpost.serving.failures import OperatorError

if TYPE_CHECKING:
    from blindpost.router.moving.progress import Progress
    from blindpost.router.running.moves import Moved
    from blindpost.serving.old_stats import OldCounters

HASH_SHOWN = 16
IMPORT_CERTIFICATE = "import-certificate.json"


def import_(
    to: NewRouterOption,
    from_log: Annotated[
        Path | None, typer.Option(help="smp-server-store.log of a stopped smp-server.", show_default=False)
    ] = None,
    messages: Annotated[
        Path | None, typer.Option(help="Its smp-server-messages.log.", show_default=False)
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="Its folder of messages, if it has a journal store.", show_default=False),
    ] = None,
    ntfs: Annotated[Path | None, typer.Option(help="Its smp-server-ntfs.log.", show_default=False)] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="Another Blindpost router instead, stopped.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Do everything in a temporary store, and change nothing.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Where lines that are not taken are listed.", show_default="beside the configuration"
        ),
    ] = None,
    certificate: CertificateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move queues, messages and services into a new router, and prove that everything arrived.

    An import that was stopped goes on when the same command is given again. Exit code 1 if what is stored
    differs from what was there.
    """
    from blindpost.router.moving.importing import Source
    from blindpost.router.running import moves

    if (from_log is None) == (from_ is None):
        raise typer.BadParameter("name either --from-log or --from")
    if messages is not None and journal is not None:
        raise typer.BadParameter("name either --messages or --journal")
    if from_ is not None and (messages or journal or ntfs or dry_run):
        raise typer.BadParameter("--messages, --journal, --ntfs and --dry-run belong to --from-log")
    if from_ is not None and report is not None:
        raise typer.BadParameter("--report belongs to --from-log: a copy leaves nothing out")
    if dry_run and certificate is not None:
        raise typer.BadParameter("--dry-run writes no certificate")
    place = place_of(to)
    listed = (report or place.folder / f"{'rehearsal' if dry_run else 'import'}-report.txt").absolute()
    kept = (certificate or place.folder / IMPORT_CERTIFICATE).absolute()
    _demand_apart(from_log, messages, journal, ntfs, listed, kept)
    demand_writable(kept)
    with progress_bar(quiet=as_json) as progress:
        if from_log is None:
            assert from_ is not None
            moved = asyncio.run(moves.copy(place_of(from_), place, kept, progress))
        elif dry_run:
            source = Source(from_log, messages, journal, ntfs)
            moved = asyncio.run(moves.rehearse_files(place, source, listed, progress))
        else:
            source = Source(from_log, messages, journal, ntfs)
            moved = asyncio.run(moves.import_files(place, source, listed, kept, progress))
    _tell(moved, place, None if dry_run else kept, as_json=as_json)


def import_stats(
    file: Annotated[Path, typer.Argument(help="smp-server-stats.log of a stopped smp-server.")],
    to: UnstartedOption,
    as_json: JsonOption = False,
) -> None:
    """Take over what an smp-server has counted, so that statistics go on without a break."""
    from blindpost.router.moving.stats import NAMES
    from blindpost.serving.counters import take_over_stats

    place = place_of(to)
    with place.locked():
        old = take_over_stats(place.counters, file, NAMES)
    tell_stats(old, as_json=as_json)


def tell_stats(old: OldCounters[Any], *, as_json: bool) -> None:
    if as_json:
        counts = {meter.value: count for meter, count in old.counts.items()}
        typer.echo(json.dumps({"since": old.since, "counts": counts, "left": old.left}))
        return
    say(f"Took over {len(old.counts)} counters. Not known here: {', '.join(old.left) or 'none'}.")


def export(
    from_: StoppedOption,
    to_log: Annotated[Path, typer.Option(help="The store log to write, in the form that smp-server reads.")],
    messages: Annotated[
        Path | None,
        typer.Option(help="The message log to write.", show_default="smp-server-messages.log beside it"),
    ] = None,
    ntfs: Annotated[
        Path | None,
        typer.Option(help="The notification log to write.", show_default="smp-server-ntfs.log beside it"),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            help="Where the certificate is written.", show_default="export-certificate.json beside it"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write everything for smp-server, as far as its files can tell it, and prove that it can be read."""
    from blindpost.router.moving.exporting import Files
    from blindpost.router.running import moves

    place, folder = place_of(from_), to_log.absolute().parent
    files = Files(
        to_log, messages or folder / "smp-server-messages.log", ntfs or folder / "smp-server-ntfs.log"
    )
    for path in (files.store_log, files.messages, files.notifications):
        if path.exists():
            raise OperatorError(f"{path}: this exists already. Name a new file.")
    listed = folder / "export-report.txt"
    kept = (certificate or folder / "export-certificate.json").absolute()
    _demand_apart(files.store_log, files.messages, files.notifications, listed, kept)
    demand_writable(kept)
    with progress_bar(quiet=as_json) as progress:
        moved = asyncio.run(moves.export_files(place, files, listed, kept, progress))
    _tell(moved, place, kept, as_json=as_json)


def _demand_apart(*paths: Path | None) -> None:
    """Every file is for one thing: what is written must replace nothing that is read, or written too."""
    seen: set[Path] = set()
    for path in filter(None, paths):
        if path.resolve() in seen:
            raise OperatorError(f"{path}: this is named for two things. Give each a file of its own.")
        seen.add(path.resolve())


def demand_writable(file: Path) -> None:
    """Say before hours of work that what they are to prove cannot be written."""
    if file.is_dir() or not os.access(file.parent, os.W_OK | os.X_OK):
        raise OperatorError(f"{file}: nothing can be written there. Name a file in a folder that exists.")


def _tell(moved: Moved, place: RouterPlace, certificate: Path | None, *, as_json: bool) -> None:
    """Print what was done and the certificate; end with exit code 1 if its sides differ."""
    if as_json:
        report = None if moved.report is None else str(moved.report)
        told = {"counts": moved.counts, "done_before": moved.done_before, "report": report}
        typer.echo(json.dumps({**told, "certificate": json.loads(moved.text)}))
    elif moved.done_before:
        say(f"This was imported into {place.folder} before, and found complete. Nothing was changed.")
    else:
        _show(moved)
        if moved.report is not None:
            say(f"Lines that could not be taken as they are: {moved.report}")
        if certificate is not None:
            say(f"Certificate: {certificate}")
        say("Everything arrived." if not moved.differing else f"DIFFERENT: {', '.join(moved.differing)}")
    if moved.differing:
        sys.exit(1)


def _show(moved: Moved) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True, highlight=False)
    counts = Table(title="Lines", title_justify="left", show_header=False, box=None, pad_edge=False)
    for name, count in moved.counts.items():
        counts.add_row(name, f"{count:,}")
    console.print(counts)
    table = Table("", "source", "result", title="Certificate", title_justify="left", box=None, pad_edge=False)
    for name in dict.fromkeys((*moved.source, *moved.result)):
        mark = "" if moved.source.get(name) == moved.result.get(name) else "  <- differs"
        table.add_row(name, _shown(moved.source.get(name)), _shown(moved.result.get(name)) + mark)
    console.print(table)


def _shown(value: int | str | None) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else value[:HASH_SHOWN]


@contextlib.contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress]:
    """How far it is, for a person who watches."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda part, done, total: None
        return
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def tell(part: str, done: int, total: int | None) -> None:
            bar.update(task, description=part, completed=done, total=total)

        yield tell


def add_to(app: typer.Typer) -> None:
    app.command("import")(import_)
    app.command("import-stats")(import_stats)
    app.command("export")(export)
