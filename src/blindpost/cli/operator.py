"""What an operator asks of a running router, through its control socket."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from blindpost.cli.output import HERE, ConfigOption, JsonOption, place_of, show, show_status
from blindpost.serving.place import ask_running

QueueArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The sender id or link id of the queue, in base64url.")
]


class Reason(Enum):
    """Why a queue is blocked; its users are told."""

    SPAM = "spam"
    CONTENT = "content"


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


def queue(queue_id: QueueArgument, config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Show whether a queue is active, off or blocked."""
    _told(config, as_json, "queue", id=queue_id)


def block(
    queue_id: QueueArgument,
    reason: Annotated[Reason, typer.Option(help="What its users are told.")],
    notice_ttl: Annotated[
        int | None,
        typer.Option(min=0, help="Let clients show a notice for so many seconds; without it there is none."),
    ] = None,
    config: ConfigOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Block a queue: nothing more is sent to it or received from it, until `unblock`."""
    _told(config, as_json, "block", id=queue_id, reason=reason.value, notice_ttl=notice_ttl)


def unblock(queue_id: QueueArgument, config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Let a blocked queue work again."""
    _told(config, as_json, "unblock", id=queue_id)


def delete(queue_id: QueueArgument, config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Delete a queue with its messages, for good."""
    _told(config, as_json, "delete", id=queue_id)


def _told(config: Any, as_json: bool, command: str, **arguments: Any) -> None:
    show(ask_running(place_of(config), command, **arguments), as_json=as_json, title="Queue")


def add_to(app: typer.Typer) -> None:
    for command in (status, connections, stats, queue, block, unblock, delete):
        app.command()(command)
