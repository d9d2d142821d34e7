"""Messages that come one after the other, and who waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blindpost.agent import Connection, MsgOk, Received
from blindpost.store.contract import Durability
from blindpost.testing import Network
from tests.support.agent.agents import Party, connect, quick_config, two_parties
from tests.support.client.scripted_router import settle


@asynccontextmanager
async def waiting(
    folder: Path, count: int, network: Network | None = None, durability: Durability = Durability.OS
) -> AsyncIterator[tuple[Party, Connection]]:
    """Somebody for whom so many messages wait, one of them shown; and who sent them."""
    config = quick_config(durability=durability)
    async with two_parties(folder, config, config, network=network) as (alice, bob):
        ours, _ = await connect(alice, bob)
        await settle()
        for number in range(count):
            await ours.send(b"%d" % number)
        await alice.agent.flush()
        await asyncio.sleep(1)
        yield bob, ours


def content(event: Received) -> tuple[bytes, object]:
    return event.msg.body, event.msg.integrity


def right(*numbers: int) -> list[tuple[bytes, object]]:
    return [(b"%d" % number, MsgOk()) for number in numbers]


async def received(of: Party) -> Received:
    """The next message, whatever else was told before it."""
    while True:
        event = await of.next()
        if isinstance(event, Received):
            return event


async def nothing_for(party: Party) -> None:
    """No message comes for a while."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(received(party), 60)
