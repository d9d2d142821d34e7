"""A directory: people connect to its address, add themselves to a list, and look others up.

    python examples/directory_bot.py --folder my-bot --server smp://FINGERPRINT@smp.example.org

The bot is a client service: its router knows all of its queues as one, so that after a restart or a broken
connection one command brings back ten thousand connections. See docs/client-services.md.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from blindpost.agent import AgentConfig
from blindpost.bot import Bot, Chat

FOUND_MAX = 20
NAME_MAX = 40
ABOUT_MAX = 200


@dataclass
class Entry:
    """One person's listing."""

    name: str = ""
    about: str = ""


def make(store: Path, *servers: str, config: AgentConfig | None = None) -> Bot:
    bot = Bot(
        "Directory",
        servers=servers,
        store=store,
        service=True,
        welcome="Welcome to the directory. /help shows what I know.",
        config=config,
    )

    @bot.command("join", "be listed under a name")
    async def join(chat: Chat, name: str, about: str = "") -> None:
        name = name[:NAME_MAX]
        if any(found.name == name for found in _entries(bot) if found != chat.state(Entry)):
            await chat.reply("That name is taken.")
            return
        entry = chat.state(Entry)
        entry.name, entry.about = name, about[:ABOUT_MAX]
        await chat.reply(f"You are listed as {name}.")

    @bot.command("leave", "be listed no more")
    async def leave(chat: Chat) -> None:
        chat.state(Entry).name = ""
        await chat.reply("You are not listed any more.")

    @bot.command("find", "look somebody up")
    async def find(chat: Chat, word: str) -> None:
        wanted = word.lower()
        found = [one for one in _entries(bot) if wanted in f"{one.name} {one.about}".lower()]
        await chat.reply("\n".join(f"{one.name}: {one.about}" for one in found[:FOUND_MAX]) or "Nobody.")

    return bot


def _entries(bot: Bot) -> list[Entry]:
    """Everybody who is listed."""
    entries = (bot.state_of(contact, Entry) for contact in bot.contacts())
    return [entry for entry in entries if entry.name]


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a directory that people connect to.")
    parser.add_argument(
        "--folder", type=Path, required=True, help="where the bot keeps its keys and its list"
    )
    parser.add_argument(
        "--server", action="append", required=True, help="a router's address (may be repeated)"
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    make(arguments.folder / "directory.db", *arguments.server).run()


if __name__ == "__main__":
    main()
