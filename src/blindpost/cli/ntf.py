"""`blindpost ntf`: set up, start and look after a notification router.

What only one command needs is imported by that command, so that the others answer at once.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blindpost.cli.output import HERE, JsonOption, say, show, tell_rotated
from blindpost.client.hosts import NTF_PORT
from blindpost.ntf.sealing import KEY_SIZE
from blindpost.ntf.settings import CONFIG_NAME, KEY_VARIABLE, Place, parse, read_place
from blindpost.ntf.template import config_text
from blindpost.serving.control import NotRunningError, ask
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import make_folder, write_file
from blindpost.wire.keys import Algorithm
from blindpost.wire.text import b64

if TYPE_CHECKING:
    from blindpost.ntf.process import NtfProcess

app = typer.Typer(
    help="Run a notification router.",
    no_args_is_help=True,
    epilog="First steps: `blindpost ntf init my-ntf --host ntf.example.org`, Apple's key into its "
    "`ntf.toml`, then `blindpost ntf start -c my-ntf`.",
)

ConfigOption = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        envvar="BLINDPOST_NTF",
        help="The router's configuration file, or the folder it is in.",
        show_default="the current folder",
    ),
]


class KeyAlgorithm(Enum):
    """What the router's certificates are signed with."""

    ED25519 = "ed25519"
    ED448 = "ed448"


class StoreChoice(Enum):
    """Which store a new router has."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for everything the router keeps.")],
    host: Annotated[
        list[str],
        typer.Option("--host", help="Where devices reach the router. May be repeated."),
    ],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 lets the system choose.")] = NTF_PORT,
    key_algorithm: Annotated[
        KeyAlgorithm, typer.Option(help="Algorithm of the certificates.")
    ] = KeyAlgorithm.ED448,
    store: Annotated[
        StoreChoice, typer.Option(help="Where tokens and subscriptions are kept: in a file, or a database.")
    ] = StoreChoice.SQLITE,
    dsn: Annotated[
        str,
        typer.Option(help="Address of the database: postgresql://user@host/database.", show_default=False),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Create keys, an empty store and a commented configuration; print the router's address."""
    from blindpost.ntf.process import KIND, make_store
    from blindpost.serving.identity import Identity

    file = folder / CONFIG_NAME
    if folder.exists() and any(folder.iterdir()):
        raise OperatorError(f"{folder}: the folder is not empty. Name a new folder for the router.")
    checked = parse(config_text(host, port, b64(bytes(32)), store.value, dsn).encode(), file)
    make_folder(folder)
    place = Place(file.absolute(), checked)
    credentials = Identity(place.keys, KIND).create(host[0], Algorithm[key_algorithm.name])
    write_file(place.key_file, secrets.token_hex(KEY_SIZE).encode() + b"\n")
    asyncio.run(make_store(place))
    write_file(file, config_text(host, port, b64(credentials.fingerprint), store.value, dsn).encode())
    _print_address(place, credentials.fingerprint, as_json=as_json)
    if not as_json:
        say(
            f"\nThe notification router is set up in {folder}.\n"
            f"  Its settings:   {file}\n"
            f"  Start it:       blindpost ntf start -c {folder}\n"
            f"  Its CA key:     {place.keys / 'ca.key'}\n"
            "                  Only rotate-cert needs it. Move it to a safe place offline.\n"
            f"  Its store key:  {place.key_file}\n"
            "                  Without it the store cannot be read. Keep a copy apart from it, or give it\n"
            f"                  by the environment variable {KEY_VARIABLE} and delete the file."
        )


@app.command()
def start(config: ConfigOption = HERE) -> None:
    """Run the router until SIGTERM or SIGINT, which let it answer everything it has accepted first.

    SIGHUP makes it use the online certificate that is on disk.
    """
    from blindpost.ntf.process import log, serve
    from blindpost.serving import logs

    place = read_place(config)
    logs.set_up(place.settings.log.format, place.settings.log.level)

    def ready(process: NtfProcess) -> None:
        log.info(
            "the notification router is ready on port %d%s",
            process.port,
            "" if process.metrics_port is None else f", metrics on port {process.metrics_port}",
        )

    serve(place, ready)
    log.info("the notification router has stopped; everything it accepted is stored and answered")


@app.command()
def status(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Show what a running router does, in numbers."""
    try:
        found = ask(read_place(config).control, "status")
    except NotRunningError as error:
        raise OperatorError(
            "no notification router runs here. Start it with `blindpost ntf start`, "
            "or name the right configuration with --config."
        ) from error
    show(found, as_json=as_json, title="Notification router")


@app.command()
def address(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Print the address that devices are configured with."""
    from blindpost.ntf.process import KIND
    from blindpost.serving.identity import Identity

    place = read_place(config)
    credentials = Identity(place.keys, KIND).load(place.fingerprint)
    _print_address(place, credentials.fingerprint, as_json=as_json)


@app.command("rotate-cert")
def rotate_cert(
    config: ConfigOption = HERE,
    ca_key: Annotated[
        Path | None, typer.Option(help="Where the CA key is, if it is kept away from the router.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new online key and certificate; a running router uses it for new connections at once."""
    from blindpost.ntf.process import KIND
    from blindpost.serving.identity import Identity

    place = read_place(config)
    Identity(place.keys, KIND).rotate(place.settings.address.hosts[0], ca_key)
    tell_rotated(place.control, as_json=as_json)


def _print_address(place: Place, key_hash: bytes, *, as_json: bool) -> None:
    found = place.settings.router_address(key_hash).text
    if as_json:
        typer.echo(json.dumps({"address": found, "fingerprint": b64(key_hash)}))
    else:
        typer.echo(found)
