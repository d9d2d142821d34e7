"""`blindpost page`: what an operator looks at; `blindpost up`: everything a self-hoster needs at once."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blindpost.cli.options import checked_host
from blindpost.cli.output import say
from blindpost.serving import logs
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import make_folder, read_file, write_file
from blindpost.serving.locking import locked
from blindpost.serving.supervisor import Supervisor

if TYPE_CHECKING:
    from blindpost.ops.servers import Watched
    from blindpost.serving.children import Child

PAGE_PORT = 8823
_KEPT = "page.token"
_APPLE = "apple.p8"
_HISTORY = "page.history.json"

ListenOption = Annotated[
    str,
    typer.Option("--listen", help="The address at which the page listens. It always asks for its token."),
]
PortOption = Annotated[int, typer.Option("--page-port", min=0, max=65_535, help="The page's port; 0: any.")]
ReportOption = Annotated[
    Path | None,
    typer.Option("--report", help="The pipeline's report to link to.", show_default=False, dir_okay=False),
]


def page(
    folders: Annotated[list[Path], typer.Argument(help="Folders of servers: routers, services, canaries.")],
    listen: ListenOption = "127.0.0.1",
    port: PortOption = PAGE_PORT,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="The file with the page's token; created if it is missing.",
            show_default="page.token in the first folder",
        ),
    ] = None,
    report: ReportOption = None,
) -> None:
    """Serve a page with the health and the numbers of servers on this machine, live, until stopped."""
    from blindpost.ops.servers import find

    servers = [find(folder) for folder in folders]
    kept = token_file or servers[0].folder / _KEPT
    token = _token(kept)
    logs.set_up("plain", "info")
    asyncio.run(_serve_page(servers, listen, port, token, report, kept.with_name(_HISTORY)))


def up(
    folder: Annotated[Path, typer.Argument(help="A folder for everything; set up at the first start.")],
    host: Annotated[
        str, typer.Option(help="Where users reach the router; needed at the first start.", show_default=False)
    ] = "",
    smp_port: Annotated[
        int | None, typer.Option("--port", min=0, max=65_535, help="The router's port.", show_default="5223")
    ] = None,
    ntf_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="The notification router's port.", show_default="443"),
    ] = None,
    ntf: Annotated[
        bool, typer.Option("--ntf", help="Set up a notification router too, for Web Push or Apple's key.")
    ] = False,
    apns_key: Annotated[
        Path | None,
        typer.Option(
            help="The .p8 file with the key that Apple issued; with it a notification router is set up.",
            show_default=False,
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    apns_key_id: Annotated[str, typer.Option(help="The id of that key.", show_default=False)] = "",
    is_open: Annotated[
        bool,
        typer.Option("--open", help="At the first start: no password, anybody may create queues."),
    ] = False,
    listen: ListenOption = "127.0.0.1",
    port: PortOption = PAGE_PORT,
    report: ReportOption = None,
) -> None:
    """Run a router and the page, and a notification router if there is one, set up on the first start.

    Without the key of a push service a notification router has nobody to notify: it is set up with
    --apns-key, or with --ntf for Web Push alone.
    """
    from blindpost.ops.servers import find

    if apns_key is not None and not apns_key_id:
        raise typer.BadParameter("say which key it is", param_hint="--apns-key-id")
    if apns_key_id and apns_key is None:
        raise typer.BadParameter("say in which file it is", param_hint="--apns-key")
    host = checked_host(host) if host else ""
    with_ntf = ntf or apns_key is not None or ntf_port is not None or _has_files(folder / "ntf")
    parts = [folder / "router", *([folder / "ntf"] if with_ntf else [])]
    make_folder(folder)
    running = "`blindpost up` runs in this folder already. Stop it first, or name another folder."
    with locked(folder / "up.lock", running):
        _set_up("router", parts[0], host, smp_port, "--no-qr", *(["--open"] if is_open else []))
        if with_ntf:
            _set_up("ntf", parts[1], host, ntf_port, *_apple(apns_key, apns_key_id))
            if apns_key is not None:
                _keep_apple(parts[1] / "ntf.toml", apns_key, apns_key_id)
        token = _token(folder / _KEPT)
        logs.set_up("plain", "info")
        servers = [find(part) for part in parts]
        asyncio.run(_serve_page(servers, listen, port, token, report, folder / _HISTORY, supervised=True))


def _apple(key: Path | None, key_id: str) -> list[str]:
    """Apple's key as settings of a new notification router, which gets a copy of it."""
    if key is None:
        return []
    return ["--set", f'apns.key_file="{_APPLE}"', "--set", f"apns.key_id={json.dumps(key_id)}"]


