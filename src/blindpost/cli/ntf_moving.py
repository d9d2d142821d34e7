"""`blindpost ntf import`, `import-stats` and `export`: move in from ntf-server, and out again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blindpost.cli.options import CertificateOption, NewRouterOption, StoppedOption, UnstartedOption
from blindpost.cli.output import JsonOption, say, show, working
from blindpost.ntf.settings import NtfPlace

if TYPE_CHECKING:
    from blindpost.ntf.moving.certificate import Moved

DATABASE_VARIABLE = "BLINDPOST_NTF_SERVER_DATABASE"

DatabaseOption = Annotated[
    str,
    typer.Option(
        envvar=DATABASE_VARIABLE,
        help="ntf-server's database: postgresql://user@host/ntf_server_store.",
        show_default=False,
    ),
]
SchemaOption = Annotated[str, typer.Option(help="The schema of its tables there.")]


def import_(
    to: NewRouterOption,
    from_database: DatabaseOption,
    schema: SchemaOption = "ntf_server",
    certificate: CertificateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move tokens, subscriptions and last notifications of a stopped ntf-server into a new router.

    What is stored is read back and compared: exit code 1 if it differs. The old database is only read.
    """
    from blindpost.cli.moving import demand_writable
    from blindpost.ntf.moving.moves import import_database

    place = NtfPlace.read(to)
    kept = (certificate or place.folder / "import-certificate.json").absolute()
    demand_writable(kept)
    with working("importing ..."):
        done = asyncio.run(import_database(place, from_database, schema, kept))
    _tell(done, kept, "Imported", as_json=as_json)


def export(
    from_: StoppedOption,
    to_database: DatabaseOption,
    schema: SchemaOption = "ntf_server",
    certificate: CertificateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write everything into the empty tables of an ntf-server, and prove that it can be read there.

    The tables are those that ntf-server makes when it is started once with a new database. Either everything
    is written or nothing; devices of Web Push are left out, since ntf-server does not know them.
    """
    from blindpost.cli.moving import demand_writable
    from blindpost.ntf.moving.moves import export_database

    place = NtfPlace.read(from_)
    kept = (certificate or place.folder / "export-certificate.json").absolute()
    demand_writable(kept)
    with working("exporting ..."):
        done = asyncio.run(export_database(place, to_database, schema, kept))
    _tell(done, kept, "Exported", as_json=as_json)


def import_stats(
    file: Annotated[Path, typer.Argument(help="ntf-server-stats.log of a stopped ntf-server.")],
    to: UnstartedOption,
    as_json: JsonOption = False,
) -> None:
    """Take over what an ntf-server has counted, so that statistics go on without a break."""
    from blindpost.cli.moving import tell_stats
    from blindpost.ntf.moving.stats import NAMES
    from blindpost.serving.counters import take_over_stats

    place = NtfPlace.read(to)
    with place.locked():
        old = take_over_stats(place.counters, file, NAMES)
    tell_stats(old, as_json=as_json)


def _tell(done: Moved, certificate: Path, title: str, *, as_json: bool) -> None:
    """Print what was moved; end with exit code 1 if the sides of the certificate differ."""
    told = {"source": done.source.values(), "result": done.result.values(), "left": dict(done.left)}
    if as_json:
        typer.echo(json.dumps({**told, "differing": done.differing}))
    else:
        counts = {name: count for name, count in done.result.values().items() if isinstance(count, int)}
        left = {f"{name} left out": count for name, count in done.left.items()}
        show({**counts, **left}, as_json=False, title=title)
        say(f"Certificate: {certificate}")
        say("Everything arrived." if not done.differing else f"DIFFERENT: {', '.join(done.differing)}")
    if done.differing:
        raise typer.Exit(1)


def add_to(app: typer.Typer) -> None:
    app.command("import")(import_)
    app.command("import-stats")(import_stats)
    app.command("export")(export)
