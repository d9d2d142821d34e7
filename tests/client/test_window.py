"""Back-pressure: how much may be in flight, and when timers start."""

from __future__ import annotations

import asyncio
import random

import pytest

from blindpost.client.calls import Call, Late
from blindpost.client.errors import ResponseTimeoutError
from blindpost.client.options import Bounds, Timing
from blindpost.testing.network import Link, MemoryNetwork
from blindpost.wire.smp.commands import SEND, SUB, Command
from blindpost.wire.smp.responses import OK, SOK
from tests.support.client.scripted_router import (
    BLOCK_ON_THE_WIRE,
    queue_id,
    queue_key,
    settle,
    smp_pair,
    virtual,
)

KEY = queue_key(0)
BODY = bytes(16_000)


def sends(count: int, start: int = 0) -> list[Call[Command]]:
    """Commands that fill a block each."""
    return [Call(SEND(True, BODY), queue_id(number)) for number in range(start, start + count)]


@pytest.mark.parametrize("window", [1, 4])
def test_no_more_blocks_are_in_flight_than_the_window_allows(window: int) -> None:
    @virtual
    async def run() -> None:
        async with smp_pair(bounds=Bounds(window_blocks=window)) as (client, router):
            waiting = asyncio.create_task(client.send_many(sends(10)))
            for answered in range(10):
                await settle()
                assert len(router.blocks) == min(10, answered + window)
                router.reply(router.requests[answered], OK())
            assert await waiting == [OK()] * 10

    run()


@virtual
async def test_a_block_leaves_the_window_with_its_last_response_only() -> None:
    async with smp_pair(bounds=Bounds(window_blocks=1)) as (client, router):
        subs = [Call(SUB(), queue_id(number), KEY) for number in range(3)]
        waiting = asyncio.create_task(client.send_many(subs))
        await router.until_requests(3)
        following = asyncio.create_task(client.send_many(sends(1)))
        for request in router.requests[:]:
            await settle()
            assert len(router.blocks) == 1
            router.reply(request, SOK(None))
        assert await waiting == [SOK(None)] * 3
        await router.until_requests(4)
        router.reply(router.requests[3], OK())
        assert await following == [OK()]


@virtual
async def test_timers_start_when_the_network_takes_a_block() -> None:
    network = MemoryNetwork()
    crawling = Link(rate=BLOCK_ON_THE_WIRE / 100, window=2048)
    async with smp_pair(lambda request: OK(), network=network, timing=Timing(response_s=30.0)) as (client, _):
        loop = asyncio.get_running_loop()
        caller, called = network.connections[0]
        caller.join(called, crawling, random.Random())
        start = loop.time()
        assert await client.send_many(sends(4)) == [OK()] * 4
        assert loop.time() - start > 390


@virtual
async def test_a_network_that_takes_nothing_starts_no_timer_and_holds_one_block() -> None:
    network = MemoryNetwork()
    async with smp_pair(network=network, timing=Timing(response_s=30.0)) as (client, router):
        caller, called = network.connections[0]
        caller.join(called, Link(window=0), random.Random())
        waiting = asyncio.create_task(client.send_many(sends(50)))
        await asyncio.sleep(1000)
        assert not waiting.done()
        assert caller.get_write_buffer_size() == BLOCK_ON_THE_WIRE
        caller.join(called, Link(), random.Random())
        caller.write(b"")
        written_at = asyncio.get_running_loop().time()
        results = await waiting
        assert [type(result) for result in results] == [ResponseTimeoutError] * 50
        assert asyncio.get_running_loop().time() - written_at == pytest.approx(30.0)
        assert len(router.blocks) == 50


@virtual
async def test_blocks_that_time_out_make_room() -> None:
    timing = Timing(response_s=10.0)
    async with smp_pair(bounds=Bounds(window_blocks=2), timing=timing) as (client, router):
        loop = asyncio.get_running_loop()
        start = loop.time()
        results = await client.send_many(sends(6))
        assert [type(result) for result in results] == [ResponseTimeoutError] * 6
        assert loop.time() - start == pytest.approx(30.0)
        assert len(router.blocks) == 6


@virtual
async def test_each_command_has_its_own_timer_even_in_a_shared_block() -> None:
    async with smp_pair(timing=Timing(response_s=30.0)) as (client, router):
        loop = asyncio.get_running_loop()
        ended: dict[int, float] = {}

        async def call(number: int, timeout_s: float | None) -> None:
            with pytest.raises(ResponseTimeoutError):
                await client.send(SUB(), queue_id(number), KEY, timeout_s=timeout_s)
            ended[number] = loop.time()

        start = loop.time()
        await asyncio.gather(call(1, 5.0), call(2, None), call(3, 60.0), call(4, 5.0))
        assert len(router.blocks) == 1
        assert {number: round(at - start, 3) for number, at in ended.items()} == {1: 5, 2: 30, 3: 60, 4: 5}


@virtual
async def test_a_response_in_time_stops_the_timer_of_its_command_only() -> None:
    async with smp_pair(timing=Timing(response_s=30.0)) as (client, router):
        waiting = asyncio.create_task(
            client.send_many([Call(SUB(), queue_id(1), KEY), Call(SUB(), queue_id(2), KEY)])
        )
        asked = await router.until_requests(2)
        await asyncio.sleep(29)
        router.reply(asked[1], SOK(None))
        results = await waiting
        assert isinstance(results[0], ResponseTimeoutError)
        assert results[1] == SOK(None)


@virtual
async def test_a_command_cancelled_before_sending_is_never_sent() -> None:
    async with smp_pair(bounds=Bounds(window_blocks=1)) as (client, router):
        first = asyncio.create_task(client.send_many(sends(1)))
        await router.until_requests(1)
        cancelled = asyncio.create_task(client.send_many(sends(3, start=1)))
        last = asyncio.create_task(client.send_many(sends(1, start=9)))
        await settle()
        cancelled.cancel()
        await settle()
        assert cancelled.cancelled()
        assert client.commands_waiting == 1
        router.reply(router.requests[0], OK())
        assert await first == [OK()]
        await router.until_requests(2)
        assert router.requests[1].entity_id == queue_id(9)
        router.reply(router.requests[1], OK())
        assert await last == [OK()]


@virtual
async def test_a_command_cancelled_in_flight_keeps_its_place_until_answered() -> None:
    async with smp_pair(bounds=Bounds(window_blocks=1)) as (client, router):
        cancelled = asyncio.create_task(client.send_many(sends(2)))
        await router.until_requests(1)
        cancelled.cancel()
        following = asyncio.create_task(client.send_many(sends(1, start=9)))
        await settle()
        assert len(router.requests) == 1
        router.reply(router.requests[0], OK())
        await router.until_requests(2)
        assert router.requests[1].entity_id == queue_id(9)
        router.reply(router.requests[1], OK())
        assert await following == [OK()]
        assert await client.next_event() == Late(SEND(True, BODY), queue_id(0), OK())
