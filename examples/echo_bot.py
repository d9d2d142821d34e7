"""A bot that repeats what it is sent.

python examples/echo_bot.py echo.db smp://FINGERPRINT@smp.example.org
"""

import sys

from blindpost.agent import AgentConfig
from blindpost.bot import Bot, Chat


def make(store: str, *servers: str, config: AgentConfig | None = None) -> Bot:
    bot = Bot("Echo", servers=servers, store=store, welcome="Say something!", config=config)

    @bot.command("shout", "say it louder")
    async def shout(chat: Chat, text: str) -> None:
        await chat.reply(text.upper())

    @bot.message()
    async def echo(chat: Chat) -> None:
        await chat.reply(chat.text, quote=True)

    return bot


if __name__ == "__main__":
    make(*sys.argv[1:]).run()
