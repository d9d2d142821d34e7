"""`blindpost pipeline audit`, `cells` and `verify-migration`: do both sides hold the same queues?"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blindpost.cli.output import JsonOption, say
from blindpost.cli.pipeline import (
    JOURNAL,
    LAKE,
    AsOfOption,
    ConfigOption,
    DayOption,
    FromOption,
    JournalOption,
    MasterOption,
    OutOption,
    RemoteOption,
    SetOption,
    ToOption,
    ZoneOption,
    chosen,
    days_of,
    opened,
    show_rows,
    watched,
)
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import write_file
from blindpost.wire.errors import WireError
from blindpost.wire.text import unb64

if TYPE_CHECKING:
    from blindpost.pipeline.lake import Lake
    from blindpost.pipeline.runner import Days

FINE = ("agrees", "one side only")


def audit(
    journal: JournalOption = JOURNAL,
    out: OutOption = LAKE,
    zone: ZoneOption = None,
    day: DayOption = None,
    first: FromOption = None,
    last: ToOption = None,
    repairs: Annotated[
        Path | None,
        typer.Option(
            help="Write the SUB and NSUB commands that repair the drift to this file, as JSON lines."
        ),
    ] = None,
    config: ConfigOption = None,
    as_of: AsOfOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the queues of each service as routers and subscribers exported them.

    Run it in the routers' trust zone, where the exports are. Exit code 1 if something differs, or if there
    is nothing to compare.
    """
    days = days_of(day, first, last)
    with opened(journal, out, zone, master, remote, settings, config, as_of) as lake:
        rows, queues = _computed(lake, ["service_drift", "service_drift_queues"], days)
    if not rows:
        raise OperatorError(
            f"Nothing was compared: {journal} has no export of a service's queues for these days. "
            "`blindpost router export-state` writes a router's."
        )
    show_rows(rows, as_json=as_json, title="Services")
    if repairs is not None:
        count = _write_repairs(repairs, queues)
        if not as_json:
            say(f"{count} commands in {repairs}. It names queues: keep it where the exports are.")
    wrong = [row for row in rows if row["verdict"] not in FINE]
    if not as_json:
        say(f"{len(rows) - len(wrong)} of {len(rows)} sets of queues agree.")
    if wrong:
        raise typer.Exit(1)


