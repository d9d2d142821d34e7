"""Agents for tests: over real routers, with KEM key pairs that are made once and used again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from blindpost.agent import Agent, AgentConfig, AgentFailed, Connected, Connection, Event, Failed, Received
from blindpost.agent.core import Core
from blindpost.agent.routers.sessions import Session
from blindpost.client.calls import Call, Failure
from blindpost.client.smp import SmpClient
from blindpost.crypto.kem import KemKeyPair, generate_key_pair
from blindpost.router.config import RouterRules
from blindpost.store.contract import Durability
from blindpost.testing import LoopClock
from blindpost.testing.clock import VirtualClock
from blindpost.testing.network import MemoryNetwork
from blindpost.transport.network import Network
from blindpost.wire.addresses import RouterAddress, Scheme, Server
from blindpost.wire.smp.commands import Command
from blindpost.wire.smp.responses import Response
from tests.support.router.routers import running_router

E = TypeVar("E", bound=Event)

PATIENCE_S = 30.0
VIRTUAL_PATIENCE_S = 3600.0
EPOCH = 1_750_000_000
_PAIRS: list[KemKeyPair] = []


class ReusedPairs:
    """Makes no more pairs than a few, since making one takes long."""

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._next = 0

    async def make(self) -> KemKeyPair:
        if len(_PAIRS) < self._most:
            _PAIRS.append(generate_key_pair())
        self._next += 1
        return _PAIRS[self._next % len(_PAIRS)]

    async def close(self) -> None:
        pass


def address_of(server: Server) -> str:
    return RouterAddress(Scheme.SMP, server).text


def quick_config(**chosen: object) -> AgentConfig:
    """A store that does not wait for the disk, and pairs that are used again."""
    defaults: dict[str, object] = {"durability": Durability.OS, "pair_maker": ReusedPairs()}
    return AgentConfig(**{**defaults, **chosen})  # type: ignore[arg-type]  # names are those of the class


class Party:
    """An agent and what it told so far; events are taken as they are expected."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.seen: list[Event] = []
        self._passed: list[Event] = []

    @property
    def rt(self) -> Core:
        return self.agent._core

    async def next(self) -> Event:
        virtual = isinstance(asyncio.get_running_loop(), VirtualClock)
        async with asyncio.timeout(VIRTUAL_PATIENCE_S if virtual else PATIENCE_S):
            event = await self.agent.next_event()
        assert event is not None
        self.seen.append(event)
        return event

    async def expect(self, kind: type[E], where: Callable[[E], bool] = lambda _: True) -> E:
        """The next event of a kind, also one that was passed over before; other errors fail the test."""
        for event in self._passed:
            if isinstance(event, kind) and where(event):
                self._passed.remove(event)
                return event
        while True:
            event = await self.next()
            if isinstance(event, kind) and where(event):
                return event
            assert not isinstance(event, Failed | AgentFailed), event.error
            self._passed.append(event)

    async def next_of(self, kind: type[E]) -> E:
        """The next event of a kind, whatever else is told before it."""
        while not isinstance(event := await self.next(), kind):
            self._passed.append(event)
        return event

    async def message(self, *, ack: bool = True) -> Received:
        event = await self.expect(Received)
        if ack:
            await event.msg.ack()
        return event

    def names(self) -> list[str]:
        return [event.name for event in self.seen]


@asynccontextmanager
async def party(
    path: Path, *servers: Server, config: AgentConfig | None = None, passphrase: str | None = None
) -> AsyncIterator[Party]:
    """An agent with its store at `path` and these routers."""
    opened = Agent.open(
        path,
        servers=[address_of(server) for server in servers],
        config=config or quick_config(),
        passphrase=passphrase,
    )
    async with opened as agent:
        yield Party(agent)


@asynccontextmanager
async def two_parties(
    folder: Path,
    ours: AgentConfig | None = None,
    theirs: AgentConfig | None = None,
    *,
    network: MemoryNetwork | None = None,
    rules: RouterRules | None = None,
) -> AsyncIterator[tuple[Party, Party]]:
    """Two agents and a router of their own, in memory; for virtual time."""
    network = network or MemoryNetwork()
    async with (
        running_router(folder / "router", rules, network=network) as router,
        party(folder / "a.db", router.server, config=on_network(network, ours)) as alice,
        party(folder / "b.db", router.server, config=on_network(network, theirs)) as bob,
    ):
        yield alice, bob


def _sessions(party: Party) -> Iterator[Session]:
    for key in list(party.rt.sessions._slots):
        if (session := party.rt.sessions.current(key)) is not None:
            yield session


@contextmanager
def recorded(party: Party) -> Iterator[list[Call[Command]]]:
    """What the agent sends to routers meanwhile."""
    sent: list[Call[Command]] = []
    original = SmpClient.send_many

    async def send_many(client: SmpClient, calls: Iterable[Call[Command]]) -> list[Response | Failure]:
        listed = list(calls)
        if any(session.client is client for session in _sessions(party)):
            sent.extend(listed)
        return await original(client, listed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SmpClient, "send_many", send_many)
        yield sent


def on_network(network: Network, config: AgentConfig | None = None) -> AgentConfig:
    """The same in memory, and by the clock of the loop."""
    config = config or quick_config()
    client = replace(config.sessions.client, network=network)
    return replace(config, sessions=replace(config.sessions, client=client), now=LoopClock(EPOCH).now)


async def connect(alice: Party, bob: Party, **wishes: object) -> tuple[Connection, Connection]:
    """Alice invites, Bob joins; both are connected."""
    link = await alice.agent.invite(**wishes)  # type: ignore[arg-type]  # names are those of invite
    await bob.agent.join(str(link))
    theirs = await bob.expect(Connected)
    ours = await alice.expect(Connected)
    return ours.conn, theirs.conn
