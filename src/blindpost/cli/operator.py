"""What an operator asks of a running router, through its control socket."""

from __future__ import annotations

from typing import Annotated

import typer

from blindpost.cli.output import HERE, ConfigOption, JsonOption, place_of, show, show_status
from blindpost.serving.place import ask_running

TopOption = Annotated[
    bool, typer.Option("--top", help="Show what those who hold most hold, and who was limited, as counts.")
]


def status(config: ConfigOption = HERE, top: TopOption = False, as_json: JsonOption = False) -> None:
    """Show whether the router runs, since when, and what it holds."""
    place = place_of(config)
    if not top:
        show_status(place, as_json=as_json)
        return
    told = ask_running(place, "connections")
    shown = {name: told[name] for name in ("connections", "handshakes", "addresses", "in_debt")}
    for rank, held in enumerate(told["top"], 1):
        shown[f"holder {rank}"] = ", ".join(f"{name} {count}" for name, count in held.items())
    show(told if as_json else {**shown, **told["limited"]}, as_json=as_json, title="Holders")


def connections(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Show how many clients are connected, in sums; never who."""
    show(ask_running(place_of(config), "connections"), as_json=as_json, title="Connections")


def stats(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Show everything that the router counts, also from before its last start."""
    show(ask_running(place_of(config), "stats"), as_json=as_json, title="Counters")


def add_to(app: typer.Typer) -> None:
    for command in (status, connections, stats):
        app.command()(command)
