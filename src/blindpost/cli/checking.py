"""`check` of every server: a table of what its start would meet, and the exit code 1 if it would fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from blindpost.cli.output import say
from blindpost.serving.checking import ChecksOf, Finding, Grade, examine
from blindpost.serving.failures import OperatorError
from blindpost.serving.place import Place

_COLOURS = {Grade.OK: "green", Grade.WARNING: "yellow", Grade.ERROR: "red"}


def tell_checks(kind: type[Place[Any]], checks_of: ChecksOf, config: Path, *, as_json: bool) -> None:
    """Look at everything; settings that cannot be read are the first and only finding."""
    try:
        place = kind.read(config)
        found = asyncio.run(examine(place, checks_of))
    except OperatorError as error:
        found = [Finding("settings", Grade.ERROR, str(error))]
    counts = {grade: sum(one.grade is grade for one in found) for grade in Grade}
    if as_json:
        rows = [
            {"subject": one.subject, "grade": one.grade.value, "found": one.found, "remedy": one.remedy}
            for one in found
        ]
        typer.echo(json.dumps({"ok": not counts[Grade.ERROR], "findings": rows}))
    else:
        _show(found)
        say(_verdict(counts[Grade.ERROR], counts[Grade.WARNING]))
    if counts[Grade.ERROR]:
        raise typer.Exit(1)


def _show(found: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_edge=False, box=None, pad_edge=False)
    for name in ("", "what", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for one in found:
        colour = _COLOURS[one.grade]
        table.add_row(f"[{colour}]{one.grade.value}[/]", one.subject, escape(one.found), escape(one.remedy))
    Console(highlight=False).print(table)


def _verdict(errors: int, warnings: int) -> str:
    if errors:
        found = f"{_counted(errors, 'error')}, {_counted(warnings, 'warning')}"
        return f"It would not start, or not work: {found}. Nothing was changed."
    if warnings:
        return f"It can start; {_counted(warnings, 'warning')}. Nothing was changed."
    return "It can start. Nothing was changed."


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
