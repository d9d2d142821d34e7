"""The command itself and its groups."""

from __future__ import annotations

from typing import Annotated

import typer

import blindpost
from blindpost.cli import (
    audit,
    canary,
    demo,
    ds,
    moving,
    ntf,
    operator,
    page,
    pipeline,
    pipeline_tools,
    router,
    state,
)
from blindpost.cli.output import fail, failing

app = typer.Typer(
    name="blindpost",
    help="Messaging whose servers never learn who talks to whom.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"blindpost {blindpost.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Exit codes: 0 done, 1 it could not be done (the message says why), 2 wrong usage."""


operator.add_to(router.app)
moving.add_to(router.app)
audit.add_to(router.app)
state.add_to(router.app)
app.add_typer(router.app, name="router")
app.add_typer(ntf.app, name="ntf")
app.add_typer(ds.app, name="ds")
pipeline_tools.add_to(pipeline.app)
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(canary.app, name="canary")
page.add_to(app)
app.command("demo")(demo.demo)


def main() -> None:
    """Run the command; one message for each failure."""
    with failing(fail):
        app()