def verify_migration(
    journal: JournalOption = JOURNAL,
    out: OutOption = LAKE,
    zone: ZoneOption = None,
    day: DayOption = None,
    first: FromOption = None,
    last: ToOption = None,
    config: ConfigOption = None,
    as_of: AsOfOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare source and result of every import, and what is stored now.

    Exit code 1 if they differ, or if there is nothing to compare.
    """
    days = days_of(day, first, last)
    with opened(journal, out, zone, master, remote, settings, config, as_of) as lake:
        (rows,) = _computed(lake, ["migration_proof"], days)
    if not rows:
        raise OperatorError(
            f"Nothing was compared: {journal} has no proof of an import for these days. "
            "`blindpost router export-state` writes it, once a router was imported."
        )
    show_rows(rows, as_json=as_json, title="Imports")
    wrong = [row for row in rows if row["verdict"] != "equal" or _changed(row)]
    if not as_json:
        say(f"{len(rows) - len(wrong)} of {len(rows)} lines are equal.")
    if wrong:
        raise typer.Exit(1)


def _changed(row: dict[str, Any]) -> bool:
    """Whether a router that has not run since stores something else than was imported."""
    return row["stored_agrees"] is False and not row["stored_online"]


def _computed(lake: Lake, names: Sequence[str], days: Days) -> list[list[dict[str, Any]]]:
    from blindpost.pipeline.runner import run

    wanted = chosen(names)
    with watched() as observe:
        failed = run(lake, wanted, days, observe, erases=False).failed
    if failed:
        reasons = "; ".join(f"{table}: {reason}" for table, reason in failed.items())
        raise OperatorError(
            f"Nothing was compared: a table could not be computed. What went wrong: {reasons}"
        )
    found = []
    for dataset in wanted:
        held = [day for day in lake.gold_store(dataset).current().partitions if day in days]
        frame = lake.gold(dataset, held).orderBy("day", *dataset.key)
        found.append([row.asDict() for row in frame.collect()])
    return found


def _write_repairs(file: Path, queues: Sequence[dict[str, Any]]) -> int:
    commands = [
        {
            "day": row["day"].isoformat(),
            "router": row["router"],
            "service_id": _text(row["service_id"]),
            "command": row["repair"],
            "queue_id": _text(row["queue_id"]),
        }
        for row in queues
        if row["repair"] in ("SUB", "NSUB")
    ]
    write_file(file, "".join(json.dumps(command) + "\n" for command in commands).encode())
    return len(commands)


def _text(value: bytes | bytearray) -> str:
    return base64.urlsafe_b64encode(bytes(value)).decode()


class Side(Enum):
    ROUTER = "router"
    SUBSCRIBER = "subscriber"


class Role(Enum):
    MESSAGING = "messaging"
    NOTIFIER = "notifier"


def cells(
    file: Annotated[
        Path, typer.Argument(help="The file of cells: yours to write, or the other side's to compare.")
    ],
    router: Annotated[str, typer.Option(help="The router's name.")],
    service: Annotated[
        str, typer.Option(help="The service's id in base64, as in the file of `audit --repairs`.")
    ],
    side: Annotated[Side, typer.Option(help="Which side you are.")],
    role: Annotated[Role, typer.Option(help="What the service is.")] = Role.MESSAGING,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare with this file instead of writing it.")
    ] = False,
    size: Annotated[
        int,
        typer.Option(
            min=4, max=10_000_000, help="How many cells; if they are too few, double them on both sides."
        ),
    ] = 480,
    journal: JournalOption = JOURNAL,
    out: OutOption = LAKE,
    zone: ZoneOption = None,
    config: ConfigOption = None,
    as_of: AsOfOption = None,
    master: MasterOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the queues that differ without either side sharing its state: only a file of 15 KB is exchanged.

    One side writes the file. The other compares it with its own last export and gets the queues that only it
    has, and how many only the first side has. Then they swap roles.
    """
    from blindpost.pipeline import lookup
    from blindpost.pipeline.drift import Chosen, queues_of
    from blindpost.pipeline.sums import QUEUE_SETS

    try:
        service_id = unb64(service)
    except WireError as error:
        raise OperatorError(f"--service: an id in base64 expected, not {service!r}.") from error
    with opened(journal, out, zone, master, None, settings, config, as_of) as lake:
        _computed(lake, ["service_drift_queues"], days_of(None, None, None))
        queues = queues_of(
            lake.silver("s_queues"),
            lake.silver("s_snapshot"),
            lake.silver("s_service_claims"),
            lake.summed(QUEUE_SETS),
            Chosen(router, side.value, role.value, service_id),
        )
        if queues.isEmpty():
            typer.secho(
                f"The {side.value}'s last export has no queues of this service as {role.value}.",
                fg="yellow",
                err=True,
            )
        if not compare:
            write_file(file, lookup.encode_cells(lookup.cells_of(queues, size // 4 * 4)))
            say(f"{file}: written. The other side compares it with `cells --compare`.")
            return
        theirs = lookup.decode_cells(file.read_bytes())
        found = lookup.difference(lookup.cells_of(queues, len(theirs)), theirs)
        if found is None:
            raise OperatorError(
                f"Too much differs for {len(theirs)} cells. Write them with --size {2 * len(theirs)}."
            )
        listed = queues.collect()
        only_here = [_text(row["queue_id"]) for row in listed if (row["h_hi"], row["h_lo"]) in found.ours]
    if as_json:
        typer.echo(json.dumps({"only_here": only_here, "only_there": len(found.theirs)}))
        return
    for queue_id in only_here:
        say(queue_id)
    say(f"{len(only_here)} queues are only here, {len(found.theirs)} only there.")


def add_to(app: typer.Typer) -> None:
    app.command()(audit)
    app.command("verify-migration")(verify_migration)
    app.command()(cells)
