"""People with chats: an agent each, and what they have heard so far."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from blindpost.agent import Agent, AgentConfig
from blindpost.chat.chats import Chats, Unit
from blindpost.chat.codec.profiles import Profile
from blindpost.chat.events import Asked, ChatEvent, ContactConnected, MessageReceived
from blindpost.chat.model import Contact, Conversation
from blindpost.testing.clock import VirtualClock
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Server
from tests.support.agent.agents import address_of, on_network, quick_config
from tests.support.router.routers import running_router

E = TypeVar("E")
PATIENCE_S = 30.0


class Person:
    """Takes units one by one; what is not waited for is put aside, and taken as done."""

    def __init__(self, chats: Chats) -> None:
        self.chats = chats
        self.aside: list[ChatEvent] = []
        self.patience_s = PATIENCE_S
        self._units = chats.units()

    async def unit(self) -> Unit:
        virtual = isinstance(asyncio.get_running_loop(), VirtualClock)
        async with asyncio.timeout(3600 if virtual else self.patience_s):
            return await anext(self._units)

    async def unit_with(self, kind: type[ChatEvent]) -> Unit:
        """The next unit with an event of this kind, not yet done; those before it are."""
        while True:
            unit = await self.unit()
            if any(isinstance(event, kind) for event in unit.events):
                return unit
            await unit.done()

    async def expect(self, kind: type[E], where: Callable[[E], bool] = lambda _: True) -> E:
        """The next event of a kind, also one that was put aside before."""
        while True:
            for event in self.aside:
                if isinstance(event, kind) and where(event):
                    self.aside.remove(event)
                    return event
            unit = await self.unit()
            await unit.done()
            self.aside += unit.events

    async def heard(self, text: str) -> MessageReceived:
        return await self.expect(MessageReceived, lambda event: event.message.text == text)

    async def say(self, to: Conversation, text: str) -> tuple[int, ...]:
        fresh = self.chats.contact(to.id) or self.chats.group(to.id)
        assert fresh is not None
        return await self.chats.say(fresh, text)


def person(agent: Agent, name: str) -> Person:
    return Person(Chats(agent, Profile(name)))


@asynccontextmanager
async def people(
    folder: Path, *names: str, config: AgentConfig | None = None, network: MemoryNetwork | None = None
) -> AsyncIterator[list[Person]]:
    """People with a router of their own, in memory; for virtual time."""
    network = network or MemoryNetwork()
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(running_router(folder / "router", network=network))
        found = []
        for name in names:
            opened = open_agent(folder / f"{name}.db", router.server, network, config)
            found.append(person(await stack.enter_async_context(opened), name))
        yield found


def open_agent(
    path: Path, server: Server, network: MemoryNetwork, config: AgentConfig | None = None
) -> Agent:
    return Agent.open(path, [address_of(server)], config=on_network(network, config or quick_config()))


async def befriend(first: Person, second: Person) -> tuple[Contact, Contact]:
    """The second one asks the first, who accepts; each one's contact."""
    link = await first.chats.address()
    await second.chats.join(str(link))
    asked = await first.expect(Asked)
    await first.chats.accept(asked)
    theirs = (await second.expect(ContactConnected)).contact
    ours = (await first.expect(ContactConnected)).contact
    return ours, theirs
