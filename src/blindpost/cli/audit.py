"""`blindpost router audit`: do the services' counters agree with the queues?"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from blindpost.cli.options import ConfigOption
from blindpost.cli.output import HERE, JsonOption, place_of, say, show, working


def audit(
    config: ConfigOption = HERE,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what is wrong; the router must not run.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare counters and sets of services with all queues, in sums; never which queues or whose.

    While the router runs, its store of one moment is compared. Exit code 1 if something stays wrong.
    """
    from blindpost.router.running.auditing import audit_place

    with working("comparing ..."):
        found = asyncio.run(audit_place(place_of(config), repairs=repair))
    values = found.values()
    if as_json:
        result = {name.replace(" ", "_"): count for name, count in values.items()}
        typer.echo(json.dumps({**result, "clean": found.clean, "repaired": repair and not found.clean}))
    else:
        show(values, as_json=False, title="Audit")
        say(_verdict(found.clean, repair))
    if not found.clean and not repair:
        raise typer.Exit(1)


def _verdict(clean: bool, repaired: bool) -> str:
    if clean:
        return "Everything agrees."
    if repaired:
        return "What was wrong is put right."
    return "Stop the router and repair this with `blindpost router audit --repair`."


def add_to(app: typer.Typer) -> None:
    app.command()(audit)