def _set_up(kind: str, folder: Path, host: str, port: int | None, *options: str) -> None:
    """`init`, if it was not done before."""
    from blindpost.serving.children import COMMAND

    if _has_files(folder):
        if not (folder / f"{kind}.toml").exists():
            raise OperatorError(
                f"{folder}: files are here, but no {kind}.toml. Put it back, or move this folder away: "
                "then a new one is set up."
            )
        _check_unchanged(folder / f"{kind}.toml", host, port)
        return
    if not host:
        raise OperatorError(
            f"{folder}: nothing is set up here yet, and --host is not given. "
            "Say where users reach this machine, as --host smp.example.org."
        )
    at = () if port is None else ("--port", str(port))
    done = subprocess.run(  # noqa: S603 - our own command
        [*COMMAND, kind, "init", str(folder), "--host", host, *at, *options], check=False
    )
    if done.returncode:
        raise OperatorError(f"{folder}: `blindpost {kind} init` failed; its output above says why.")


def _has_files(folder: Path) -> bool:
    return folder.exists() and any(folder.iterdir())


def _check_unchanged(config: Path, host: str, port: int | None) -> None:
    """An existing setup is never redone: another host or port is reported as a mistake."""
    from blindpost.serving.sections import host_text
    from blindpost.serving.toml_text import read_toml

    try:
        address = read_toml(config.read_text(encoding="utf-8"))["address"]
        hosts, known = [host_text(str(text)) for text in address["hosts"]], address.get("port")
    except (OSError, ValueError, LookupError, TypeError):
        return  # the server itself says what is wrong with its file
    if host and host not in hosts:
        raise OperatorError(
            f"{config}: set up for {', '.join(hosts)}, not for {host}. Leave --host out, "
            "or change [address] hosts there."
        )
    if port is not None and known is not None and port != known:
        raise OperatorError(
            f"{config}: set up for port {known}, not {port}. Leave the port out, or change it there."
        )


def _keep_apple(config: Path, key: Path, key_id: str) -> None:
    """Apple's key is set once too: another one, or one that comes later, belongs into the settings."""
    from blindpost.serving.toml_text import read_toml

    try:
        apns = read_toml(config.read_text(encoding="utf-8"))["apns"]
        known, known_id = config.parent / str(apns["key_file"]), str(apns["key_id"])
    except (OSError, ValueError, LookupError, TypeError):
        return  # the server itself says what is wrong with its file
    if known == config.parent / _APPLE and not known.exists():
        write_file(known, read_file(key))
    if known_id != key_id or not known.is_file() or read_file(known) != read_file(key):
        raise OperatorError(
            f"{config}: set up without this key of Apple's. Set key_file and key_id of [apns] there, "
            "and leave --apns-key out."
        )


def _token(file: Path) -> str:
    """The page's token; it is made once and kept."""
    if not file.exists():
        write_file(file, (secrets.token_urlsafe(32) + "\n").encode())
    found = read_file(file).decode("utf-8", "replace").strip()
    if len(found) < 16:
        raise OperatorError(
            f"{file}: a token of at least 16 characters expected. Delete it: a new one is made."
        )
    return found


async def _serve_page(
    servers: list[Watched],
    listen: str,
    port: int,
    token: str,
    report: Path | None,
    history: Path,
    *,
    supervised: bool = False,
) -> None:
    from blindpost.ops.listening import bind, serve
    from blindpost.ops.page import Page
    from blindpost.ops.supervision import running
    from blindpost.serving.children import Child

    parts = [Child(server.kind.word, server.folder) for server in servers] if supervised else []
    listening = bind(listen, port)
    chosen = listening.getsockname()[1]
    stop, supervisor = asyncio.Event(), Supervisor()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: _hang_up(parts))
    shown = Page(servers, token=token, report=report, history=history)

    def ready() -> None:
        name = f"[{listen}]" if ":" in listen else listen
        say(f"The page is at http://{name}:{chosen}/?token={token}")
        supervisor.ready(f"the page is on port {chosen}")

    async with running(parts, stop):
        await serve(shown, listening, stop, ready)
        supervisor.stopping()


def _hang_up(parts: list[Child]) -> None:
    """SIGHUP is for the servers: each reads its certificates and settings again."""
    for part in parts:
        if part.runs:
            part.send(signal.SIGHUP)
