"""A bot whose every life is a fresh fork of a process that has imported it, to be killed at any time.

The line `live` on standard input begins a life; `begun PID`, `open LINK` and `ended STATUS` tell of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

from blindpost.bot import Bot, Chat
from tests.support.agent.agents import quick_config


@dataclass
class Count:
    answered: int = 0


def counting_bot(path: Path, server: str) -> Bot:
    """Answers each command with its number and how many it has answered so far, after a while of its own."""
    bot = Bot("Counter", servers=[server], store=path, welcome="welcome", config=quick_config())
    chance = random.Random()

    @bot.command("count")
    async def count(chat: Chat, number: int) -> None:
        counted = chat.state(Count)
        counted.answered += 1
        await asyncio.sleep(chance.random() * 0.02)
        await chat.reply(f"{number} {counted.answered}")

    @bot.command("later")
    async def later(chat: Chat, number: int) -> None:
        chat.remind(chance.random() * 0.2, "ring", str(number))

    @bot.job("ring")
    def ring(chat: Chat, number: str) -> None:
        chat.reply(f"ring {number}")

    return bot


def live(path: Path, server: str) -> None:
    async def main() -> None:
        async with counting_bot(path, server).open() as link:
            print(f"open {link}", flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())


def main() -> None:
    path, server = sys.argv[1:]
    for line in sys.stdin:
        if line.strip() != "live":
            continue
        child = os.fork()
        if child == 0:
            live(Path(path), server)
            os._exit(0)
        print(f"begun {child}", flush=True)
        _, status = os.waitpid(child, 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
