"""The table of what was taken over from an old server."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from blindpost.serving.ini import Fate, Row

_COLOURS = {Fate.TAKEN: "green", Fate.CHANGED: "yellow", Fate.LEFT: "dim"}


def tell_adopted(rows: Sequence[Row], name: str) -> None:
    """Every setting of the old file, and what became of it."""
    table = Table(title=name, title_justify="left", show_edge=False)
    for name in ("setting", "value", "", "what became of it"):
        table.add_column(name, overflow="fold")
    for row in rows:
        fate = f"[{_COLOURS[row.fate]}]{row.fate.value}[/]"
        table.add_row(escape(row.key), escape(row.value), fate, escape(row.remark))
    Console(highlight=False).print(table)
