"""Bots over a router in memory."""

from __future__ import annotations

from blindpost.bot import Bot, Chat, Patience
from blindpost.testing import World


class BotWorld(World):
    """A world in which bots are quick to make, and quick to give up."""

    def bot(self, name: str = "Ada", **chosen: object) -> Bot:
        options: dict[str, object] = {
            "servers": [self.server],
            "store": self.folder / f"{name}.db",
            "config": self.config(),
            "patience": Patience((0.1, 0.1)),
        }
        return Bot(name, **{**options, **chosen})  # type: ignore[arg-type]  # names are those of the class


def with_echo(bot: Bot) -> Bot:
    """Give it a command that says again what it is told."""

    @bot.command("echo", "say it again")
    async def echo(chat: Chat, text: str) -> None:
        await chat.reply(text)

    return bot
