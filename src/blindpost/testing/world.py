"""A world for the tests of a program: routers in memory, agents, people who talk to bots, and faults."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, Self

from blindpost.agent import Agent, AgentConfig, Connected
from blindpost.chat import Chats, ContactConnected, Profile
from blindpost.crypto.credentials import issue_router, make_authority
from blindpost.crypto.entropy import system_entropy
from blindpost.router.config import RouterRules
from blindpost.router.server import Router
from blindpost.router.tables import LmdbTables
from blindpost.store.contract import Durability
from blindpost.testing.agents import EPOCH, Peer, on_network, quick
from blindpost.testing.clock import LoopClock, run_virtual
from blindpost.testing.network import MemoryNetwork
from blindpost.testing.people import Guest, Person
from blindpost.transport.ends import listen
from blindpost.transport.plans import smp_router_plan
from blindpost.wire.addresses import Host, RouterAddress, Scheme, Server

P = ParamSpec("P")


class MemoryRouter:
    """A real router that listens in memory; its store is in a folder, and survives `restart`."""

    def __init__(self, folder: Path, name: str, network: MemoryNetwork, rules: RouterRules | None) -> None:
        self._folder = folder
        self._network = network
        self._rules = rules
        self._clock = LoopClock(EPOCH)
        self._name = name
        self._credentials = issue_router(make_authority(EPOCH, system_entropy), name, EPOCH, system_entropy)
        self._running: AsyncExitStack | None = None
        server = Server((Host(name),), "5223", self._credentials.fingerprint)
        self.address = RouterAddress(Scheme.SMP, server).text
        """What an agent or a bot is given."""

    async def start(self) -> None:
        """Begin, or begin again with what is stored."""
        if self._running is not None:
            raise RuntimeError(f"{self._name} is running")
        async with AsyncExitStack() as stack:
            store = LmdbTables(self._folder, Durability.OS)
            stack.callback(store.close)
            router = Router(store, self._rules, now=self._clock.now)
            running = asyncio.create_task(router.run())

            async def ended() -> None:
                router.stop()
                await running

            stack.push_async_callback(ended)
            plan = smp_router_plan(self._credentials)
            listening, _ = await listen(plan, router, self._name, 5223, self._network)
            stack.push_async_callback(listening.stop)
            self._running = stack.pop_all()

    async def stop(self) -> None:
        """End; whoever is connected notices."""
        if self._running is not None:
            running, self._running = self._running, None
            await running.aclose()

    @asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        """It is away during the block."""
        await self.stop()
        try:
            yield
        finally:
            await self.start()


class World:
    """A network in memory with a router, and whoever is on it. Use as `async with`, or by `virtual`.

    It must be used on a virtual clock: a day of reminders then takes milliseconds.
    """

    def __init__(self, folder: Path, *, rules: RouterRules | None = None) -> None:
        self.folder = folder
        """Where the stores of routers and agents are."""
        self.network = MemoryNetwork()
        """`network.to_caller` and `network.to_listener` say how bytes travel on new connections."""
        self.routers: list[MemoryRouter] = []
        self.people: dict[str, Person] = {}
        self._rules = rules
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self.add_router()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    # Routers, and what can happen to them

    @property
    def router(self) -> MemoryRouter:
        """The first router."""
        return self.routers[0]

    @property
    def server(self) -> str:
        """The address of the first router."""
        return self.router.address

    async def add_router(self) -> MemoryRouter:
        """One more router, empty."""
        name = f"router{len(self.routers) + 1}"
        router = MemoryRouter(self.folder / name, name, self.network, self._rules)
        await router.start()
        self._stack.push_async_callback(router.stop)
        self.routers.append(router)
        return router

    def cut(self) -> None:
        """Break every connection that is open now; new ones can be made at once."""
        for ours, _ in self.network.connections:
            ours.cut()

    def now(self) -> float:
        """The time of day, for agents, bots and routers alike; `asyncio.sleep` moves it on."""
        return LoopClock(EPOCH).now()

    # Who is there

    def config(self, config: AgentConfig | None = None) -> AgentConfig:
        """What an agent or a bot needs to be in this world; other choices are kept."""
        return on_network(self.network, quick(config), self.now)

    async def agent(
        self, name: str, config: AgentConfig | None = None, *, servers: Iterable[str] = ()
    ) -> Peer:
        """An agent that is open as long as the world; it uses the first router, or those that are named."""
        chosen = list(servers) or [self.server]
        opened = Agent.open(self.folder / f"{name}.db", chosen, config=self.config(config))
        return Peer(await self._stack.enter_async_context(opened))

    async def pair(self, first: str = "alice", second: str = "bob") -> tuple[Peer, Peer]:
        """Two agents with a connection between them: `conn` of each."""
        alice, bob = await self.agent(first), await self.agent(second)
        link = await alice.agent.invite()
        await bob.agent.join(str(link))
        bob.conn = (await bob.expect(Connected)).conn
        alice.conn = (await alice.expect(Connected)).conn
        return alice, bob

    async def person(self, name: str) -> Person:
        """Somebody with the app, who knows nobody yet."""
        found = Person(Chats((await self.agent(name)).agent, Profile(name), now=self.now))
        self.people[name] = found
        return found

    async def guest(self, name: str, link: str, first: str | None = None) -> Guest:
        """Somebody who has just connected to the bot behind a link; `first` is what they said with it."""
        who = await self.person(name)
        await who.chats.join(link, first)
        contact = (await who.expect(ContactConnected)).contact
        await asyncio.sleep(1)  # the bot knows as well
        return Guest(who, contact.id)


def virtual(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test on a virtual clock; a `World` among its arguments is open meanwhile."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def whole() -> None:
            async with AsyncExitStack() as stack:
                for argument in (*args, *kwargs.values()):
                    if isinstance(argument, World):
                        await stack.enter_async_context(argument)
                await test(*args, **kwargs)

        run_virtual(whole())

    return run
