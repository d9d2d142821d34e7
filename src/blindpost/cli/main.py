"""The command itself and its groups. A group is imported when it is called: the others cost nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import blindpost
from blindpost.cli.extras import remedy
from blindpost.cli.output import fail, failing
from blindpost.serving import ending


@cache
def _router() -> typer.Typer:
    from blindpost.cli import audit, moving, operator, queues, router, state

    for part in (operator, queues, moving, audit, state):
        part.add_to(router.app)
    return router.app


def _ntf() -> typer.Typer:
    from blindpost.cli import ntf

    return ntf.app


def _ds() -> typer.Typer:
    from blindpost.cli import ds

    return ds.app


@cache
def _pipeline() -> typer.Typer:
    from blindpost.cli import pipeline, pipeline_ask, pipeline_audit, pipeline_tools

    for part in (pipeline_audit, pipeline_ask, pipeline_tools):
        part.add_to(pipeline.app)
    return pipeline.app


def _canary() -> typer.Typer:
    from blindpost.cli import canary

    return canary.app


def _up() -> Callable[..., None]:
    from blindpost.cli import page

    return page.up


def _page() -> Callable[..., None]:
    from blindpost.cli import page

    return page.page


def _chat() -> Callable[..., None]:
    from blindpost.cli import chat

    return chat.chat


def _demo() -> Callable[..., None]:
    from blindpost.cli import demo

    return demo.demo


GROUPS: dict[str, Callable[[], typer.Typer]] = {
    "router": _router,
    "ntf": _ntf,
    "ds": _ds,
    "canary": _canary,
    "pipeline": _pipeline,
}
COMMANDS: dict[str, Callable[[], Callable[..., None]]] = {
    "chat": _chat,
    "up": _up,
    "page": _page,
    "demo": _demo,
}


WRONG_USAGE = 2


def _found(name: str) -> Any:
    try:
        if name in GROUPS:
            return typer.main.get_group(GROUPS[name]())
        return _alone(COMMANDS[name]())
    except ModuleNotFoundError as error:
        if (told := remedy(name, error)) is None:
            raise
        return _absent(told)


def _alone(command: Callable[..., None], **settings: Any) -> Any:
    alone = typer.Typer(add_completion=False)
    alone.command(**settings)(command)
    return typer.main.get_command(alone)


def _absent(told: str) -> Any:
    """A command that is listed, and says what to install for it."""

    def absent() -> None:
        fail(told)

    anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    return _alone(absent, help=f"Not installed: {told}.", context_settings=anything)


class Groups(TyperGroup):
    """Finds each group in its module when somebody asks for it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*GROUPS, *COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in self.list_commands(ctx):
            self.commands[cmd_name] = _found(cmd_name)
            self.commands[cmd_name].name = cmd_name
        return self.commands.get(cmd_name)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Wrong usage becomes one line, like any other failure."""
        extra["standalone_mode"] = False
        try:
            sys.exit(super().main(*args, **extra) or 0)
        except typer.TyperException as error:
            if type(error).__name__ != "NoArgsIsHelpError":  # whose help was printed
                context = getattr(error, "ctx", None)
                command = "blindpost" if context is None else context.command_path
                told = " ".join(error.format_message().split()).rstrip(".")
                fail(f"{told}. `{command} --help` says what there is.", WRONG_USAGE)
            sys.exit(WRONG_USAGE)
        except typer.Abort:
            fail("ended before it was done.")


app = typer.Typer(
    name="blindpost",
    cls=Groups,
    help="Messaging whose servers never learn who talks to whom.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="First steps: `blindpost demo` shows it all at work, `blindpost up FOLDER --host HOST` runs it. "
    "Exit codes: 0 done, 1 it could not be done (the message says why), 2 wrong usage.",
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
    with_stdin: Annotated[
        bool,
        typer.Option(
            ending.OPTION,
            help="Stop as with SIGTERM when standard input ends: for programs that start this one.",
        ),
    ] = False,
) -> None:
    if with_stdin:
        ending.end_with_stdin()


def main() -> None:
    """Run the command; one message for each failure."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    with failing(fail):
        try:
            app()
        except ModuleNotFoundError as error:
            if (told := remedy(command, error)) is None:
                raise
            fail(told)
