"""What all commands print: tables for people, JSON for programs, one message for a failure.

Rich is imported where a table is drawn: a command that prints a line must not wait for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, Protocol

import typer

from blindpost.serving.control import NotRunningError, ask
from blindpost.serving.failures import OperatorError, about_file, quoted
from blindpost.serving.files import make_folder
from blindpost.serving.place import WAITING, Place, ask_running

if TYPE_CHECKING:
    from blindpost.router.running.settings import RouterPlace
    from blindpost.serving.backups import Aside, Made


UPGRADE_S_MAX = 120.0
"""A new program that serves no earlier does not serve."""


class IdentifiedPlace(Protocol):
    """Where a router with an identity of its own lives."""

    word: ClassVar[str]
    folder: Path
    keys: Path


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
HERE = Path()


def place_of(config: Path) -> RouterPlace:
    from blindpost.router.running.settings import RouterPlace

    return RouterPlace.read(config)


@contextlib.contextmanager
def failing(on_failure: Callable[[str], NoReturn]) -> Iterator[None]:
    """Failures that a person can do something about become one message."""
    try:
        yield
    except OperatorError as error:
        on_failure(str(error))
    except BrokenPipeError:
        # The reader of our output has gone; nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        on_failure(str(about_file(error, Path(error.filename or "."))))
    except UnicodeEncodeError:
        on_failure(
            "a name or a text in the command line is not UTF-8. Choose another one, or set a locale that "
            "fits, such as LC_ALL=C.UTF-8."
        )


def fail(message: str, code: int = 1) -> NoReturn:
    typer.secho(f"blindpost: {message}", fg="red", err=True)
    sys.exit(code)


@contextlib.contextmanager
def new_folder(folder: Path, title: str, made: Sequence[Path] = ()) -> Iterator[None]:
    """A folder for a new server; a failure or Ctrl-C leaves nothing in it, so that it can be tried again.

    `made` are files and folders that will be made, perhaps elsewhere: what is there already is not touched.
    """
    require_empty(folder, title)
    made = [Path(os.path.abspath(path)) for path in made]  # as it will be once the folder is there
    for path in made:
        if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
            raise OperatorError(
                f"{path}: this is there already, and a new {title} makes its own. Name another place for it."
            )
    make_folder(folder)
    try:
        yield
    except BaseException:
        for path in made:
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        raise


def require_empty(folder: Path, title: str) -> None:
    if folder.exists() and not folder.is_dir():
        raise OperatorError(f"{folder}: this is a file. Name a new folder for the {title}.")
    if folder.exists() and any(folder.iterdir()):
        raise OperatorError(f"{folder}: the folder is not empty. Name a new folder for the {title}.")


def say(message: str) -> None:
    typer.echo(message)


def with_set(text: str, given: Sequence[str] | None) -> str:
    """A new configuration with what `--set` says.

    A value that is no TOML, or one that no setting has, such as a date or a table, is taken as a text.
    """
    from blindpost.serving.toml_text import read_toml, with_settings

    settings: dict[str, dict[str, object]] = {}
    for one in given or ():
        name, is_setting, value = one.partition("=")
        table, is_named, field = name.strip().partition(".")
        if not is_setting or not is_named:
            raise OperatorError(f"--set {one}: TABLE.NAME=VALUE expected, such as metrics.enabled=true.")
        try:
            read = read_toml(f"value = {value}")["value"]
            read_toml(f"value = {json.dumps(read)}")
        except (ValueError, TypeError):
            read = value
        settings.setdefault(table, {})[field] = read
    try:
        return with_settings(text, settings)
    except KeyError as error:
        raise OperatorError(f"--set: a new configuration has no {error.args[0]}.") from error


def tell_backup(work: Callable[[], Made], folder: Path, apart: Sequence[str], *, as_json: bool) -> None:
    """Make a backup and say how large it is, and which keys and other files are not in it."""
    started = time.monotonic()
    with working("copying ..."):
        size, left_out = work()
    taken = time.monotonic() - started
    if as_json:
        made = {"folder": str(folder), "bytes": size, "seconds": round(taken, 3)}
        typer.echo(json.dumps({**made, "left_out": [str(file) for file in left_out]}))
        return
    told = f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{max(1, size // 1000)} kB"
    say(f"Backed up {told} to {folder} in {taken:.1f} s.")
    for key in apart:
        say(f"The {key} is not in it; keep it apart.")
    for file in left_out:
        say(f"{file} lies outside the server's folder and is not in it: keep a copy.")


def tell_restored(work: Callable[[], Aside], to: Path, word: str, *, as_json: bool) -> None:
    """Restore a backup and say where what was there before is now."""
    with working("copying ..."):
        aside, schema, missing = work()
    if as_json:
        moved = {"moved_aside": None if aside is None else str(aside), "schema_moved_aside": schema}
        typer.echo(json.dumps({"folder": str(to), **moved, "missing": [str(file) for file in missing]}))
        return
    say(f"Restored to {to}. Start it with `blindpost {word} start -c {quoted(to)}`.")
    for file in missing:
        say(f"{file} lies outside and was in no backup: put it back first.")
    if aside is not None:
        say(f"What was there before is now in {aside}; delete it when you are sure.")
    if schema is not None:
        say(f"What the database held before is now its schema {schema}; drop it when you are sure.")


def show_status(place: Place[Any], *, as_json: bool) -> None:
    """What the running server of a place says about itself."""
    show(ask_running(place, "status"), as_json=as_json, title=place.title.capitalize())


def hand_over(place: Place[Any], *, as_json: bool) -> None:
    """Have the running server of a place give its database to the one that waits for it."""
    ask_running(place, "handover")
    if as_json:
        typer.echo(json.dumps({"handed_over": True}))
    else:
        say(f"The {place.title} answers what it accepted, then the standby serves and this one waits.")


def upgraded(place: Place[Any], *, as_json: bool) -> None:
    """Have the running server of a place replaced by the installed program; wait until that serves."""
    # Imported by this command only.
    from blindpost.serving.upgrading import CHECK_S_MAX

    before = ask_running(place, "status")
    with working("the installed program takes over ..."), _watched(int(before["pid"])) as has_ended:
        # The server itself gives up asking the installed program before that, and says so.
        ask_running(place, "upgrade", timeout_s=CHECK_S_MAX + 30.0)
        now = _replaced(place, int(before["upgrades"]), has_ended)
    if as_json:
        typer.echo(json.dumps({"from": before["version"], "to": now["version"], "state": now["state"]}))
    else:
        say(f"The {place.title} runs version {now['version']} now; it was {before['version']}.")
        if now["state"] == WAITING:
            say("It waits: its standby has the database and serves.")


@contextlib.contextmanager
def _watched(pid: int) -> Iterator[Callable[[], bool]]:
    """Whether a process has ended; one that cannot be seen from here, in another container, has not."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        yield lambda: False
        return
    try:
        yield lambda: bool(select.select([process], (), (), 0)[0])
    finally:
        os.close(process)


