"""`blindpost canary`: our own connections on every router of a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindpost.cli.options import BackupFolder, BackupTarget, ForceOption, RestoreTo, SetOption, config_option
from blindpost.cli.output import (
    HERE,
    JsonOption,
    new_folder,
    require_empty,
    say,
    show_status,
    tell_backup,
    tell_restored,
    with_set,
)
from blindpost.serving.failures import OperatorError, quoted
from blindpost.serving.files import write_file

app = typer.Typer(
    help="Measure a fleet of routers with connections of our own: latency, losses, order. No user data.",
    no_args_is_help=True,
    epilog="First steps: `blindpost canary init my-canary --router home=smp://...`, "
    "then `blindpost canary start -c my-canary`.",
)

ConfigOption = Annotated[Path, config_option("canary", "BLINDPOST_CANARY")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for everything the canary keeps.")],
    router: Annotated[
        list[str],
        typer.Option("--router", help="A router of the fleet: NAME=smp://... May be repeated."),
    ],
    settings: SetOption = None,
) -> None:
    """Write a commented configuration."""
    from blindpost.canary.settings import CONFIG_NAME, CanaryPlace, config_text
    from blindpost.journal.author import checked_name

    require_empty(folder, "canary")
    routers: dict[str, str] = {}
    for given in router:
        name, is_pair, address = given.partition("=")
        if not is_pair:
            raise OperatorError(f"{given}: NAME=smp://... expected, such as home=smp://...")
        try:
            checked_name(name)
        except ValueError as error:
            raise OperatorError(f"--router {name}=...: as NAME, {error}.") from error
        if name in routers:
            raise OperatorError(f"--router {name}=...: this name is given twice. Give each router its own.")
        routers[name] = address
    file = folder / CONFIG_NAME
    text = with_set(config_text(routers), settings).encode()
    CanaryPlace.parse(text, file)
    with new_folder(folder, "canary"):
        write_file(file, text)
    say(f"The canary is set up in {folder}. Start it with `blindpost canary start -c {quoted(folder)}`.")


@app.command()
def start(config: ConfigOption = HERE) -> None:
    """Connect every pair of routers, send and measure until SIGTERM or SIGINT."""
    from blindpost.canary.process import CanaryService
    from blindpost.canary.settings import CanaryPlace
    from blindpost.serving.process import serve

    serve(CanaryService, CanaryPlace.read(config))


@app.command()
def backup(folder: BackupTarget, config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Copy the configuration to a new folder. Connections are not in it: a restored canary makes new ones."""
    from blindpost.canary.backup import back_up
    from blindpost.canary.settings import CanaryPlace

    place, target = CanaryPlace.read(config), folder.absolute()
    tell_backup(lambda: back_up(place, target), folder, (), as_json=as_json)


@app.command()
def restore(
    backup_folder: BackupFolder, to: RestoreTo, force: ForceOption = False, as_json: JsonOption = False
) -> None:
    """Set up a canary from a backup, while none runs in that folder."""
    from blindpost.canary.backup import restore as restored

    source, target = backup_folder.absolute(), to.absolute()
    tell_restored(lambda: restored(source, target, force=force), to, "canary", as_json=as_json)


@app.command()
def check(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Check everything that can be checked before a start, changing nothing; exit code 1 if it would fail."""
    from blindpost.canary.checking import checks_of
    from blindpost.canary.settings import CanaryPlace
    from blindpost.cli.checking import tell_checks

    tell_checks(CanaryPlace, checks_of, config, as_json=as_json)


@app.command()
def status(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Show what a running canary has seen, in numbers."""
    from blindpost.canary.settings import CanaryPlace

    show_status(CanaryPlace.read(config), as_json=as_json)
