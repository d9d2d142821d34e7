"""`blindpost router export-state`: the state of all queues for the pipeline."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from blindpost.cli.moving import IMPORT_CERTIFICATE, progress_bar
from blindpost.cli.options import ConfigOption
from blindpost.cli.output import HERE, JsonOption, place_of, say, show


def export_state(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a journal; it stays where only the router's operator can read.")
    ],
    config: ConfigOption = HERE,
    certificate: Annotated[
        Path | None,
        typer.Option(
            help="The certificate that `blindpost router import` wrote.",
            show_default="import-certificate.json beside the configuration, if it is there",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the state of all queues, without keys and messages, and what is known of services, as Parquet.

    The router may run meanwhile: what is written is its store at one moment. The files hold queue ids. They
    are for `blindpost pipeline audit` on this machine, or in the private cluster that holds its database.
    Exports in that folder that are older than `lab_days` of the journal's settings are deleted.
    """
    from blindpost.router.running.state_export import export_state as export

    place = place_of(config)
    beside = place.folder / IMPORT_CERTIFICATE
    proof = certificate or (beside if beside.exists() else None)
    with progress_bar(quiet=as_json) as progress:
        done = asyncio.run(export(place, folder.absolute(), progress, proof))
    values = {
        "snapshot": done.snapshot,
        "rows_of_queues": done.queues,
        "claims_of_services": done.claims,
        "lines_of_an_import": done.migration_lines,
        "damaged_rows_left_out": done.damaged,
        "old_folders_deleted": done.deleted,
        "router_runs": done.online,
    }
    show(values, as_json=as_json, title="State exported")
    if done.damaged and not as_json:
        say("Some rows cannot be read: look with `blindpost router audit`.")


def add_to(app: typer.Typer) -> None:
    app.command("export-state")(export_state)
