"""Two people, each with an agent: they write, read, acknowledge, and remember what they saw."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from blindpost.agent import (
    Agent,
    AgentConfig,
    Connected,
    Connection,
    Event,
    MsgOk,
    RatchetSync,
    Received,
    Sent,
    Switched,
)


class Person:
    """An agent and everything that happened to it."""

    def __init__(self, name: str, agent: Agent) -> None:
        self.name = name
        self.agent = agent
        self.peer: Connection | None = None
        self.read: list[str] = []
        self.broken = 0
        """Letters that did not follow the one before."""
        self.accepted: set[int] = set()
        self.events: list[Event] = []
        self.pq = False
        self.latencies_s: list[float] = []
        self._posted: dict[int, float] = {}
        self._changed = asyncio.Condition()

    async def listen(self) -> None:
        """Read until the agent is closed."""
        async for event in self.agent.events():
            await self._take(event)
            async with self._changed:
                self._changed.notify_all()

    async def _take(self, event: Event) -> None:
        match event:
            case Connected(conn, pq):
                self.peer, self.pq = conn, pq
            case Received(_, message):
                self.read.append(message.body.decode())
                self.broken += not isinstance(message.integrity, MsgOk)
                self.pq = message.pq
                await message.ack()
            case Sent(_, msg_id, _):
                self.accepted.add(msg_id)
                posted = self._posted.pop(msg_id, None)
                if posted is not None:
                    self.latencies_s.append(time.monotonic() - posted)
            case Switched() | RatchetSync():
                self.events.append(event)
            case _:
                pass

    async def until(self, true: Callable[[Person], bool]) -> None:
        """Wait for something to be true of this person."""
        async with self._changed:
            await self._changed.wait_for(lambda: true(self))

    async def write(self, text: str) -> int:
        assert self.peer is not None
        started = time.monotonic()
        number = await self.peer.send(text.encode())
        self._posted[number] = started
        return number


@contextlib.asynccontextmanager
async def person(
    name: str,
    store: Path,
    servers: list[str],
    *,
    ntf_servers: list[str] | None = None,
    subscribe: bool = True,
) -> AsyncIterator[Person]:
    """Somebody whose agent is open while the block lasts."""
    config = AgentConfig(key_pairs=2, subscribe=subscribe)
    async with Agent.open(store, servers, config=config, ntf_servers=ntf_servers or ()) as agent:
        somebody = Person(name, agent)
        listening = asyncio.create_task(somebody.listen())
        try:
            yield somebody
        finally:
            await agent.close()
            await listening


async def introduce(inviting: Person, joining: Person) -> None:
    """One hands a link to the other; both can write to each other when this returns."""
    inviting.peer = joining.peer = None
    link = await inviting.agent.invite()
    await joining.agent.join(str(link))
    for somebody in (inviting, joining):
        await somebody.until(lambda one: one.peer is not None)
