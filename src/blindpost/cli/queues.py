"""`blindpost router queues`: what an operator does about queues that were reported."""

from __future__ import annotations

import asyncio
import json
import re
from enum import Enum
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from blindpost.cli.options import ConfigOption
from blindpost.cli.output import HERE, JsonOption, place_of, say, show
from blindpost.serving.place import ask_running
from blindpost.serving.sections import LONGEST_S

app = typer.Typer(help="Look at, block, unblock or delete queues that were reported.", no_args_is_help=True)

QueueArgument = Annotated[
    str,
    typer.Argument(
        metavar="LINK|ID", help="A link of any kind, or the sender id or link id of the queue in base64url."
    ),
]
NoteOption = Annotated[
    str, typer.Option(help="Why, for yourself: it goes into the log that queues.log names, and nowhere else.")
]


_ID = re.compile(r"-[A-Za-z0-9_-]{31}")
"""An id of 24 bytes that looks like an option."""


class _Command(TyperCommand):
    """Takes such an id for what it is, as if it came after `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ids = [] if "--" in args else [word for word in args if _ID.fullmatch(word)]
        named = ["--", *ids] if ids else []
        return super().parse_args(ctx, [word for word in args if word not in ids] + named)


class Reason(Enum):
    """Why a queue is blocked; its users are told."""

    SPAM = "spam"
    CONTENT = "content"


@app.command("show", cls=_Command)
def show_(queue: QueueArgument, config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Show whether a queue is active, off or blocked."""
    _told(config, as_json, "queue", id=queue)


@app.command(cls=_Command)
def block(
    queue: QueueArgument,
    reason: Annotated[Reason, typer.Option(help="What its users are told.")],
    notice_ttl: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=LONGEST_S,
            help="Let clients show a notice for so many seconds; without it there is none.",
        ),
    ] = None,
    note: NoteOption = "",
    config: ConfigOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Block a queue: nothing more is sent to it or received from it, until `unblock`."""
    _told(config, as_json, "block", id=queue, reason=reason.value, notice_ttl=notice_ttl, note=note)


@app.command(cls=_Command)
def unblock(
    queue: QueueArgument, note: NoteOption = "", config: ConfigOption = HERE, as_json: JsonOption = False
) -> None:
    """Let a blocked queue work again."""
    _told(config, as_json, "unblock", id=queue, note=note)


@app.command(cls=_Command)
def delete(
    queue: QueueArgument, note: NoteOption = "", config: ConfigOption = HERE, as_json: JsonOption = False
) -> None:
    """Delete a queue with its messages, for good."""
    _told(config, as_json, "delete", id=queue, note=note)


@app.command()
def blocked(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """List the blocked queues, whether the router runs or not, with what the log says about them."""
    from dataclasses import asdict

    from blindpost.router.running.reported import blocked_queues

    found = [asdict(one) for one in asyncio.run(blocked_queues(place_of(config)))]
    if as_json:
        typer.echo(json.dumps({"blocked": found}))
    elif not found:
        say("No queue is blocked.")
    else:
        _list(found)


def _list(found: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("sender id", "reason", "since", "note", show_edge=False, box=None, pad_edge=False)
    for one in found:
        table.add_row(one["sender_id"], one["reason"], one["since"] or "-", escape(one["note"]))
    Console(soft_wrap=True, highlight=False).print(table)


def _told(config: Any, as_json: bool, command: str, **arguments: Any) -> None:
    show(ask_running(place_of(config), command, **arguments), as_json=as_json, title="Queue")


def add_to(parent: typer.Typer) -> None:
    parent.add_typer(app, name="queues")
