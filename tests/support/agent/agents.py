"""Agents for tests: over real routers, with KEM key pairs that are made once and used again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from blindpost.agent import Agent, AgentConfig, Connected, Connection, Received
from blindpost.agent.core import Core
from blindpost.agent.routers.sessions import Session
from blindpost.client.calls import Call, Failure
from blindpost.client.inflight import Awaited
from blindpost.client.smp import SmpClient
from blindpost.router.config import RouterRules
from blindpost.store.contract import Durability
from blindpost.testing import Peer, agents
from blindpost.testing.agents import ReusedPairs
from blindpost.testing.network import MemoryNetwork
from blindpost.transport.network import Network
from blindpost.wire.addresses import RouterAddress, Scheme, Server
from blindpost.wire.smp.commands import Command
from blindpost.wire.smp.responses import Response
from tests.support.router.routers import running_router


def address_of(server: Server) -> str:
    return RouterAddress(Scheme.SMP, server).text


def quick_config(**chosen: object) -> AgentConfig:
    """A store that does not wait for the disk, and pairs that are used again."""
    defaults: dict[str, object] = {"durability": Durability.OS, "pair_maker": ReusedPairs()}
    return AgentConfig(**{**defaults, **chosen})  # type: ignore[arg-type]  # names are those of the class


class Party(Peer):
    """An agent, what it told so far, and its inside."""

    @property
    def rt(self) -> Core:
        return self.agent._core

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

    original_ready = SmpClient.send_ready

    def send_ready(client: SmpClient, ready: Awaited[Command, Response]) -> None:
        if any(session.client is client for session in _sessions(party)):
            sent.append(ready.call)
        original_ready(client, ready)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SmpClient, "send_many", send_many)
        patch.setattr(SmpClient, "send_ready", send_ready)
        yield sent


def on_network(network: Network, config: AgentConfig | None = None) -> AgentConfig:
    """The same in memory, and by the clock of the loop."""
    return agents.on_network(network, config or quick_config())


async def connect(alice: Party, bob: Party, **wishes: object) -> tuple[Connection, Connection]:
    """Alice invites, Bob joins; both are connected."""
    link = await alice.agent.invite(**wishes)  # type: ignore[arg-type]  # names are those of invite
    await bob.agent.join(str(link))
    theirs = await bob.expect(Connected)
    ours = await alice.expect(Connected)
    return ours.conn, theirs.conn
