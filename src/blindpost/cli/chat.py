"""`blindpost chat`: a person at a terminal talks with people who have the SimpleX app, or this one."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import typer

from blindpost.cli.output import say
from blindpost.serving.failures import OperatorError

_LINE_LIMIT = 1 << 20
"""The longest line of a pipe; a message may have about 13,000 bytes."""


def chat(
    store: Annotated[Path, typer.Argument(help="The file of keys and messages; made if there is none.")],
    server: Annotated[
        list[str] | None,
        typer.Option("--server", "-s", envvar="BLINDPOST_SERVERS", help="A router's address, smp://..."),
    ] = None,
    name: Annotated[str, typer.Option("--name", "-n", help="How people see you.")] = "",
    sealed: Annotated[
        bool, typer.Option("--sealed", help="Ask for a passphrase that seals the file.")
    ] = False,
    passphrase: Annotated[
        str | None,
        typer.Option(envvar="BLINDPOST_PASSPHRASE", help="Better asked for."),
    ] = None,
    qr: Annotated[bool, typer.Option(help="Show links as QR codes too.")] = True,
) -> None:
    """Talk to people, end to end encrypted: those with the SimpleX app included."""
    if sealed and passphrase is None:
        passphrase = typer.prompt("passphrase", hide_input=True)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(store, server or [], passphrase, name or _own_name(), qr))


def _own_name() -> str:
    """The default name of somebody who gives none."""
    with contextlib.suppress(OSError, KeyError, ImportError):
        return getpass.getuser()
    return "somebody"


async def _run(store: Path, servers: list[str], passphrase: str | None, name: str, qr: bool) -> None:
    from blindpost.agent import Agent, AgentError, PassphraseError
    from blindpost.chat import Chats, Profile
    from blindpost.cli.talking import Talk
    from blindpost.store.sqlite import UNUSABLE
    from blindpost.wire.errors import WireError

    try:
        opened = Agent.open(store, servers, passphrase=passphrase)
    except WireError as error:
        raise OperatorError(f"{error}: give a router's address as its operator wrote it") from error
    try:
        async with opened as agent:
            talk = Talk(Chats(agent, Profile(name)), qr=qr and sys.stdout.isatty())
            say(f"{talk.count} conversations. /help shows what can be typed.")
            lines = _typed() if sys.stdin.isatty() else _piped()
            await talk.run(lines)
    except (PassphraseError, *UNUSABLE) as error:
        raise OperatorError(f"{store}: {error}.") from error
    except AgentError as error:
        raise OperatorError(f"{error}. {error.remedy}") from error


async def _typed() -> AsyncIterator[str]:
    """Lines edited in a terminal; what is printed meanwhile goes above the line. The arrow keys recall what
    was typed; this history is forgotten at the end and never written anywhere."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.patch_stdout import patch_stdout

    session: PromptSession[str] = PromptSession("> ", history=InMemoryHistory())
    with patch_stdout(), contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            yield await session.prompt_async()


async def _piped() -> AsyncIterator[str]:
    """Lines of standard input, until it ends; a file or /dev/null cannot be waited for like a pipe."""
    kind = os.fstat(sys.stdin.fileno()).st_mode
    if not stat.S_ISFIFO(kind) and not stat.S_ISSOCK(kind):
        for line in sys.stdin.buffer:
            yield line.decode(errors="replace").rstrip("\n")
        return
    reader = asyncio.StreamReader(limit=_LINE_LIMIT)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            yield line.decode(errors="replace").rstrip("\n")
    except ValueError as error:
        raise OperatorError(f"a line has more than {_LINE_LIMIT:,} bytes: write shorter ones.") from error
