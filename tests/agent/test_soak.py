"""Two agents over two routers, four processes killed at random while messages flow and queues rotate.

The long form is chosen with BLINDPOST_AGENT_MESSAGES (each way), BLINDPOST_AGENT_KILLS and
BLINDPOST_AGENT_SEED.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

import pytest

from tests.support.agent.lives import AgentInProcess, KilledError, agent_in_process
from tests.support.serving.processes import RouterInProcess, router_in_process, until

MESSAGES = int(os.environ.get("BLINDPOST_AGENT_MESSAGES", "42"))
KILLS = int(os.environ.get("BLINDPOST_AGENT_KILLS", "5"))
SEED = os.environ.get("BLINDPOST_AGENT_SEED", "soak")
ROTATIONS = 3
ROUNDS = max(6, MESSAGES // 60)
"""In one round no queue gets more messages than it has room for: a full one makes its sender wait long."""
SETTLE_S = 600.0


@dataclass
class Soak:
    """Four processes, and a killer that picks among them at random."""

    routers: list[RouterInProcess]
    alice: AgentInProcess
    bob: AgentInProcess
    chance: random.Random
    kills: int = 0
    next_victims: list[RouterInProcess | AgentInProcess] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    """Labels of Alice that nobody can read, since Bob went back to an older store."""

    @property
    def agents(self) -> tuple[AgentInProcess, AgentInProcess]:
        return self.alice, self.bob

    def other(self, agent: AgentInProcess) -> AgentInProcess:
        return self.bob if agent is self.alice else self.alice

    async def kill_one(self) -> None:
        """Kill one of the four and restart it, in random order, but each in its turn."""
        await asyncio.sleep(self.chance.random() * 0.5)
        if not self.next_victims:
            self.next_victims = [*self.routers, *self.agents]
            self.chance.shuffle(self.next_victims)
        victim = self.next_victims.pop()
        if isinstance(victim, RouterInProcess):
            await victim.end()
        else:
            await victim.kill()
        self.kills += 1
        await victim.start()

    async def send(self, agent: AgentInProcess, total: int) -> None:
        """Send until the agent has accepted this many messages; a kill may cut off the last one."""
        while (left := total - len(agent.all("sent"))) > 0:
            try:
                await agent.ask("send", count=left)
            except KilledError:
                await self.alive(agent)

    async def do(self, agent: AgentInProcess, what: str) -> None:
        """Make a request that may be cut off, and repeat it then."""
        while True:
            try:
                answer = await agent.ask(what)
            except KilledError:
                await self.alive(agent)
                continue
            assert "error" not in answer or "under way" in answer["error"], answer
            return

    async def alive(self, agent: AgentInProcess) -> None:
        async def lives() -> bool:
            return bool(agent.pid)

        await until(lives)

    async def all_received(self) -> None:
        """Wait until everything accepted has arrived."""

        async def came() -> bool:
            return all(
                set(map(str, sender.all("sent"))) - set(map(str, self.lost_of(sender)))
                <= set(self.other(sender).all("got"))
                for sender in self.agents
            )

        await until(came, SETTLE_S)

    def lost_of(self, sender: AgentInProcess) -> set[int]:
        return self.lost if sender is self.alice else set()

    async def settled(self) -> None:
        """Wait until nothing is under way: no rotation, no synchronisation, nothing to deliver."""

        async def quiet() -> bool:
            for agent in self.agents:
                stats = await agent.ask("stats")
                if stats["switching"] or stats["waiting"] or stats["sync"] != "ok":
                    return False
                if len(stats["rcv"]) != 1 or len(stats["snd"]) != 1:
                    return False
            return True

        await until(quiet, SETTLE_S)

    async def round(self, total: int, kills: int, rotating: AgentInProcess | None = None) -> None:
        """Messages both ways up to a total, with a rotation and kills in between."""
        sending = [asyncio.create_task(self.send(agent, total)) for agent in self.agents]
        if rotating is not None:
            sending.append(asyncio.create_task(self.do_after(sending, rotating)))
        for _ in range(kills):
            await self.kill_one()
        await asyncio.gather(*sending)
        await self.all_received()
        await self.settled()

    async def do_after(self, sending: list[asyncio.Task[None]], agent: AgentInProcess) -> None:
        """Make requests to one agent one after the other."""
        await sending[self.agents.index(agent)]
        await self.do(agent, "switch")


@asynccontextmanager
async def soak(folder: Path, seed: str) -> AsyncIterator[Soak]:
    async with AsyncExitStack() as stack:
        routers = [
            await stack.enter_async_context(router_in_process(folder / f"router{number}"))
            for number in (0, 1)
        ]
        for router in routers:
            await router.start()
        servers = [router.server for router in routers]
        alice, bob = [
            await stack.enter_async_context(agent_in_process(folder / name, servers))
            for name in ("alice", "bob")
        ]
        await alice.start()
        await bob.start()
        link = (await alice.ask("invite"))["link"]
        await bob.ask("join", link=link)
        await alice.told("connected")
        await bob.told("connected")
        yield Soak(routers, alice, bob, random.Random(seed))


@pytest.mark.timeout(3600)
async def test_nothing_is_lost(tmp_path: Path) -> None:
    async with soak(tmp_path, SEED) as world:
        each, kills = MESSAGES // ROUNDS, ceil(KILLS / (ROUNDS - 1))
        bob = world.bob
        for number in range(ROUNDS - 2):
            rotating = world.agents[number % 2] if number < ROTATIONS else None
            await world.round((number + 1) * each, kills, rotating)
        await bob.ask("backup", to=str(tmp_path / "backup.db"))
        for number in range(1, 5):
            await world.round((ROUNDS - 2) * each + number * each // 4, 0)
        await restore(world, tmp_path / "backup.db")
        await world.round(MESSAGES + len(world.lost), kills)
        for agent in world.agents:
            judge(world, agent)
        assert world.kills >= KILLS
        had = [(await agent.ask("stats"))["queues"] for agent in world.agents]
        assert sum(had) >= 2 + ROTATIONS, "each had one queue before, and one more by every rotation"


async def restore(world: Soak, backup: Path) -> None:
    """Bob restores an older store: he cannot read what Alice sends, and synchronises."""
    alice, bob = world.agents
    await bob.kill()
    bob.restore(backup)
    await bob.start()
    world.lost.add(len(alice.all("tried")))
    await alice.ask("send", count=1)
    await bob.told("sync required")
    await world.do(bob, "synchronize")
    await world.kill_one()
    await world.settled()


def judge(world: Soak, agent: AgentInProcess) -> None:
    """Each message arrived once, in order, and the chain confirms it; nothing else was reported."""
    sender = world.other(agent)
    got = list(map(int, agent.all("got")))
    tried, sent = sender.all("tried"), set(sender.all("sent")) - world.lost_of(sender)
    assert got == sorted(set(got)), "once and in order"
    assert sent <= set(got) <= set(tried)
    assert len(sent) >= MESSAGES
    assert set(agent.all("outcome")) == {"MsgOk"}
    reported = [event for event in agent.all("event") if event.split()[0] in ("ERR", "MERR")]
    assert not reported, reported
