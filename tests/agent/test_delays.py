"""A router that takes no messages for now: the log says so once, and once more when it is over."""

from __future__ import annotations

import asyncio
import logging

import pytest

from blindpost.agent import Received
from blindpost.testing import World, virtual


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Log lines about deliveries; other work may wait for the router too."""
    return [record.getMessage() for record in caplog.records if record.name.endswith(".delivery")]


@virtual
async def test_delivery_delay_is_logged_when_it_begins_and_when_it_ends(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    alice, bob = await world.pair()
    with caplog.at_level(logging.WARNING, "blindpost.agent.messages.delivery"):
        async with world.router.down():
            for number in range(3):
                await alice.conn.send(b"%d" % number)
            await asyncio.sleep(1800)
            (waits,) = told(caplog)
            assert waits.startswith("messages for router1 wait, and are tried again: BROKER NETWORK")
            await asyncio.sleep(7200)
            assert 1 < len(told(caplog)) <= 4, "about once an hour"
            caplog.clear()
        for _ in range(3):
            await (await bob.expect(Received)).msg.ack()
        await alice.conn.send(b"again")
        assert (await bob.expect(Received)).msg.body == b"again"
        assert told(caplog) == ["messages for router1 are taken again"]