def _replaced(place: Place[Any], upgrades: int, has_ended: Callable[[], bool]) -> dict[str, Any]:
    end = time.monotonic() + UPGRADE_S_MAX
    while time.monotonic() < end:
        with contextlib.suppress(OperatorError):
            now = ask_running(place, "status")
            if now.get("upgrades", 0) > upgrades:
                return now
        if has_ended():
            raise OperatorError(
                f"{place.folder}: the installed program ended before it served. Its log says why."
            )
        time.sleep(0.1)
    raise OperatorError(
        f"{place.folder}: the {place.title} does not answer after {UPGRADE_S_MAX:.0f} s. Its log says why."
    )


def show_holders(place: Place[Any], command: str, *, as_json: bool) -> None:
    """How much the heaviest users of a running server hold; this command of its socket says so."""
    told = ask_running(place, command)
    names = ("connections", "handshakes", "addresses", "in_debt", "stored_bytes", "top", "limited")
    told = {name: told[name] for name in names if name in told}
    if as_json:
        show(told, as_json=True, title="")
        return
    shown = {name: value for name, value in told.items() if name not in ("top", "limited")}
    for rank, held in enumerate(told.get("top", ()), 1):
        shown[f"holder {rank}"] = ", ".join(f"{name} {count}" for name, count in held.items())
    show({**shown, **told.get("limited", {})}, as_json=False, title="Holders")


def told_reload(control: Path) -> bool:
    """Have a server read its files again; whether one is running."""
    try:
        ask(control, "reload")
    except NotRunningError:
        return False
    return True


def tell_rotated(control: Path, *, as_json: bool) -> None:
    """Have a running server use the certificate that was made; say whether one does."""
    in_use = told_reload(control)
    if as_json:
        typer.echo(json.dumps({"in_use": in_use}))
    elif in_use:
        say("The running router uses the new certificate for new connections.")
    else:
        say("The new certificate will be used at the next start.")


def move_ca_key(place: IdentifiedPlace, to: Path, *, as_json: bool) -> None:
    """Move the CA key of a router out of its folder, and say how to keep it."""
    from blindpost.serving.identity import Identity

    if to.absolute().resolve().is_relative_to(place.folder.resolve()):
        raise OperatorError(f"{to}: this is in the server's folder. Name a place outside of {place.folder}.")
    moved = Identity(place.keys, place.word).move_ca_key(to.absolute())
    if as_json:
        typer.echo(json.dumps({"ca_key": str(moved)}))
        return
    say(
        f"The CA key is now {moved}, and no longer in {place.keys}.\n"
        "Keep it offline, such as on two USB sticks in two places, and delete it wherever else it is,\n"
        "backups included: whoever has it can pretend to be this router. Without it no certificate can be\n"
        "renewed.\n"
        f"When you need it: `blindpost {place.word} rotate-cert --ca-key {quoted(moved)}`."
    )
    if moved.parent.stat().st_dev == place.keys.stat().st_dev:
        say("It is still on the disk of the server: carry it away from there.")


def tell_open_port(place: Place[Any], port: int) -> None:
    """An address with port 0 leads nowhere by itself."""
    if not port:
        typer.echo(
            f"Port 0: the system chooses a port at every start; `blindpost {place.word} status` tells it.\n"
            f"An address for others needs one that stays: set it in [address] and [listen] of "
            f"{place.file.name}.",
            err=True,
        )


@contextlib.contextmanager
def working(message: str) -> Iterator[None]:
    """Show a person that work is in progress."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(message) if console.is_terminal else contextlib.nullcontext():
        yield


def show(values: Mapping[str, Any], *, as_json: bool, title: str) -> None:
    """A few values as a table of two columns, or as JSON."""
    if as_json:
        typer.echo(json.dumps(values))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    for name, value in values.items():
        if isinstance(value, Mapping):
            for inner, count in value.items():
                table.add_row(f"{name}: {inner}".replace("_", " "), _shown(name, count))
        else:
            table.add_row(name.replace("_", " "), _shown(name, value))
    Console(soft_wrap=True, highlight=False, markup=False).print(table)


_NAMES = frozenset({"pid", "port", "ports", "metrics_port"})
"""Numbers that are names, not quantities."""


def _shown(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name not in _NAMES and value >= 10_000:
        return f"{value:,}"
    return "-" if value is None else str(value)
