"""The example service: people connect to it, it answers, and one command brings all of them back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from blindpost.agent import Connected, ServiceUp
from blindpost.wire.smp.commands import SUB, SUBS
from examples.directory_bot import DirectoryBot
from tests.support.agent.agents import Party, address_of, party, quick_config
from tests.support.agent.network import commands_sent
from tests.support.router.routers import RunningRouter, running_router
from tests.support.serving.waiting import until


class WatchedBot(DirectoryBot):
    """Remembers how often its service came up, and with how many queues."""

    def __init__(self, folder: Path, running: RunningRouter) -> None:
        super().__init__(folder, [address_of(running.server)], quick_config(service=True))
        self.ups: list[ServiceUp] = []

    async def handle(self, event: object) -> None:
        if isinstance(event, ServiceUp):
            self.ups.append(event)
        await super().handle(event)  # type: ignore[arg-type]


@asynccontextmanager
async def running_bot(folder: Path, running: RunningRouter) -> AsyncIterator[WatchedBot]:
    bot = WatchedBot(folder, running)
    task = asyncio.create_task(bot.run())
    try:
        yield bot
    finally:
        task.cancel()
        await asyncio.wait([task])


async def said(person: Party, text: str) -> str:
    """What the bot answers."""
    conn = person.agent.connections()[0]
    await conn.send(text.encode())
    return bytes((await person.message()).msg.body).decode()


async def test_people_are_listed_found_and_served_after_a_restart(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(running_router(tmp_path / "router"))
        people = [
            await stack.enter_async_context(party(tmp_path / f"{name}.db", running.server))
            for name in ("ann", "ben")
        ]
        address = tmp_path / "bot" / "address.txt"
        async with running_bot(tmp_path / "bot", running) as bot:
            await until(address.exists)
            for person in people:
                await person.agent.join(address.read_text())
                await person.expect(Connected)
                assert b"Welcome" in (await person.message()).msg.body
            ann, ben = people
            assert await said(ann, "join ann gardens and bees") == "You are listed as ann."
            assert await said(ben, "find bees") == "ann: gardens and bees"
            assert await said(ben, "join ann") == "That name is taken."
            assert await said(ben, "what?") == (await said(ben, "help"))
            assert bot.ups == []
        with commands_sent() as calls:
            async with running_bot(tmp_path / "bot", running) as bot:
                await until(lambda: bool(bot.ups))
                assert (bot.ups[0].service.queues.count, bot.ups[0].error) == (3, None)
                assert await said(ben, "find gardens") == "ann: gardens and bees"
                assert await said(ann, "leave") == "You are not listed any more."
                assert await said(ben, "find gardens") == "Nobody."
            kinds = [type(call.command) for call in calls]
            assert (kinds.count(SUBS), kinds.count(SUB)) == (1, 0)
