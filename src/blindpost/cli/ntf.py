"""`blindpost ntf`: set up, start and look after a notification router.

What only one command needs is imported by that command, so that the others answer at once.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from blindpost.cli import ntf_moving
from blindpost.cli.options import (
    AlgorithmOption,
    BackupFolder,
    BackupTarget,
    CaKeyOption,
    CaKeyTarget,
    DsnOption,
    ForceOption,
    KeyAlgorithm,
    RestoreTo,
    SetOption,
    TopOption,
    WithCaKeyOption,
    checked_host,
    config_option,
)
from blindpost.cli.output import (
    HERE,
    JsonOption,
    hand_over,
    move_ca_key,
    new_folder,
    require_empty,
    say,
    show_holders,
    show_status,
    tell_backup,
    tell_open_port,
    tell_restored,
    tell_rotated,
    told_reload,
    upgraded,
    with_set,
)
from blindpost.client.hosts import NTF_PORT
from blindpost.ntf.sealing import KEY_SIZE
from blindpost.ntf.settings import CONFIG_NAME, KEY_VARIABLE, NtfPlace
from blindpost.serving.failures import quoted
from blindpost.serving.files import write_file
from blindpost.wire.keys import Algorithm
from blindpost.wire.text import b64

app = typer.Typer(
    help="Run a notification router.",
    no_args_is_help=True,
    epilog="First steps: `blindpost ntf init my-ntf --host ntf.example.org`, Apple's key into its "
    "`ntf.toml`, then `blindpost ntf start -c my-ntf`.",
)

ConfigOption = Annotated[Path, config_option("router", "BLINDPOST_NTF")]


class StoreChoice(Enum):
    """Which store a new router has."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for everything the router keeps.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            help="Where devices reach the router. May be repeated. With --adopt, that of the old server.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help="The port devices connect to; 0 lets the system choose one.",
            show_default=f"{NTF_PORT}, or the old server's",
        ),
    ] = None,
    key_algorithm: AlgorithmOption = KeyAlgorithm.ED448,
    store: Annotated[
        StoreChoice, typer.Option(help="Where tokens and subscriptions are kept: in a file, or a database.")
    ] = StoreChoice.SQLITE,
    dsn: DsnOption = "",
    adopt: Annotated[
        Path | None,
        typer.Option(
            help="Take over from an ntf-server: the folder with its ca.crt, server.crt, server.key and "
            "ntf-server.ini. The address stays the same.",
            show_default=False,
        ),
    ] = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create keys, an empty store and a commented configuration; print the router's address."""
    from blindpost.crypto.entropy import system_entropy
    from blindpost.crypto.webpush import new_key_pem
    from blindpost.ntf.adopting import INI_NAME, first_settings, read_old
    from blindpost.ntf.process import KIND, make_store
    from blindpost.serving.identity import Identity

    file = folder / CONFIG_NAME
    require_empty(folder, "router")
    if not host and adopt is None:
        raise typer.BadParameter("say where devices reach the router", param_hint="--host")
    if dsn and store is not StoreChoice.POSTGRES:
        raise typer.BadParameter("needs --store postgres", param_hint="--dsn")
    hosts = [checked_host(each) for each in host or []]
    old = None if adopt is None else read_old(adopt)

    def text(fingerprint: bytes) -> bytes:
        made = first_settings(hosts, port, b64(fingerprint), store.value, dsn, old)
        return with_set(made, settings).encode()

    checked = NtfPlace.parse(text(bytes(32)), file)
    place = NtfPlace(file.absolute(), checked)
    identity = Identity(place.keys, KIND)
    made = (*identity.files, place.key_file, place.vapid_file, place.database)
    with new_folder(folder, "router", made):
        credentials = (
            identity.create(checked.address.hosts[0], Algorithm[key_algorithm.name])
            if adopt is None
            else identity.adopt(adopt)
        )
        write_file(place.key_file, secrets.token_hex(KEY_SIZE).encode() + b"\n")
        write_file(place.vapid_file, new_key_pem(system_entropy))
        asyncio.run(make_store(place))
        write_file(file, text(credentials.fingerprint))
    _print_address(place, credentials.fingerprint, as_json=as_json)
    if not as_json:
        if old is not None and old.rows:
            from blindpost.cli.adopted import tell_adopted

            tell_adopted(old.rows, INI_NAME)
        say(
            f"\nThe notification router is set up in {folder}.\n"
            f"  Its settings:   {file}\n"
            f"  Start it:       blindpost ntf start -c {quoted(folder)}\n"
            f"  Its CA key:     {place.keys / 'ca.key'}\n"
            "                  Only rotate-cert needs it. Move it to a safe place offline, with\n"
            f"                  `blindpost ntf move-ca-key TARGET -c {quoted(folder)}`.\n"
            f"  Its store key:  {place.key_file}\n"
            "                  Without it the store cannot be read. Keep a copy apart from it, or give it\n"
            f"                  by the environment variable {KEY_VARIABLE} and delete the file."
        )


