"""`blindpost demo`: the whole system on one machine, in a few minutes."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blindpost.cli.output import JsonOption
from blindpost.serving.failures import OperatorError

if TYPE_CHECKING:
    from blindpost.demo.story import Shown


def demo(
    folder: Annotated[
        Path | None,
        typer.Option(help="A new folder for everything; it is kept.", show_default="blindpost-demo-..."),
    ] = None,
    with_report: Annotated[
        bool, typer.Option("--report/--no-report", help="Run the Spark pipeline at the end.")
    ] = True,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", help="Only this table of the pipeline. May be repeated.", show_default="all"),
    ] = None,
    queues: Annotated[
        int, typer.Option(min=100, max=10_000_000, help="How many queues the service has.")
    ] = 10_000,
    as_json: JsonOption = False,
) -> None:
    """Show the whole system at work: routers, agents, a service, a crash, a report. Nothing is lost."""
    if folder is None:
        place = Path(tempfile.mkdtemp(prefix="blindpost-demo-", dir=Path.cwd()))
    else:
        place = folder.absolute()
        if place.exists():
            raise OperatorError(f"{folder}: it exists already. Name a new folder for the demonstration.")
        place.mkdir(parents=True)
    shown = _played(place, queues, with_report, table or [], quiet=as_json)
    if as_json:
        rows = {row.name: {"value": row.value, "good": row.good} for row in shown.rows}
        typer.echo(json.dumps({"good": shown.good, "seconds": round(shown.taken_s, 1), "rows": rows}))
    else:
        _show(shown, place)
    if not shown.good:
        sys.exit(1)


def _played(place: Path, queues: int, with_report: bool, tables: list[str], *, quiet: bool) -> Shown:
    from blindpost.demo.stage import CommandFailedError
    from blindpost.demo.story import tell
    from blindpost.serving.children import DidNotStartError

    started = time.monotonic()
    # Agents log each step that waits for a router; here routers are killed on purpose.
    logging.getLogger("blindpost.agent").setLevel(logging.ERROR)

    def say(line: str) -> None:
        if not quiet:
            typer.echo(f"  {time.monotonic() - started:5.1f} s  {line}")

    try:
        return asyncio.run(tell(place, say, queues=queues, with_report=with_report, tables=tables))
    except KeyboardInterrupt:
        typer.echo(f"Stopped; nothing runs any more. Everything so far is in {place}.", err=True)
        sys.exit(130)
    except (CommandFailedError, DidNotStartError) as error:
        raise OperatorError(
            f"the demonstration stopped: {error}\nIts files and logs are in {place}."
        ) from error


def _show(shown: Shown, place: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Blindpost in {shown.taken_s:.0f} s", title_justify="left", show_header=False)
    for row in shown.rows:
        table.add_row(row.name, row.value, "[green]yes[/]" if row.good else "[red]NO[/]")
    console = Console()
    console.print(table)
    if shown.report is not None:
        console.print(f"The report: {shown.report}", soft_wrap=True)
        console.print("It is strict: what waited for the killed routers broke its promise of one second.")
    console.print(f"Everything else is in {place}; nothing runs any more.", soft_wrap=True)
