"""`blindpost chat`: a small terminal messenger on the agent library.

Lines that are typed go to the chosen peer; lines that begin with / are commands. Everything that happens is
an event of the agent, printed as it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blindpost.cli.output import say
from blindpost.serving.failures import OperatorError

if TYPE_CHECKING:
    from blindpost.agent import Agent, Connection, Event

HELP = """\
/invite          make a link for one person, with a QR code
/address         make a link for anybody
/join LINK       connect by a link of either kind
/list            show all peers
/to NUMBER       choose who gets what you type
/code            show the security code to compare with the peer's
/move            move to another router
/quit            leave; everything is kept"""


def chat(
    store: Annotated[Path, typer.Argument(help="The file of keys and messages; made if there is none.")],
    server: Annotated[
        list[str] | None,
        typer.Option("--server", "-s", envvar="BLINDPOST_SERVERS", help="A router's address, smp://..."),
    ] = None,
    name: Annotated[str, typer.Option("--name", "-n", help="How peers see you.")] = "",
    sealed: Annotated[
        bool, typer.Option("--sealed", help="Ask for a passphrase that seals the file.")
    ] = False,
    passphrase: Annotated[
        str | None,
        typer.Option(envvar="BLINDPOST_PASSPHRASE", help="Better asked for."),
    ] = None,
    qr: Annotated[bool, typer.Option(help="Show links as QR codes too.")] = True,
) -> None:
    """Talk to people, end to end encrypted."""
    if sealed and passphrase is None:
        passphrase = typer.prompt("passphrase", hide_input=True)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(store, server or [], passphrase, name, qr))


async def _run(store: Path, servers: list[str], passphrase: str | None, name: str, qr: bool) -> None:
    from blindpost.agent import Agent, PassphraseError
    from blindpost.store.sqlite import UNUSABLE
    from blindpost.wire.errors import WireError

    try:
        opened = Agent.open(store, servers, passphrase=passphrase)
    except WireError as error:
        raise OperatorError(f"{error}: give a router's address as its operator wrote it") from error
    try:
        async with opened as agent:
            await Chat(agent, name, qr).run()
    except (PassphraseError, *UNUSABLE) as error:
        raise OperatorError(f"{store}: {error}.") from error


class Chat:
    """Who is there, who is being talked to, and what is typed."""

    def __init__(self, agent: Agent, name: str, qr: bool) -> None:
        self._agent = agent
        self._name = name.encode()
        self._qr = qr
        self._peers: list[Connection] = list(agent.connections())
        self._names: dict[str, str] = {}
        self._to: Connection | None = self._peers[0] if self._peers else None
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "/invite": self._invite,
            "/address": self._address,
            "/join": self._join,
            "/list": self._list,
            "/to": self._choose,
            "/code": self._code,
            "/move": self._move,
            "/help": self._help,
        }

    async def run(self) -> None:
        say(f"{len(self._peers)} connections. /help shows what can be typed.")
        showing = asyncio.create_task(self._show_events())
        try:
            async for line in _typed():
                if line == "/quit":
                    break
                await self._obey(line)
        finally:
            showing.cancel()
            await asyncio.wait([showing])

    async def _obey(self, line: str) -> None:
        """One line; what goes wrong is told, and the next line can be typed."""
        from blindpost.agent import AgentError

        word, _, rest = line.partition(" ")
        try:
            if not line.startswith("/"):
                await self._send(line)
            elif word in self._commands:
                await self._commands[word](rest.strip())
            else:
                say(f"{word} is no command: /help shows what is")
        except AgentError as error:
            say(f"! {error}")

    async def _send(self, text: str) -> None:
        if not text:
            return
        if self._to is None:
            say("Nobody is there yet: /invite or /join somebody.")
            return
        await self._to.send(text.encode())

    async def _invite(self, _: str) -> None:
        created = await self._agent.invite(self._name, user_data=b"")
        self._added(created.conn)
        self._show_link(str(created))

    async def _address(self, _: str) -> None:
        created = await self._agent.address(self._name, auto_accept=True, user_data=b"")
        self._added(created.conn)
        self._show_link(str(created))

    def _show_link(self, link: str) -> None:
        say(f"Give this link to whom you want to talk to:\n{link}")
        if self._qr and sys.stdout.isatty():
            import segno

            segno.make(link).terminal(compact=True)

    async def _join(self, link: str) -> None:
        if not link:
            say("/join needs a link")
            return
        self._added(await self._agent.join(link, self._name))
        say("Connecting; this goes on in the background.")

    async def _list(self, _: str) -> None:
        for number, conn in enumerate(self._peers, 1):
            chosen = "*" if conn == self._to else " "
            say(f"{chosen}{number:3}  {self._called(conn)}  {conn.type.value}")

    async def _choose(self, number: str) -> None:
        if not number.isdigit() or not 0 < int(number) <= len(self._peers):
            say("/to needs a number that /list shows")
            return
        self._to = self._peers[int(number) - 1]
        say(f"Now talking to {self._called(self._to)}.")

    async def _code(self, _: str) -> None:
        if self._to is not None:
            code = str(int.from_bytes(self._to.security_code, "big"))
            say(" ".join(code[place : place + 5] for place in range(0, 60, 5)))

    async def _move(self, _: str) -> None:
        if self._to is not None:
            await self._to.switch()

    async def _help(self, _: str) -> None:
        say(HELP)

    def _added(self, conn: Connection) -> None:
        if conn not in self._peers:
            self._peers.append(conn)

    def _called(self, conn: Connection) -> str:
        return self._names.get(conn.id) or f"peer {self._peers.index(conn) + 1}"

    async def _show_events(self) -> None:
        async for event in self._agent.events():
            await self._show(event)

    async def _show(self, event: Event) -> None:
        from blindpost.agent import events

        match event:
            case events.Received(conn, msg):
                say(f"{self._called(conn)}: {msg.body.decode(errors='replace')}{_warning(msg.integrity)}")
                await msg.ack(b"")
            case events.ReceiptsReceived(conn, msg, _):
                say(f"  {self._called(conn)} has it")
                await msg.ack()
            case events.ConfirmationReceived(conn, confirmation):
                self._names[conn.id] = confirmation.info.decode(errors="replace")
            case events.InfoReceived(conn, info, _):
                self._names[conn.id] = bytes(info).decode(errors="replace")
            case events.ContactRequested(_, request) if request.accepted is not None:
                self._added(request.accepted)
                self._names[request.accepted.id] = request.info.decode(errors="replace")
            case events.Connected(conn, pq):
                self._added(conn)
                self._to = self._to if self._to is not None and self._to.type.value == "duplex" else conn
                say(f"Connected with {self._called(conn)}{', post-quantum' if pq else ''}.")
            case events.Switched(conn, direction, phase) if phase is events.SwitchPhase.COMPLETED:
                say(f"{'You' if direction is events.Direction.RCV else self._called(conn)} moved.")
            case events.Failed(conn, error):
                say(f"! {self._called(conn)}: {error}")
            case events.SendFailed(conn, _, error):
                say(f"! not sent to {self._called(conn)}: {error}")
            case events.AgentFailed(error):
                say(f"! {error}")


def _warning(integrity: object) -> str:
    """What the chain of messages says, when it is not that all is well."""
    from blindpost.agent import MsgOk

    return "" if isinstance(integrity, MsgOk) else f"   [{integrity}]"


async def _typed() -> AsyncIterator[str]:
    """Lines of standard input, until it ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode(errors="replace").rstrip("\n")
