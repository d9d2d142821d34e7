"""News for everybody who wants it.

    NEWS_PASSWORD=... python examples/broadcast_bot.py news.db smp://FINGERPRINT@smp.example.org

Editors give the password once; what they send with /news goes to all subscribers, each of whom gets it once,
even if the bot is stopped halfway.
"""

import hmac
import os
import sys
from dataclasses import dataclass

from blindpost.agent import AgentConfig
from blindpost.bot import Bot, Chat
from blindpost.chat import Contact


@dataclass
class Reader:
    subscribed: bool = True
    editor: bool = False


@dataclass
class Issues:
    count: int = 0


def make(store: str, *servers: str, password: str, config: AgentConfig | None = None) -> Bot:
    welcome = "You get our news from now on. /stop ends that, /start begins it again."
    bot = Bot("News", servers=servers, store=store, welcome=welcome, config=config)

    @bot.audience("subscribers")
    def subscribers(contact: Contact) -> bool:
        return bot.state_of(contact, Reader).subscribed

    @bot.command("stop", "no more news")
    async def stop(chat: Chat) -> None:
        chat.state(Reader).subscribed = False
        await chat.reply("As you wish.")

    @bot.command("start", "news again")
    async def start(chat: Chat) -> None:
        chat.state(Reader).subscribed = True
        await chat.reply("Welcome back.")

    @bot.command("editor", hidden=True)
    async def editor(chat: Chat, word: str) -> None:
        if not hmac.compare_digest(word.encode(), password.encode()):
            await chat.reply("That is not the password.")
            return
        chat.state(Reader).editor = True
        await chat.reply("Write /news and your text.")

    @bot.command("news", hidden=True)
    async def news(chat: Chat, text: str) -> None:
        if not chat.state(Reader).editor:
            await chat.reply("Only editors can do that.")
            return
        issues = chat.shared(Issues)
        issues.count += 1
        chat.remind(0, "send", f"{issues.count} {text}")
        await chat.reply(f"Issue {issues.count} is on its way.")

    @bot.job("send")
    async def send(chat: Chat, issue: str) -> None:
        number, _, text = issue.partition(" ")
        progress = await bot.broadcast(text, key=f"issue {number}", audience="subscribers")
        await progress.finished()
        await chat.reply(f"Issue {number} went to {progress.sent} readers.")

    return bot


if __name__ == "__main__":
    make(*sys.argv[1:], password=os.environ["NEWS_PASSWORD"]).run()
