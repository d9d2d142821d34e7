"""Two friends who write more than their queues hold, and read late."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from blindpost.agent import Agent, Connected, JoinDelayed, Joined, QueueHasRoom, SendDelayed
from blindpost.agent.messages.acking import ACK_TAG
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.work.commands import CommandHandler
from blindpost.router.config import RouterRules
from blindpost.testing import World
from blindpost.testing.clock import run_virtual
from tests.support.agent.friends import Friend, friends


@pytest.mark.parametrize("late_s", [0.0, 0.3, 5.0])
def test_both_queues_are_full(tmp_path: Path, late_s: float) -> None:
    """The notice that there is room itself queues behind messages, yet nobody waits for long; also if routers
    learn of it a little later than the agents."""

    async def main() -> None:
        async with friends(tmp_path, rules=RouterRules(quota=3)) as pair:
            people = (pair.alice, pair.bob)
            sent = [b"%d" % number for number in range(8)]
            for friend in people:
                friend.acknowledges = False
            for friend in people:
                for body in sent:
                    await friend.conn.send(body)
            await pair.quiet(1)
            for friend in people:
                assert friend.of(SendDelayed)
                slow_acknowledgements(friend, late_s)
            for friend in people:
                friend.acknowledges = True
                await friend.messages[0].ack()
            async with asyncio.timeout(120):
                for friend in people:
                    await friend.got(*sent)
            for friend in people:
                assert friend.bodies == sent
                assert set(friend.outcomes) == {"MsgOk"}

    run_virtual(main())


def test_an_address_is_full(tmp_path: Path) -> None:
    """Who asks next waits until its owner is back and has read what others asked."""

    async def main() -> None:
        async with World(tmp_path, rules=RouterRules(quota=2)) as world:
            owner = partial(Agent.open, tmp_path / "owner.db", [world.server], config=world.config())
            async with owner() as agent:
                link = str(await agent.address(auto_accept=True))
            guests = [await world.agent(name) for name in ("ann", "ben", "cat", "dan")]
            for guest in guests:
                guest.conn = await guest.agent.join(link)
                await asyncio.sleep(1)
            for guest in guests[:2]:
                await guest.expect(Joined)
            for guest in guests[2:]:
                delayed = await guest.expect(JoinDelayed)
                assert (delayed.error.word, delayed.error.retried) == ("SMP QUOTA", True)
            await asyncio.sleep(24 * 3600)
            async with owner() as agent, asyncio.timeout(300):
                listening = asyncio.create_task(taken(agent))
                for guest in guests:
                    assert (await guest.expect(Connected)).conn == guest.conn
                listening.cancel()

    run_virtual(main())


async def taken(agent: Agent) -> None:
    """All that it tells."""
    async for _ in agent.events():
        pass


def test_room_announced_too_early(tmp_path: Path) -> None:
    """The peer announces it before the router knows, and only once: sending resumes within seconds."""

    async def main() -> None:
        async with friends(tmp_path, rules=RouterRules(quota=3)) as pair:
            alice, bob = pair.alice, pair.bob
            slow_acknowledgements(bob, 3.0)
            bob.acknowledges = False
            sent = [b"%d" % number for number in range(5)]
            for body in sent:
                await alice.conn.send(body)
            await pair.quiet(1)
            assert alice.of(SendDelayed)
            bob.acknowledges = True
            await bob.messages[0].ack()
            async with asyncio.timeout(60):
                await bob.got(*sent)
            assert alice.of(QueueHasRoom)
            refused = [event.error.word for event in alice.of(SendDelayed)]
            assert refused == ["SMP QUOTA"] * len(refused)
            assert all(event.error.retried for event in alice.of(SendDelayed))
            assert len(refused) > 1, "the router was asked before it knew"
            assert set(bob.outcomes) == {"MsgOk"}

    run_virtual(main())


@pytest.mark.parametrize("late_s", [0.0, 3.0])
def test_a_burst_each_way_and_slow_readers(tmp_path: Path, late_s: float) -> None:
    async def main() -> None:
        async with friends(tmp_path, rules=RouterRules(quota=16)) as pair:
            people = (pair.alice, pair.bob)
            sent = [b"%d" % number for number in range(60)]
            for friend in people:
                slow_acknowledgements(friend, late_s / 10)
            for body in sent:
                for friend in people:
                    await friend.conn.send(body)
            async with asyncio.timeout(120):
                for friend in people:
                    await friend.got(*sent)
            for friend in people:
                assert friend.bodies == sent
                assert set(friend.outcomes) == {"MsgOk"}

    run_virtual(main())


def slow_acknowledgements(friend: Friend, seconds: float) -> None:
    """Delay this agent's acknowledgements to its router."""
    handlers = cast("dict[str, CommandHandler]", friend.rt.commands._handlers)
    real = handlers[ACK_TAG]

    async def late(command: StoredCommand) -> None:
        await asyncio.sleep(seconds)
        await real(command)

    handlers[ACK_TAG] = late