@app.command()
def start(config: ConfigOption = HERE) -> None:
    """Run the router until SIGTERM or SIGINT; what it has accepted is answered first.

    SIGHUP reloads the online certificate and the settings that need no restart.
    """
    from blindpost.ntf.process import NtfService
    from blindpost.serving.process import serve

    serve(NtfService, NtfPlace.read(config))


@app.command()
def check(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Check everything that can be checked before a start, changing nothing; exit code 1 if it would fail."""
    from blindpost.cli.checking import tell_checks
    from blindpost.ntf.checking import checks_of

    tell_checks(NtfPlace, checks_of, config, as_json=as_json)


@app.command()
def handover(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Give the database to the standby that waits for it, and wait in its place."""
    hand_over(NtfPlace.read(config), as_json=as_json)


@app.command()
def upgrade(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Replace the running program by the installed one, on the same ports; clients reconnect once."""
    upgraded(NtfPlace.read(config), as_json=as_json)


@app.command()
def status(config: ConfigOption = HERE, top: TopOption = False, as_json: JsonOption = False) -> None:
    """Show what a running router does, in numbers."""
    place = NtfPlace.read(config)
    if top:
        show_holders(place, "status", as_json=as_json)
    else:
        show_status(place, as_json=as_json)


@app.command()
def address(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Print the address that devices are configured with."""
    from blindpost.ntf.process import KIND
    from blindpost.serving.identity import Identity

    place = NtfPlace.read(config)
    credentials = Identity(place.keys, KIND).load(place.fingerprint)
    _print_address(place, credentials.fingerprint, as_json=as_json)


@app.command()
def backup(
    folder: BackupTarget,
    config: ConfigOption = HERE,
    with_ca_key: WithCaKeyOption = False,
    with_store_key: Annotated[
        bool, typer.Option(help="Copy the key of the store too: whoever has both reads device tokens.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy store, configuration and keys to a new folder, consistently, while the router runs or not."""
    from blindpost.ntf.backup import back_up

    place, target = NtfPlace.read(config), folder.absolute()
    keys = {"CA key": with_ca_key, "key of the store": with_store_key}
    tell_backup(
        lambda: back_up(place, target, with_ca_key=with_ca_key, with_store_key=with_store_key),
        folder,
        [name for name, is_in in keys.items() if not is_in],
        as_json=as_json,
    )


@app.command()
def restore(
    backup_folder: BackupFolder, to: RestoreTo, force: ForceOption = False, as_json: JsonOption = False
) -> None:
    """Set up a notification router from a backup, while none runs in that folder."""
    from blindpost.ntf.backup import restore as restored

    source, target = backup_folder.absolute(), to.absolute()
    tell_restored(lambda: restored(source, target, force=force), to, "ntf", as_json=as_json)
    if not as_json and not NtfPlace.read(target).key_file.exists():
        say(f"Put the key of its store back first: {NtfPlace.read(target).key_file}, or {KEY_VARIABLE}.")


@app.command("rotate-cert")
def rotate_cert(
    config: ConfigOption = HERE,
    ca_key: CaKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new online key and certificate; a running router uses it for new connections at once."""
    from blindpost.ntf.process import KIND
    from blindpost.serving.identity import Identity

    place = NtfPlace.read(config)
    Identity(place.keys, KIND).rotate(place.settings.address.hosts[0], ca_key)
    tell_rotated(place.control, as_json=as_json)


@app.command("rotate-push-key")
def rotate_push_key(
    config: ConfigOption = HERE,
    overlap_days: Annotated[
        int,
        typer.Option(
            min=0,
            max=3650,
            help="How long devices that are subscribed to the former key are served; 0: not at all.",
        ),
    ] = 90,
    as_json: JsonOption = False,
) -> None:
    """Make a new key for Web Push; a running router uses it for new devices at once."""
    from blindpost.ntf.push_keys import day_text, rotate, vapid_of

    place = NtfPlace.read(config)
    until = rotate(place, overlap_days)
    fresh = vapid_of(place)
    public = "" if fresh is None else fresh.current.public
    in_use = told_reload(place.control)
    if as_json:
        typer.echo(json.dumps({"vapid_public_key": public, "former_key_until": until, "in_use": in_use}))
        return
    say(public)
    say(
        "The running router uses it for new devices."
        if in_use
        else "It will be used for new devices from the next start."
    )
    if until is None:
        say("The former key is gone: devices that are subscribed to it must register again.")
    else:
        say(f"Devices that are subscribed to the former key are served until {day_text(until)}.")


@app.command("move-ca-key")
def move_ca_key_(to: CaKeyTarget, config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Move the CA key out of the server's folder: only rotate-cert needs it, and a thief could use it."""
    move_ca_key(NtfPlace.read(config), to, as_json=as_json)


ntf_moving.add_to(app)


def _print_address(place: NtfPlace, key_hash: bytes, *, as_json: bool) -> None:
    found = place.settings.router_address(key_hash).text
    if as_json:
        typer.echo(json.dumps({"address": found, "fingerprint": b64(key_hash)}))
    else:
        typer.echo(found)
        tell_open_port(place, place.settings.address.port)
