"""`blindpost router`: set up, start and look after an SMP router.

What only one command needs is imported by that command, so that the others answer at once.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from blindpost.cli.adopted import tell_adopted
from blindpost.cli.options import (
    AlgorithmOption,
    BackupFolder,
    BackupTarget,
    CaKeyOption,
    CaKeyTarget,
    ConfigOption,
    DsnOption,
    ForceOption,
    KeyAlgorithm,
    RestoreTo,
    SetOption,
    WithCaKeyOption,
    checked_host,
)
from blindpost.cli.output import (
    HERE,
    JsonOption,
    move_ca_key,
    new_folder,
    place_of,
    require_empty,
    say,
    tell_backup,
    tell_open_port,
    tell_restored,
    tell_rotated,
    with_set,
)
from blindpost.router.running.first import INI_NAME, Given, first_settings, read_old
from blindpost.router.running.settings import CONFIG_NAME, SMP_PORT, RouterPlace
from blindpost.serving.failures import quoted
from blindpost.serving.files import write_file
from blindpost.wire.keys import Algorithm
from blindpost.wire.text import b64

app = typer.Typer(
    help="Run an SMP router.",
    no_args_is_help=True,
    epilog="First steps: `blindpost router init my-router --host smp.example.org`, "
    "then `blindpost router start -c my-router`.",
)


class StoreChoice(Enum):
    """Which store a new router has."""

    LMDB = "lmdb"
    POSTGRES = "postgres"


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for everything the router keeps.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            help="Where users reach the router: host name, IP or onion address. May be repeated. "
            "With --adopt, those of the old server unless named.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help="The port users connect to; 0 lets the system choose one.",
            show_default=f"{SMP_PORT}, or the old server's",
        ),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            help="An address of this machine to listen on. May be repeated.", show_default="all of them"
        ),
    ] = None,
    password: Annotated[
        str | None,
        typer.Option(
            help="Only those who know it may create queues; it is part of the address you hand out. "
            "Others on this machine see command lines: better let init make one.",
            show_default="a random one, or the old server's",
        ),
    ] = None,
    is_open: Annotated[
        bool, typer.Option("--open", help="No password: anybody may create queues on this router.")
    ] = False,
    key_algorithm: AlgorithmOption = KeyAlgorithm.ED25519,
    store: Annotated[
        StoreChoice, typer.Option(help="Where queues and messages are kept: in the folder, or in a database.")
    ] = StoreChoice.LMDB,
    dsn: DsnOption = "",
    adopt: Annotated[
        Path | None,
        typer.Option(
            help="Take over from an smp-server: the folder with its ca.crt, server.crt, server.key and "
            "smp-server.ini. The address and the password stay the same.",
            show_default=False,
        ),
    ] = None,
    settings: SetOption = None,
    qr: Annotated[bool, typer.Option(help="Print the address as a QR code too.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Create keys, an empty store and a commented configuration; print the router's address."""
    from blindpost.router.running.stores import make_store
    from blindpost.serving.identity import Identity

    file = folder / CONFIG_NAME
    require_empty(folder, "router")
    if password == "":
        raise typer.BadParameter("it is empty: choose one, or say --open", param_hint="--password")
    if is_open and password:
        raise typer.BadParameter("not together with --password: choose one", param_hint="--open")
    if not host and adopt is None:
        raise typer.BadParameter("say where users reach the router", param_hint="--host")
    if dsn and store is not StoreChoice.POSTGRES:
        raise typer.BadParameter("needs --store postgres", param_hint="--dsn")
    given = Given(
        [checked_host(each) for each in host or []],
        port,
        listen or [],
        "" if is_open else password,
        store.value,
        dsn,
    )
    old = read_old(adopt, given) if adopt is not None else None
    checked = RouterPlace.parse(with_set(first_settings(given, b64(bytes(32)), old), settings).encode(), file)
    place = RouterPlace(file.absolute(), checked)
    identity = Identity(place.keys)
    with new_folder(folder, "router", (*identity.files, place.store)):
        credentials = (
            identity.create(checked.address.hosts[0], Algorithm[key_algorithm.name])
            if adopt is None
            else identity.adopt(adopt)
        )
        asyncio.run(make_store(place))
        given = replace(given, password=checked.rules.password)
        text = first_settings(given, b64(credentials.fingerprint), old)
        write_file(file, with_set(text, settings).encode())
    print_address(place, credentials.fingerprint, qr=qr and not as_json, as_json=as_json)
    if not as_json:
        if old is not None and old.rows:
            tell_adopted(old.rows, INI_NAME)
        if checked.rules.password:
            say("\nOnly those who have this address may create queues: its password is part of it.")
        else:
            say("\nAnybody may create queues on this router: it has no password.")
        say(
            f"\nThe router is set up in {folder}.\n"
            f"  Its settings:  {file}\n"
            f"  Start it:      blindpost router start -c {quoted(folder)}\n"
            f"  Its CA key:    {place.keys / 'ca.key'}\n"
            "                 Only rotate-cert needs it. Move it to a safe place offline, with\n"
            f"                 `blindpost router move-ca-key TARGET -c {quoted(folder)}`:\n"
            "                 whoever has it can pretend to be this router.",
        )


