"""What an operator asks of a running router, through its control socket."""

from __future__ import annotations

import typer

from blindpost.cli.options import ConfigOption, TopOption
from blindpost.cli.output import (
    HERE,
    JsonOption,
    hand_over,
    place_of,
    show,
    show_holders,
    show_status,
    upgraded,
)
from blindpost.serving.place import ask_running


def status(config: ConfigOption = HERE, top: TopOption = False, as_json: JsonOption = False) -> None:
    """Show whether the router runs, since when, and what it holds."""
    place = place_of(config)
    if top:
        show_holders(place, "connections", as_json=as_json)
    else:
        show_status(place, as_json=as_json)


def handover(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Give the database to the standby that waits for it, and wait in its place."""
    hand_over(place_of(config), as_json=as_json)


def upgrade(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Replace the running program by the installed one, on the same ports; clients reconnect once."""
    upgraded(place_of(config), as_json=as_json)


def connections(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Show how many clients are connected, in sums; never who."""
    show(ask_running(place_of(config), "connections"), as_json=as_json, title="Connections")


def stats(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Show everything that the router counts, also from before its last start."""
    show(ask_running(place_of(config), "stats"), as_json=as_json, title="Counters")


def add_to(app: typer.Typer) -> None:
    for command in (status, handover, upgrade, connections, stats):
        app.command()(command)
