"""Everything that can happen to payloads of one recipient, in a service of any kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from blindpost.ds.client import DsClient
from blindpost.ds.model import LARGE_BYTES
from tests.support.serving.waiting import a_moment

Connect = Callable[[], Awaitable[DsClient]]
Waiting = Callable[[], Awaitable[bool]]


async def deliveries(connect: Connect, key: bytes, channel: bytes, is_waiting: Waiting) -> None:
    """Payloads fetched, leased and acknowledged, given back, taken away; calls that wait, in vain or not."""
    async with await connect() as one, await connect() as other:
        for number in range(3):
            await one.enqueue(key, b"payload %d" % number, channel)
        await one.enqueue(key, b"large" + bytes(LARGE_BYTES), channel)
        assert len(await one.fetch(key, channel)) == 4
        await one.enqueue(key, b"leased", channel)
        (leased,) = await one.lease(key, channel, lease_s=60.0)
        await one.ack(key, (leased.id,), channel)
        await one.ack(key, (leased.id,), channel)  # again: nothing happens
        assert await one.fetch_wait(key, channel, timeout_s=0.05) == ()
        waiting = asyncio.create_task(other.fetch_wait(key, channel, timeout_s=60.0))
        while not await is_waiting():
            await a_moment()
        await one.enqueue(key, b"awaited", channel)
        assert await waiting == (b"awaited",)
        await one.enqueue(key, b"given back", channel)
        third = await connect()
        assert len(await third.lease(key, channel, timeout_s=60.0, lease_s=60.0)) == 1
        await third.close()
        (again,) = await one.lease(key, channel, timeout_s=30.0, lease_s=0.001)
        await asyncio.sleep(0.01)
        (displaced,) = await other.lease(key, channel, timeout_s=30.0, lease_s=60.0)
        assert displaced.id == again.id
        await other.ack(key, (displaced.id,), channel)
        await one.enqueue(key, b"stays", channel)
