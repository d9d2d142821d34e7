"""People with chats: an agent each, and what they have heard so far."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from blindpost.agent import Agent, AgentConfig
from blindpost.chat.chats import Chats
from blindpost.chat.codec.profiles import Profile
from blindpost.chat.events import Asked, ContactConnected
from blindpost.chat.model import Contact
from blindpost.testing import Person
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Server
from tests.support.agent.agents import address_of, on_network, quick_config
from tests.support.router.routers import running_router


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
