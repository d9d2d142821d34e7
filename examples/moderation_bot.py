"""Keeps a group civil.

    python examples/moderation_bot.py guard.db smp://FINGERPRINT@smp.example.org spam casino

Connect to it, invite it to your group and make it a moderator, or an admin if it is to remove people:
messages with one of the words are deleted; a member who continues after two warnings is removed.
"""

import re
import sys
from dataclasses import dataclass, field

from blindpost.agent import AgentConfig
from blindpost.bot import Bot, Chat

STRIKES = 3
MAY_DELETE = ("moderator", "admin", "owner")
MAY_REMOVE = ("admin", "owner")


@dataclass
class Record:
    """Warnings in one group, by member."""

    strikes: dict[str, int] = field(default_factory=dict)


def make(store: str, server: str, *words: str, config: AgentConfig | None = None) -> Bot:
    welcome = "Invite me to a group and make me a moderator."
    bot = Bot("Guard", servers=[server], store=store, welcome=welcome, groups=True, config=config)
    forbidden = "|".join(re.escape(word) for word in words)

    @bot.message(matches=rf"(?i)\b({forbidden})\b", groups=True)
    async def guard(chat: Chat) -> None:
        group, member, message = chat.group, chat.member, chat.message
        if group is None or member is None or message is None or group.role not in MAY_DELETE:
            return
        record, key = chat.state(Record), member.id.hex()
        record.strikes[key] = record.strikes.get(key, 0) + 1
        chat.delete(message)
        if record.strikes[key] < STRIKES:
            await chat.reply(f"{member.name}, please mind your words. Warning {record.strikes[key]}.")
        elif group.role in MAY_REMOVE:
            chat.remove(member)
            await chat.reply(f"{member.name} was removed.")

    @bot.command("warnings", groups=True)
    async def warnings(chat: Chat) -> None:
        count = sum(chat.state(Record).strikes.values())
        await chat.reply(f"{count} warnings so far.")

    return bot


if __name__ == "__main__":
    make(*sys.argv[1:]).run()
