"""Waiting events are bounded: a slow consumer slows the router down."""

from __future__ import annotations

import asyncio

import pytest

from blindpost.client.calls import Late, Push
from blindpost.client.errors import ResponseTimeoutError
from blindpost.client.options import Bounds, Timing
from blindpost.testing.network import Link, MemoryNetwork
from blindpost.transport.errors import ClosedHereError
from blindpost.wire.smp.commands import ACK, SUB
from blindpost.wire.smp.responses import MSG, OK, SOK
from tests.support.client.scripted_router import (
    BLOCK_ON_THE_WIRE,
    ScriptedRouter,
    queue_id,
    queue_key,
    settle,
    smp_pair,
    virtual,
)

KEY = queue_key(0)
WINDOW_BYTES = 64 * 1024


def message(number: int) -> MSG:
    return MSG(queue_id(number), bytes(16122))


def push_messages(router: ScriptedRouter, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        router.push(queue_id(number), message(number))


def narrow() -> MemoryNetwork:
    network = MemoryNetwork()
    network.to_caller = Link(window=WINDOW_BYTES)
    return network


@virtual
async def test_a_slow_consumer_stops_the_reading() -> None:
    network = narrow()
    async with smp_pair(network=network, bounds=Bounds(events=8)) as (client, router):
        called = network.connections[0][1]
        before = called.bytes_delivered
        push_messages(router, 200)
        await asyncio.sleep(3600)
        assert client.events_waiting == 8
        assert called.bytes_delivered - before <= 8 * BLOCK_ON_THE_WIRE + WINDOW_BYTES + 65536
        assert router.session.outbox_size > 150 * BLOCK_ON_THE_WIRE
        for number in range(200):
            assert await client.next_event() == Push(queue_id(number), message(number))
            assert client.events_waiting <= 8


@virtual
async def test_a_consumer_may_await_a_response_that_comes_behind_more_events() -> None:
    bounds = Bounds(events=4, events_while_calling=64)
    async with smp_pair(network=narrow(), bounds=bounds) as (client, router):
        push_messages(router, 10)
        await settle()
        assert client.events_waiting == 4
        router.answer = lambda request: OK()
        assert await client.next_event() == Push(queue_id(0), message(0))
        assert await client.send(ACK(queue_id(0)), queue_id(0), KEY) == OK()
        assert client.events_waiting == 9
        push_messages(router, 10, start=10)
        await settle()
        assert client.events_waiting == 9
        for number in range(1, 20):
            assert await client.next_event() == Push(queue_id(number), message(number))


@virtual
async def test_events_are_bounded_while_calling_and_the_response_comes_late() -> None:
    bounds = Bounds(events=4, events_while_calling=16)
    async with smp_pair(network=narrow(), bounds=bounds, timing=Timing(response_s=5.0)) as (client, router):
        push_messages(router, 50)
        router.answer = lambda request: SOK(None)
        with pytest.raises(ResponseTimeoutError):
            await client.send(SUB(), queue_id(1), KEY)
        assert client.events_waiting == 16
        for number in range(50):
            assert await client.next_event() == Push(queue_id(number), message(number))
        assert await client.next_event() == Late(SUB(), queue_id(1), SOK(None))


@virtual
async def test_a_consumer_that_stalls_for_hours_does_not_cost_the_connection() -> None:
    async with smp_pair(network=narrow(), bounds=Bounds(events=4)) as (client, router):
        router.answer = lambda request: SOK(None)
        await client.send(SUB(), queue_id(1), KEY)
        push_messages(router, 20)
        await asyncio.sleep(20_000)
        assert client.closed_because is None
        assert b"PING" not in router.tags
        for number in range(20):
            assert await client.next_event() == Push(queue_id(number), message(number))


@virtual
async def test_timeouts_caused_by_our_stalled_reading_do_not_count_as_silence() -> None:
    bounds = Bounds(events=4, events_while_calling=4)
    async with smp_pair(network=narrow(), bounds=bounds) as (client, router):
        router.answer = lambda request: SOK(None)
        push_messages(router, 20)
        await settle()
        for _ in range(4):
            with pytest.raises(ResponseTimeoutError):
                await client.send(SUB(), queue_id(1), KEY, timeout_s=500)
        assert client.closed_because is None
        for number in range(20):
            assert await client.next_event() == Push(queue_id(number), message(number))
        for _ in range(4):
            assert await client.next_event() == Late(SUB(), queue_id(1), SOK(None))


@virtual
async def test_events_that_came_before_the_end_can_be_taken_after_it() -> None:
    async with smp_pair() as (client, router):
        push_messages(router, 2)
        await settle()
        await client.close()
        assert await client.next_event() == Push(queue_id(0), message(0))
        assert await client.next_event() == Push(queue_id(1), message(1))
        for _ in range(2):
            with pytest.raises(ClosedHereError):
                await client.next_event()


@virtual
async def test_several_consumers_share_the_events_and_a_cancelled_one_takes_none() -> None:
    async with smp_pair() as (client, router):
        takers = [asyncio.create_task(client.next_event()) for _ in range(4)]
        await settle()
        takers[0].cancel()
        push_messages(router, 2)
        assert await takers[1] == Push(queue_id(0), message(0))
        assert await takers[2] == Push(queue_id(1), message(1))
        await client.close()
        with pytest.raises(ClosedHereError):
            await takers[3]


@virtual
async def test_a_consumer_cancelled_as_an_event_arrives_passes_it_on() -> None:
    async with smp_pair() as (client, _):
        first = asyncio.create_task(client.next_event())
        second = asyncio.create_task(client.next_event())
        await settle()
        event = Push(queue_id(7), OK())
        client._events.put(event)
        first.cancel()
        assert await second == event
