"""`blindpost canary`: our own connections on every router of a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blindpost.cli.output import HERE, JsonOption, say, show
from blindpost.serving.control import ask
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import make_folder, write_file

if TYPE_CHECKING:
    from blindpost.canary.process import CanaryProcess

app = typer.Typer(
    help="Measure a fleet of routers with connections of our own: latency, losses, order. No user data.",
    no_args_is_help=True,
    epilog="First steps: `blindpost canary init my-canary --router home=smp://...`, "
    "then `blindpost canary start -c my-canary`.",
)

ConfigOption = Annotated[
    Path,
    typer.Option(
        "--config", "-c", help="The canary's configuration, or its folder.", show_default="the current folder"
    ),
]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for everything the canary keeps.")],
    router: Annotated[
        list[str],
        typer.Option("--router", help="A router of the fleet: NAME=smp://... May be repeated."),
    ],
) -> None:
    """Write a commented configuration."""
    from blindpost.canary.settings import CONFIG_NAME, Settings, config_text
    from blindpost.serving.settings import parse

    if folder.exists() and any(folder.iterdir()):
        raise OperatorError(f"{folder}: the folder is not empty. Name a new folder for the canary.")
    routers: dict[str, str] = {}
    for given in router:
        name, is_pair, address = given.partition("=")
        if not is_pair:
            raise OperatorError(f"{given}: NAME=smp://... expected, such as home=smp://...")
        routers[name] = address
    file = folder / CONFIG_NAME
    text = config_text(routers).encode()
    parse(text, file, Settings)
    make_folder(folder)
    write_file(file, text)
    say(f"The canary is set up in {folder}. Start it with `blindpost canary start -c {folder}`.")


@app.command()
def start(config: ConfigOption = HERE) -> None:
    """Connect every two routers, send and measure until SIGTERM or SIGINT."""
    from blindpost.canary.process import serve
    from blindpost.canary.settings import read_place
    from blindpost.serving import logs

    place = read_place(config)
    logs.set_up(place.settings.log.format, place.settings.log.level)

    def ready(process: CanaryProcess) -> None:
        logs.log.info("the canary sings: %d routers", len(process.place.settings.routers))

    serve(place, ready)


@app.command()
def status(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Show what a running canary has seen, in numbers."""
    from blindpost.canary.settings import read_place

    show(ask(read_place(config).control, "status"), as_json=as_json, title="Canary")
