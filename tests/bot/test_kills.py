"""A bot killed at random points under load: every command is answered exactly once, in order.

The long form is chosen with BLINDPOST_BOT_KILLS, BLINDPOST_BOT_CONTACTS and BLINDPOST_BOT_SEED.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from blindpost.agent import Agent
from blindpost.chat import Contact, ContactConnected, MessageReceived
from blindpost.testing import Person
from tests.support.agent.agents import address_of, quick_config
from tests.support.bot.lives import BotInProcess, bot_in_process
from tests.support.chat.people import person
from tests.support.router.routers import running_router
from tests.support.serving.waiting import until

KILLS = int(os.environ.get("BLINDPOST_BOT_KILLS", "8"))
CONTACTS = int(os.environ.get("BLINDPOST_BOT_CONTACTS", "6"))
SEED = os.environ.get("BLINDPOST_BOT_SEED", "bots")
LIFE_S = 1.0
"""The longest life before a kill."""
WINDOW = 3
"""Commands that a contact has under way at once."""
REMINDER_EVERY = 5
SETTLE_S = 60.0 + 5.0 * CONTACTS


@dataclass
class Caller:
    """Sends commands as long as the killing continues, and records every answer."""

    person: Person
    answers: list[str] = field(default_factory=list)
    asked: int = 0
    reminders: int = 0
    contact: Contact | None = None

    async def run(self, link: str, ended: asyncio.Event) -> None:
        self.person.patience_s = SETTLE_S * 2
        await self.person.chats.join(link)
        while not ended.is_set() or len(self.answers) < self.expected or self.contact is None:
            if self.contact is not None and not ended.is_set():
                await self._ask()
            unit = await self.person.unit()
            for event in unit.events:
                if isinstance(event, ContactConnected):
                    self.contact = event.contact
                elif isinstance(event, MessageReceived):
                    self.answers.append(event.message.text)
            await unit.done()

    @property
    def expected(self) -> int:
        """The welcome, and one answer for each command."""
        return 1 + self.asked + self.reminders

    async def _ask(self) -> None:
        assert self.contact is not None
        while self.expected - len(self.answers) < WINDOW:
            await self.person.chats.say(self.contact, f"/count {self.asked}")
            self.asked += 1
            if self.asked % REMINDER_EVERY == 0:
                await self.person.chats.say(self.contact, f"/later {self.reminders}")
                self.reminders += 1


def count(callers: list[Caller]) -> int:
    return sum(len(caller.answers) for caller in callers)


async def answered_since(callers: list[Caller], before: int) -> None:
    await until(lambda: count(callers) > before)


async def kill_often(bot: BotInProcess, callers: list[Caller], ended: asyncio.Event) -> None:
    """Most runs get to answer something before they end, some do not even get to open their store."""
    chance = random.Random(SEED)

    for number in range(KILLS):
        before = count(callers)
        if number % 4 != 3:
            await answered_since(callers, before)
        await asyncio.sleep(chance.random() ** 2 * LIFE_S)
        await bot.kill()
        await bot.start()
    ended.set()


@pytest.mark.timeout(120 + KILLS * 20 + CONTACTS * 20)
async def test_every_command_is_answered_exactly_once(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(running_router(tmp_path / "router"))
        server = address_of(router.server)
        bot = await stack.enter_async_context(bot_in_process(tmp_path / "bot.db", server))
        await bot.start()
        link = await bot.link()
        callers = []
        for number in range(CONTACTS):
            opened = Agent.open(tmp_path / f"{number}.db", [server], config=quick_config())
            callers.append(Caller(person(await stack.enter_async_context(opened), f"caller {number}")))
        ended = asyncio.Event()
        asking = [asyncio.create_task(caller.run(link, ended)) for caller in callers]
        await kill_often(bot, callers, ended)
        await asyncio.wait(asking, timeout=SETTLE_S)
        for caller in callers:
            told = f"{caller.asked} asked, {caller.reminders} reminders, {caller.answers}"
            assert caller.contact is not None, told
            assert len(caller.answers) >= caller.expected, told
        await asyncio.gather(*asking)
        for caller in callers:
            counted = [answer for answer in caller.answers if answer[0].isdigit()]
            rung = [answer for answer in caller.answers if answer.startswith("ring")]
            assert caller.answers[0] == "welcome"
            assert counted == [f"{number} {number + 1}" for number in range(caller.asked)]
            assert sorted(rung) == sorted(f"ring {number}" for number in range(caller.reminders))
            assert len(caller.answers) == caller.expected
        print(f"{KILLS} kills, {sum(caller.asked for caller in callers)} commands")
