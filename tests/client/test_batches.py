"""How commands share blocks: the fewest, in order, whoever sends them."""

from __future__ import annotations

import asyncio

import pytest

from blindpost.client.calls import Call
from blindpost.client.errors import CorrelationIdError, EncodingError, TooLargeError
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import ACK, NEW, SEND, SUB, Command
from blindpost.wire.smp.responses import OK, SOK, Response
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.smp.versions import body_size_max
from blindpost.wire.versions import VersionRange
from tests.support.client.scripted_router import (
    BLOCK_ON_THE_WIRE,
    queue_id,
    queue_key,
    settle,
    smp_pair,
    virtual,
)

KEY = queue_key(0)
HANDSHAKE_BLOCKS = 1


def done(request: Request) -> Response:
    return SOK(None) if isinstance(request.command, SUB) else OK()


def subs(count: int) -> list[Call[Command]]:
    return [Call(SUB(), queue_id(number), KEY) for number in range(count)]


def sends(count: int, size: int = 0) -> list[Call[Command]]:
    return [Call(SEND(True, bytes(size)), queue_id(number)) for number in range(count)]


@pytest.mark.claim("SUB-36")
@virtual
async def test_200_subs_take_two_blocks_and_their_replies_may_come_in_any_order() -> None:
    network = MemoryNetwork()
    async with smp_pair(network=network) as (client, router):
        caller = network.connections[0][0]
        before = caller.bytes_delivered
        waiting = asyncio.create_task(client.send_many(subs(200)))
        asked = await router.until_requests(200)
        assert [len(block) for block in router.blocks] == [135, 65]
        assert caller.bytes_delivered - before == 2 * BLOCK_ON_THE_WIRE
        assert [request.entity_id for request in asked] == [queue_id(number) for number in range(200)]
        for request in reversed(asked):
            assert not waiting.done()
            router.reply(request, SOK(request.entity_id))
            await settle()
        assert await waiting == [SOK(queue_id(number)) for number in range(200)]


@pytest.mark.parametrize(("version", "capacity"), [(6, 106), (7, 136), (15, 136), (16, 135), (20, 135)])
def test_a_block_holds_as_many_subs_as_fit(version: int, capacity: int) -> None:
    @virtual
    async def run() -> None:
        async with smp_pair(done, versions=VersionRange(6, version)) as (client, router):
            await client.send_many(subs(capacity))
            await client.send_many(subs(capacity + 1))
            assert [len(block) for block in router.blocks] == [capacity, capacity, 1]

    run()


@virtual
async def test_a_block_holds_at_most_255_commands() -> None:
    async with smp_pair(done) as (client, router):
        await client.send_many(sends(256))
        assert [len(block) for block in router.blocks] == [255, 1]


@virtual
async def test_a_block_is_filled_to_its_last_byte() -> None:
    limit, around = 16365, len(b"\0\x18\x18") + 48 + len(b"SEND T ") + 2
    async with smp_pair(done) as (client, router):
        first, second = 8000, limit - 2 * around - 8000
        for size in (second, second + 1):
            await client.send_many([*sends(1, first), *sends(1, size)])
        assert [len(block) for block in router.blocks] == [2, 1, 1]
        assert router.payload_sizes[0] == limit + 1
        alone = await client.send_many([*sends(1, limit - around), *sends(1, limit - around + 1)])
        assert [type(result) for result in alone] == [OK, TooLargeError]
        assert router.payload_sizes[3:] == [limit + 1]


@virtual
async def test_commands_of_different_callers_share_a_block_in_the_order_they_came() -> None:
    async with smp_pair(done) as (client, router):
        results = await asyncio.gather(
            client.send(SUB(), queue_id(1), KEY),
            client.send_many([Call(ACK(b"2"), queue_id(2), KEY), Call(ACK(b"3"), queue_id(3), KEY)]),
            client.send(SEND(False, b"4"), queue_id(4)),
        )
        assert list(results) == [SOK(None), [OK(), OK()], OK()]
        (block,) = router.blocks
        assert [request.entity_id for request in block] == [queue_id(number) for number in range(1, 5)]


@virtual
async def test_a_command_that_cannot_be_sent_fails_alone_by_name() -> None:
    async with smp_pair(done) as (client, router):
        ids_too_long = Call(SUB(), bytes(256), KEY)
        results = await client.send_many([*sends(1, 20_000), *subs(2), ids_too_long])
        assert [type(result) for result in results] == [TooLargeError, SOK, SOK, EncodingError]
        assert [len(block) for block in router.blocks] == [2]
        assert await client.send_many(sends(1, 20_000)) != []
        assert len(router.blocks) == 1


@virtual
async def test_nothing_to_send_sends_nothing() -> None:
    async with smp_pair(done) as (client, router):
        assert await client.send_many([]) == []
        assert router.blocks == []


@pytest.mark.parametrize("version", [6, 7, 8, 10, 11, 16, 20])
@pytest.mark.parametrize("algorithm", [Algorithm.ED25519, Algorithm.ED448])
def test_the_largest_message_fits(version: int, algorithm: Algorithm) -> None:
    @virtual
    async def run() -> None:
        async with smp_pair(done, versions=VersionRange(6, version)) as (client, router):
            body = bytes(body_size_max(version))
            assert await client.send(SEND(True, body), queue_id(1), queue_key(1, algorithm)) == OK()
            (request,) = router.requests
            assert isinstance(request.command, SEND)
            assert request.command.body == body

    run()


@virtual
async def test_correlation_ids_are_fresh_unless_given_and_given_ones_must_be_free() -> None:
    async with smp_pair(done) as (client, router):
        new = NEW(KEY.public, queue_key(1, Algorithm.X25519).public)
        await client.send_many([Call(new, b"", KEY, corr_id=b"a chosen id"), *subs(50)])
        given, *drawn = [request.corr_id for request in router.requests]
        assert given == b"a chosen id"
        assert {len(corr_id) for corr_id in drawn} == {24}
        assert len(set(drawn)) == 50
        twins = [Call(ACK(b""), queue_id(number), KEY, corr_id=b"twin") for number in range(2)]
        results = await client.send_many(twins)
        assert [type(result) for result in results] == [OK, CorrelationIdError]
        assert [type(result) for result in await client.send_many(twins)] == [OK, CorrelationIdError]


@virtual
async def test_a_correlation_id_in_flight_or_timed_out_cannot_be_given_again() -> None:
    async with smp_pair() as (client, router):
        first = asyncio.create_task(client.send(ACK(b""), queue_id(1), KEY, corr_id=b"busy", timeout_s=5))
        await router.until_requests(1)
        with pytest.raises(CorrelationIdError):
            await client.send(ACK(b""), queue_id(2), KEY, corr_id=b"busy")
        await asyncio.wait([first])
        assert first.exception() is not None
        with pytest.raises(CorrelationIdError):
            await client.send(ACK(b""), queue_id(2), KEY, corr_id=b"busy")
        assert len(router.requests) == 1