@app.command()
def start(config: ConfigOption = HERE) -> None:
    """Run the router until SIGTERM or SIGINT; what it has accepted is answered first.

    SIGHUP reloads the online certificate and the settings that need no restart.
    """
    from blindpost.router.running.process import RouterService
    from blindpost.serving.process import serve

    serve(RouterService, place_of(config))


@app.command()
def check(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Check everything that can be checked before a start, changing nothing; exit code 1 if it would fail."""
    from blindpost.cli.checking import tell_checks
    from blindpost.router.running.checking import checks_of

    tell_checks(RouterPlace, checks_of, config, as_json=as_json)


@app.command()
def address(
    config: ConfigOption = HERE,
    qr: Annotated[bool, typer.Option("--qr", help="Print it as a QR code too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the address to give to users. It holds the password, if the router has one."""
    from blindpost.serving.identity import Identity

    place = place_of(config)
    credentials = Identity(place.keys).load(place.fingerprint)
    print_address(place, credentials.fingerprint, qr=qr, as_json=as_json)


def print_address(place: RouterPlace, key_hash: bytes, *, qr: bool, as_json: bool) -> None:
    found = place.settings.router_address(key_hash)
    if as_json:
        values = {
            "address": found.text,
            "fingerprint": b64(key_hash),
            "hosts": place.settings.address.hosts,
            "port": place.settings.address.port,
        }
        typer.echo(json.dumps(values))
        return
    typer.echo(found.text)
    tell_open_port(place, place.settings.address.port)
    if qr:
        import segno

        typer.echo()
        segno.make(found.text, error="m").terminal(compact=True)


@app.command()
def backup(
    folder: BackupTarget,
    config: ConfigOption = HERE,
    with_ca_key: WithCaKeyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy store, configuration and keys to a new folder, consistently, while the router runs or not."""
    from blindpost.router.running.backup import back_up

    place, target = place_of(config), folder.absolute()
    apart = () if with_ca_key else ("CA key",)
    tell_backup(lambda: back_up(place, target, with_ca_key=with_ca_key), folder, apart, as_json=as_json)


@app.command()
def restore(
    backup_folder: BackupFolder, to: RestoreTo, force: ForceOption = False, as_json: JsonOption = False
) -> None:
    """Set up a router from a backup, while none runs in that folder."""
    from blindpost.router.running.backup import restore as restored

    source, target = backup_folder.absolute(), to.absolute()
    tell_restored(lambda: restored(source, target, force=force), to, "router", as_json=as_json)


@app.command("rotate-cert")
def rotate_cert(
    config: ConfigOption = HERE,
    ca_key: CaKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new online key and certificate; a running router uses it for new connections at once.

    The address does not change, and connections that are open stay open.
    """
    from blindpost.serving.identity import Identity

    place = place_of(config)
    Identity(place.keys).rotate(place.settings.address.hosts[0], ca_key)
    tell_rotated(place.control, as_json=as_json)


@app.command("move-ca-key")
def move_ca_key_(to: CaKeyTarget, config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Move the CA key out of the server's folder: only rotate-cert needs it, and a thief could use it."""
    move_ca_key(place_of(config), to, as_json=as_json)
