"""Handlers that block: in threads of their own, for which neither others nor the end of the program wait."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

from blindpost.bot.routes import called
from tests.support.bot.bots import BotWorld

MANY = 50

STUCK = """
import asyncio, sys, threading
from pathlib import Path
from blindpost.bot import Bot, Chat
from blindpost.testing import World

async def main():
    async with World(Path(sys.argv[1])) as world:
        store, config = sys.argv[1] + "/a.db", world.config()
        bot = Bot("Ada", servers=[world.server], store=store, config=config, drain_s=0)
        began = threading.Event()

        @bot.command("wait")
        def wait(chat: Chat) -> None:
            began.set()
            threading.Event().wait()

        async with bot.open() as link:
            await (await world.guest("Bob", link)).say("/wait")
            await asyncio.to_thread(began.wait)

asyncio.run(main())
print("ended")
"""


async def test_many_block_at_once_and_names_are_still_looked_up(tmp_path: Path) -> None:
    """A pool of the loop's has a few threads, and the agent looks up its routers there."""
    all_there, done = threading.Barrier(MANY), threading.Event()

    def block() -> None:
        all_there.wait(60)
        done.wait(60)

    blocked = [asyncio.create_task(called(block)) for _ in range(MANY)]
    try:
        assert await asyncio.get_running_loop().getaddrinfo("localhost", 5223)
        assert not done.is_set()
    finally:
        done.set()
        await asyncio.gather(*blocked)


async def test_what_a_blocking_handler_raises_is_its_failure(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()

        @bot.command("next")
        def following(chat: object) -> None:
            next(iter(()))

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            assert "Something went wrong" in await bob.ask("/next")
            (aside,) = bot.set_aside()
            assert "StopIteration" in aside.error


def test_a_program_ends_although_a_handler_never_does(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUCK, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout) == (0, "ended\n"), ended.stderr
