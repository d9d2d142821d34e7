"""A directory bot: people connect to its address, put themselves into a list, and look others up.

    python examples/directory_bot.py --folder my-bot --server smp://FINGERPRINT@smp.example.org

The bot is a client service: its router knows all of its queues as one, so that after a restart or a broken
connection one command brings back ten thousand connections. See docs/client-services.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sqlite3
from pathlib import Path

from blindpost.agent import (
    Agent,
    AgentConfig,
    AgentFailed,
    Connected,
    Connection,
    ContactRequested,
    Event,
    Failed,
    QueueDeleted,
    Received,
    ReceivedMessage,
    ServiceAll,
    ServiceDown,
    ServiceEnd,
    ServiceUp,
)

log = logging.getLogger("directory")

FOUND_MAX = 20
NAME_MAX = 40
ABOUT_MAX = 200
HELP = """join NAME ABOUT YOU - be listed under a name
leave - be listed no more
find WORD - look somebody up
help - this text"""


class Directory:
    """Who is listed, by connection."""

    def __init__(self, path: Path) -> None:
        self._sql = sqlite3.connect(path, isolation_level=None)
        self._sql.execute(
            "CREATE TABLE IF NOT EXISTS entries (conn_id TEXT PRIMARY KEY, name TEXT UNIQUE, about TEXT)"
        )

    def answer(self, conn_id: str, text: str) -> str:
        """What to say to somebody who said this."""
        word, _, rest = text.strip().partition(" ")
        match word.lower():
            case "join" if rest:
                name, _, about = rest.partition(" ")
                return self._join(conn_id, name[:NAME_MAX], about[:ABOUT_MAX])
            case "leave":
                self._sql.execute("DELETE FROM entries WHERE conn_id = ?", (conn_id,))
                return "You are not listed any more."
            case "find" if rest:
                return self._find(rest)
        return HELP

    def _join(self, conn_id: str, name: str, about: str) -> str:
        try:
            self._sql.execute(
                "INSERT INTO entries VALUES (?, ?, ?) ON CONFLICT (conn_id)"
                " DO UPDATE SET name = excluded.name, about = excluded.about",
                (conn_id, name, about),
            )
        except sqlite3.IntegrityError:
            return "That name is taken."
        return f"You are listed as {name}."

    def _find(self, word: str) -> str:
        query = "SELECT name, about FROM entries WHERE instr(lower(name || ' ' || about), lower(?)) LIMIT ?"
        found = self._sql.execute(query, (word, FOUND_MAX)).fetchall()
        return "\n".join(f"{name}: {about}" for name, about in found) or "Nobody."

    def forget(self, conn_id: str) -> None:
        self._sql.execute("DELETE FROM entries WHERE conn_id = ?", (conn_id,))

    def close(self) -> None:
        self._sql.close()


class DirectoryBot:
    """Answers whoever writes, as long as it runs."""

    def __init__(self, folder: Path, servers: list[str], config: AgentConfig) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._address_file = folder / "address.txt"
        self._directory = Directory(folder / "directory.db")
        self._agent = Agent.open(folder / "agent.db", servers, config=config)

    async def run(self) -> None:
        async with self._agent as agent:
            log.info("the address of this directory: %s", await self._address(agent))
            async for event in agent.events():
                try:
                    await self.handle(event)
                except Exception:
                    log.exception("an event could not be handled; going on with the next")
        self._directory.close()

    async def _address(self, agent: Agent) -> str:
        """The link that people use; made once, and valid as long as the bot's store."""
        if not self._address_file.exists():
            created = await agent.address(auto_accept=True)
            self._address_file.write_text(created.text)
        return self._address_file.read_text()

    async def handle(self, event: Event) -> None:
        match event:
            case Connected(conn):
                await conn.send(b"Welcome to the directory.\n" + HELP.encode())
            case Received(conn, msg):
                await self._reply(conn, msg)
            case QueueDeleted(conn):
                self._directory.forget(conn.id)
            case ServiceUp(service=service, error=error):
                repaired = "" if error is None else f", the router had another {error.value}: repairing"
                log.info("%d queues are subscribed by one command%s", service.queues.count, repaired)
            case ServiceAll():
                log.info("everything that waited has been delivered")
            case ServiceDown():
                log.warning("the router is away; trying until it is back")
            case ServiceEnd():
                log.error("another process uses the same store or a copy of it: stop one of them")
            case Failed(_, error=problem) | AgentFailed(error=problem):
                log.warning("%s", problem)
            case ContactRequested():
                log.info("somebody connects")

    async def _reply(self, conn: Connection, msg: ReceivedMessage) -> None:
        """Answer, then acknowledge: a crash in between means two answers, never none."""
        answer = self._directory.answer(conn.id, bytes(msg.body).decode("utf-8", "replace"))
        await conn.send(answer.encode())
        await msg.ack()


async def main() -> None:
    parser = argparse.ArgumentParser(description="Run a directory that people connect to.")
    parser.add_argument(
        "--folder", type=Path, required=True, help="where the bot keeps its keys and its list"
    )
    parser.add_argument(
        "--server", action="append", required=True, help="a router's address (may be repeated)"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    bot = DirectoryBot(arguments.folder, arguments.server, AgentConfig(service=True))
    running = asyncio.create_task(bot.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    asyncio.run(main())
