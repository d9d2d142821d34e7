"""Agents for tests: quick ones in virtual time, and what each has told so far."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from blindpost.agent import Agent, AgentConfig, AgentFailed, Connection, Event, Failed
from blindpost.crypto.kem import KemKeyPair, generate_key_pair
from blindpost.store.contract import Durability
from blindpost.testing.clock import LoopClock, VirtualClock
from blindpost.transport.certificates import Now
from blindpost.transport.network import Network

E = TypeVar("E", bound=Event)
T = TypeVar("T")

EPOCH = 1_750_000_000
"""The time of day when a virtual clock starts."""
PATIENCE_S = 30.0
VIRTUAL_PATIENCE_S = 3600.0
_PAIRS: list[KemKeyPair] = []


async def awaited(event: Awaitable[T], most_s: float = PATIENCE_S) -> T:
    """What must come, or a failure that says so; an hour of virtual time costs nothing."""
    if isinstance(asyncio.get_running_loop(), VirtualClock):
        most_s = VIRTUAL_PATIENCE_S
    try:
        async with asyncio.timeout(most_s):  # in this task: what is there already costs no turn of the loop
            return await event
    except TimeoutError:
        raise AssertionError(f"nothing came within {most_s:.0f} seconds") from None


class ReusedPairs:
    """Makes no more KEM key pairs than a few, since making one takes long."""

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


def quick(config: AgentConfig | None = None) -> AgentConfig:
    """A store that does not wait for the disk, and key pairs that are used again: for tests only."""
    return replace(config or AgentConfig(), durability=Durability.OS, pair_maker=ReusedPairs())


def on_network(network: Network, config: AgentConfig, certified: Now = time.time) -> AgentConfig:
    """The same over another network, and by the clock of the loop; `certified` is the clock by which the
    routers' certificates were issued."""
    client = replace(config.sessions.client, network=network, now=certified)
    return replace(config, sessions=replace(config.sessions, client=client), now=LoopClock(EPOCH).now)


class Peer:
    """An agent and what it has told so far; events are taken as they are expected."""

    def __init__(self, agent: Agent, conn: Connection | None = None) -> None:
        self.agent = agent
        self._conn = conn
        self.seen: list[Event] = []
        self._passed: list[Event] = []

    @property
    def conn(self) -> Connection:
        """The connection with the other one of a pair."""
        assert self._conn is not None, "this agent is not one of a pair"
        return self._conn

    @conn.setter
    def conn(self, conn: Connection) -> None:
        self._conn = conn

    async def next(self) -> Event:
        event = await awaited(self.agent.next_event())
        assert event is not None, "the agent is closed"
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
