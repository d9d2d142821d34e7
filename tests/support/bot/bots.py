"""Bots over routers in memory, and people who talk to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from blindpost.bot import Bot, Patience
from blindpost.chat import ContactConnected, MessageReceived
from blindpost.testing import LoopClock
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Server
from tests.support.agent.agents import EPOCH, address_of, on_network, quick_config
from tests.support.chat.people import Person, open_agent, person
from tests.support.router.routers import running_router


@dataclass
class World:
    """A router, bots on it, and people."""

    folder: Path
    network: MemoryNetwork
    server: Server
    stack: AsyncExitStack
    people: dict[str, Person] = field(default_factory=dict)

    def bot(self, name: str = "Ada", **chosen: object) -> Bot:
        """A bot by the clock of the loop, quick to give up."""
        options: dict[str, object] = {
            "servers": [address_of(self.server)],
            "store": self.folder / f"{name}.db",
            "config": on_network(self.network, quick_config()),
            "patience": Patience((0.1, 0.1)),
            "now": LoopClock(EPOCH).now,
        }
        return Bot(name, **{**options, **chosen})  # type: ignore[arg-type]  # names are those of the class

    async def person(self, name: str) -> Person:
        opened = open_agent(self.folder / f"{name}.db", self.server, self.network)
        found = person(await self.stack.enter_async_context(opened), name)
        self.people[name] = found
        return found

    async def guest(self, name: str, link: str, first: str | None = None) -> Guest:
        """Somebody who is connected to the bot behind a link."""
        who = await self.person(name)
        await who.chats.join(link, first)
        contact = (await who.expect(ContactConnected)).contact
        await asyncio.sleep(1)  # the bot knows as well
        return Guest(who, contact.id)


@dataclass
class Guest:
    """Somebody who talks to a bot."""

    person: Person
    contact_id: str

    async def say(self, text: str) -> None:
        contact = self.person.chats.contact(self.contact_id)
        assert contact is not None
        await self.person.chats.say(contact, text)

    async def hear(self) -> str:
        return (await self.person.expect(MessageReceived)).message.text

    async def ask(self, text: str) -> str:
        """What the bot answers."""
        await self.say(text)
        return await self.hear()


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(running_router(folder / "router", network=network))
        yield World(folder, network, router.server, stack)
