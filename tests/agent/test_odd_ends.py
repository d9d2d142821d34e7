"""Agents that are closed in the middle of something leave nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from blindpost.agent import Agent, InactiveError, Received
from blindpost.testing import World, virtual


@virtual
async def test_nothing_begins_while_an_agent_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is stored then is sent by the next start. Nobody would end what sends it now."""
    alice, bob = await world.pair()
    conn, ground = alice.conn, alice.agent._ground
    ending, ended, end_pool = asyncio.Event(), asyncio.Event(), ground.pool.close

    async def slow() -> None:
        ending.set()
        await ended.wait()
        await end_pool()

    monkeypatch.setattr(ground.pool, "close", slow)
    closing = asyncio.create_task(alice.agent.close())
    await ending.wait()
    await conn.send(b"late")
    await asyncio.sleep(1)
    ended.set()
    await closing
    assert not ground._tasks
    await world.agent("alice")
    assert (await bob.expect(Received)).msg.body == b"late"


@virtual
async def test_nothing_begins_with_the_last_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob = await world.pair()
    conn, ground = alice.conn, alice.agent._ground
    end_pool, sending = ground.pool.close, []

    async def close() -> None:
        await end_pool()
        sending.append(asyncio.create_task(conn.send(b"late")))
        await asyncio.sleep(0)
        assert ground.store._group is not None

    monkeypatch.setattr(ground.pool, "close", close)
    await alice.agent.close()
    assert not ground._tasks
    await asyncio.gather(*sending)
    await world.agent("alice")
    assert (await bob.expect(Received)).msg.body == b"late"


@virtual
async def test_who_asks_a_closed_agent_is_told_that_nothing_comes(world: World) -> None:
    """Also one that was handling an event when the agent was closed, or while it is being closed."""
    alice, _ = await world.pair()
    ground, asked = alice.agent._ground, []
    end_pool = ground.pool.close

    async def close() -> None:
        asked.append(await alice.agent.next_event())
        await end_pool()

    ground.pool.close = close  # type: ignore[method-assign]
    await alice.agent.close()
    assert [*asked, await alice.agent.next_event()] == [None, None]
    with pytest.raises(InactiveError, match="closed"):
        await Agent.open(world.folder / "carol.db").next_event()
