"""`blindpost demo`: the whole thing on one machine, in less than a minute."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from blindpost.demo.story import Figures


def demo(
    folder: Annotated[
        Path | None, typer.Option(help="Keep everything in this new folder.", show_default="a temporary one")
    ] = None,
) -> None:
    """Send post-quantum encrypted letters through a router that is killed in the middle; nothing is lost."""
    if folder is not None:
        folder.mkdir(parents=True)
        _run(folder)
        return
    with tempfile.TemporaryDirectory(prefix="blindpost-demo-") as temporary:
        _run(Path(temporary))


def _run(folder: Path) -> None:
    from blindpost.demo.story import tell

    figures = asyncio.run(tell(folder, lambda line: typer.echo(f"  {line}")))
    _show(figures)
    if not figures.good:
        sys.exit(1)


def _show(figures: Figures) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Blindpost, end to end", title_justify="left", show_header=False)
    for name, value in (
        ("letters written and read", f"{figures.written} and {figures.read}"),
        ("answered OK before kill -9", f"{figures.answered_before_kill}"),
        ("not answered, sent again", f"{figures.unanswered}, of which {figures.repeated} had arrived"),
        ("lost", f"{figures.lost}"),
        ("in the order they were written", "yes" if figures.in_order else "no"),
        ("ratchet steps with sntrup761", f"{figures.chains}"),
        ("post-quantum in both directions", "yes" if figures.post_quantum else "no"),
        ("SEND to durable OK, median", f"{figures.latency_ms(0.5):.1f} ms"),
        ("SEND to durable OK, 99 %", f"{figures.latency_ms(0.99):.1f} ms"),
        ("exchange", f"{figures.exchange_s:.1f} s, restart {figures.restart_s:.1f} s of it"),
        ("store on disk", f"{figures.stored_bytes / 1e6:.1f} MB"),
    ):
        table.add_row(name, value)
    Console().print(table)
