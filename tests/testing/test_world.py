"""The test world for authors: an in-memory router, agents, people, faults, and a clock that jumps."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from blindpost.agent import Down, Received, Sent, Up
from blindpost.testing import World, virtual

pytest_plugins = ["pytester"]


@virtual
async def test_a_pair_of_connected_agents(world: World) -> None:
    alice, bob = await world.pair()
    await alice.conn.send(b"hello")
    received = await bob.expect(Received)
    assert received.msg.body == b"hello"
    await received.msg.ack()
    await alice.expect(Sent)
    assert received.conn == bob.conn


@virtual
async def test_faults(world: World) -> None:
    alice, bob = await world.pair()
    world.cut()
    await bob.expect(Down)
    await bob.expect(Up)
    async with world.router.down():
        await alice.conn.send(b"later")
        await asyncio.sleep(60)
        assert not [event for event in alice.seen if isinstance(event, Sent)]
    assert (await bob.expect(Received)).msg.body == b"later"
    await alice.expect(Sent)


@virtual
async def test_a_day_takes_no_time(world: World) -> None:
    alice, _ = await world.pair()
    begun, real = world.now(), time.monotonic()
    await asyncio.sleep(86_400)
    assert world.now() - begun == 86_400
    assert time.monotonic() - real < 60
    assert alice.agent.connections() == [alice.conn]


@virtual
async def test_a_second_router(world: World) -> None:
    second = await world.add_router()
    assert second.address != world.server
    alice = await world.agent("alice")
    async with world.router.down():
        link = await alice.agent.invite_later()
        await asyncio.sleep(1)
        assert link in alice.agent.connections()


def test_the_test_in_the_guide_runs_as_shown(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What docs/bots.md shows, in a separate folder: the plugin, the fixture, and no other plugin."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    guide = (Path(__file__).parents[2] / "docs" / "bots.md").read_text()
    chapter = guide.split("## Tests")[1].split("\n## ")[0]
    conftest, ada, test = [block.split("```")[0] for block in chapter.split("```python\n")[1:]]
    pytester.makeconftest(conftest)
    pytester.makepyfile(ada=ada, test_ada=test)
    result = pytester.runpytest_subprocess("-q", "-W", "error", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
