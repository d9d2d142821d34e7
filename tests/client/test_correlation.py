"""Which response goes to whom: callers, events, late responses, and unexpected ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blindpost.client.calls import Call, Garbled, Late, Push, Unexpected
from blindpost.client.errors import (
    CredentialsError,
    GarbledResponseError,
    RefusedError,
    ResponseTimeoutError,
    UnexpectedResponseError,
)
from blindpost.client.inflight import Awaited
from blindpost.client.options import Bounds, Timing
from blindpost.crypto.block_chain import router_chains
from blindpost.transport.errors import TransportError
from blindpost.wire.primitives import Writer
from blindpost.wire.smp.commands import ACK, DEL, GET, OFF, SUB, Command
from blindpost.wire.smp.errors import BLOCKED, NO_ENTITY, SYNTAX, UNKNOWN_COMMAND, BlockingReason, Code
from blindpost.wire.smp.responses import (
    ALLS,
    DELD,
    END,
    ENDS,
    ERR,
    MSG,
    NMSG,
    OK,
    SOK,
    Response,
)
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.transmission import start_response
from tests.support.client.scripted_router import (
    queue_id,
    queue_key,
    settle,
    smp_pair,
    virtual,
)

KEY = queue_key(0)
MESSAGE = MSG(bytes(24), b"m" * 16122)


def calls(count: int) -> list[Call[SUB]]:
    return [Call(SUB(), queue_id(number), KEY) for number in range(count)]


@pytest.mark.claim("SUB-38")
@virtual
async def test_responses_in_reverse_order_go_each_to_its_own_caller() -> None:
    async with smp_pair() as (client, router):
        first = asyncio.create_task(client.send(GET(), queue_id(1), KEY))
        second = asyncio.create_task(client.send(GET(), queue_id(1), KEY))
        asked_first, asked_second = await router.until_requests(2)
        router.reply(asked_second, MSG(b"second", b""))
        await settle()
        assert second.done()
        assert not first.done()
        router.reply(asked_first, MSG(b"first", b""))
        assert [await first, await second] == [MSG(b"first", b""), MSG(b"second", b"")]


@pytest.mark.claim("SUB-39")
@virtual
async def test_pushes_are_events_and_never_replies() -> None:
    pushes: list[tuple[bytes, Response]] = [
        (queue_id(1), MESSAGE),
        (queue_id(1), END()),
        (queue_id(1), DELD()),
        (queue_id(9), ENDS(3, bytes(16))),
        (b"", ALLS()),
        (queue_id(1), NMSG(bytes(24), bytes(144))),
        (queue_id(1), ERR(BLOCKED(BlockingReason.SPAM))),
        (queue_id(1), OK()),
        (queue_id(1), SOK(None)),
    ]
    async with smp_pair() as (client, router):
        for entity_id, pushed in pushes:
            waiting = asyncio.create_task(client.send(ACK(bytes(24)), queue_id(1), KEY))
            asked = (await router.until_requests(len(router.requests) + 1))[-1]
            router.push(entity_id, pushed)
            event = await client.next_event()
            assert event == Push(entity_id, pushed)
            assert not waiting.done()
            router.say((b"", entity_id, pushed), (asked.corr_id, queue_id(1), OK()), (b"", b"", ALLS()))
            assert await waiting == OK()
            assert await client.next_event() == Push(entity_id, pushed)
            assert await client.next_event() == Push(b"", ALLS())


@pytest.mark.claim("SUB-40")
@virtual
async def test_a_late_reply_to_an_ack_still_brings_its_message() -> None:
    async with smp_pair(timing=Timing(response_s=10.0)) as (client, router):
        with pytest.raises(ResponseTimeoutError):
            await client.send(ACK(b"acknowledged"), queue_id(1), KEY)
        (asked,) = router.requests
        router.reply(asked, MESSAGE)
        assert await client.next_event() == Late(ACK(b"acknowledged"), queue_id(1), MESSAGE)
        router.reply(asked, MESSAGE)
        assert await client.next_event() == Unexpected(queue_id(1), MESSAGE)


@pytest.mark.claim("SUB-40")
@virtual
async def test_late_replies_of_another_entity_and_unknown_ones_are_unexpected() -> None:
    async with smp_pair(timing=Timing(response_s=10.0)) as (client, router):
        with pytest.raises(ResponseTimeoutError):
            await client.send(ACK(bytes(24)), queue_id(1), KEY)
        (asked,) = router.requests
        router.say((asked.corr_id, queue_id(2), MESSAGE))
        assert await client.next_event() == Unexpected(queue_id(2), MESSAGE)
        router.say((b"never sent" + bytes(14), queue_id(1), OK()))
        assert await client.next_event() == Unexpected(queue_id(1), OK())


@virtual
async def test_only_the_latest_timed_out_commands_are_remembered() -> None:
    bounds, timing = Bounds(late=3), Timing(response_s=10.0)
    async with smp_pair(bounds=bounds, timing=timing) as (client, router):
        results = await client.send_many(calls(5))
        assert [type(result) for result in results] == [ResponseTimeoutError] * 5
        for asked in router.requests:
            router.reply(asked, SOK(None))
        events = [await client.next_event() for _ in range(5)]
        assert [type(event) for event in events] == [Unexpected, Unexpected, Late, Late, Late]


@virtual
async def test_a_reply_about_another_entity_fails_only_its_own_command() -> None:
    def answer(request: Request) -> Response | None:
        return None if request.entity_id == queue_id(1) else SOK(None)

    async with smp_pair(answer) as (client, router):
        waiting = asyncio.create_task(client.send_many(calls(3)))
        asked = (await router.until_requests(3))[1]
        router.say((asked.corr_id, queue_id(2), OK()))
        results = await waiting
        assert results[0] == results[2] == SOK(None)
        assert isinstance(results[1], UnexpectedResponseError)
        assert results[1].response == OK()


@virtual
async def test_each_error_is_named_and_fails_only_its_own_command() -> None:
    refusals = {queue_id(0): Code.AUTH, queue_id(2): Code.QUOTA}

    def answer(request: Request) -> Response:
        error = refusals.get(request.entity_id)
        return SOK(None) if error is None else ERR(error)

    async with smp_pair(answer) as (client, _):
        results = await client.send_many(calls(4))
        assert [result.error for result in results if isinstance(result, RefusedError)] == [
            Code.AUTH,
            Code.QUOTA,
        ]
        assert results[1] == results[3] == SOK(None)
        with pytest.raises(RefusedError, match="the router answered: AUTH"):
            await client.send(SUB(), queue_id(0), KEY)


@virtual
async def test_a_reply_that_cannot_be_read_fails_its_command_by_name() -> None:
    async with smp_pair() as (client, router):
        waiting = asyncio.create_task(client.send_many(calls(4)))
        asked = await router.until_requests(4)

        def raw(request: Request, entity_id: bytes, text: bytes) -> Writer:
            return start_response(router.layout, request.corr_id, entity_id).raw(text)

        router.say_raw(
            raw(asked[0], queue_id(0), b"HUH"),
            raw(asked[1], queue_id(1), b"OK and more"),
            raw(asked[2], b"", b"OK"),
            raw(asked[3], queue_id(3), b"SOK 0"),
        )
        results = await waiting
        errors = [result.error for result in results if isinstance(result, GarbledResponseError)]
        assert errors == [UNKNOWN_COMMAND, SYNTAX, NO_ENTITY]
        assert results[3] == SOK(None)


@virtual
async def test_garbage_that_names_no_command_is_an_event_and_changes_nothing() -> None:
    async with smp_pair() as (client, router):
        waiting = asyncio.create_task(client.send(OFF(), queue_id(1), KEY))
        (asked,) = await router.until_requests(1)
        router.session.send(b"\x02nonsense")
        assert await client.next_event() == Unexpected(b"", Garbled(Code.BLOCK))
        router.say_raw(start_response(router.layout, b"", queue_id(1)).raw(b"HUH"))
        assert await client.next_event() == Unexpected(queue_id(1), Garbled(UNKNOWN_COMMAND))
        router.say_raw(start_response(router.layout, b"unknown", queue_id(1)).raw(b"HUH"))
        assert await client.next_event() == Unexpected(queue_id(1), Garbled(UNKNOWN_COMMAND))
        router.reply(asked, OK())
        assert await waiting == OK()


@virtual
async def test_the_response_to_a_cancelled_caller_is_late() -> None:
    async with smp_pair() as (client, router):
        waiting = asyncio.create_task(client.send(ACK(bytes(24)), queue_id(1), KEY))
        other = asyncio.create_task(client.send(DEL(), queue_id(2), KEY))
        asked = await router.until_requests(2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        router.say(*((request.corr_id, request.entity_id, OK()) for request in asked))
        assert await other == OK()
        assert await client.next_event() == Late(ACK(bytes(24)), queue_id(1), OK())


@virtual
async def test_a_cancelled_command_that_also_times_out_is_late_too() -> None:
    async with smp_pair(timing=Timing(response_s=5.0)) as (client, router):
        waiting = asyncio.create_task(client.send(ACK(bytes(24)), queue_id(1), KEY))
        (asked,) = await router.until_requests(1)
        waiting.cancel()
        await asyncio.sleep(60)
        router.reply(asked, OK())
        assert await client.next_event() == Late(ACK(bytes(24)), queue_id(1), OK())


@virtual
async def test_a_block_that_does_not_open_is_reported_and_the_next_is_read() -> None:
    async with smp_pair() as (client, router):
        blocks: Any = router.session
        right = blocks._blocks._chains
        blocks._blocks.encrypt(router_chains(b"another session", bytes(32)))
        router.push(queue_id(1), END())
        right.sending.seal_block([], 0)
        blocks._blocks.encrypt(right)
        router.push(queue_id(2), END())
        assert await client.next_event() == Unexpected(b"", Garbled(Code.BLOCK))
        assert await client.next_event() == Push(queue_id(2), END())


@virtual
async def test_a_response_that_arrives_as_its_caller_is_cancelled_is_late() -> None:
    """It was handed over, and the caller does not go on with it."""
    async with smp_pair() as (client, router):
        calls: list[Call[Command]] = [Call(ACK(bytes(24)), queue_id(1), KEY), Call(DEL(), queue_id(2), KEY)]
        waiting = asyncio.create_task(client.send_many(calls))
        asked = await router.until_requests(2)
        settle = Awaited.settle

        def cancelling(awaited: Any, result: Any) -> bool:
            settled = settle(awaited, result)
            waiting.cancel()
            return settled

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Awaited, "settle", cancelling)
            router.reply(asked[0], OK())
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert await client.next_event() == Late(ACK(bytes(24)), queue_id(1), OK())
        router.reply(asked[1], OK())
        assert await client.next_event() == Late(DEL(), queue_id(2), OK())


@virtual
async def test_a_command_that_is_made_ready_ahead_leaves_when_it_is_sent() -> None:
    """Once, and without waiting for the company of others."""
    async with smp_pair() as (client, router):
        ready = client.ready(Call(ACK(bytes(24)), queue_id(1), KEY))
        assert ready.transmission is not None
        await settle()
        assert client.commands_waiting == 0
        client.send_ready(ready)
        assert (client._session._unsent, client._session._flushing) == (0, False), "it is with the network"
        (asked,) = await router.until_requests(1)
        assert (asked.command, asked.entity_id) == (ACK(bytes(24)), queue_id(1))
        router.reply(asked, MESSAGE)
        assert await client.answer(ready) == MESSAGE


@virtual
async def test_what_cannot_be_sent_cannot_be_made_ready() -> None:
    async with smp_pair() as (client, _):
        with pytest.raises(CredentialsError):
            client.ready(Call(ACK(bytes(24)), queue_id(1)))


@virtual
async def test_what_was_made_ready_for_a_connection_that_ended_is_not_sent() -> None:
    async with smp_pair() as (client, _):
        ready = client.ready(Call(ACK(bytes(24)), queue_id(1), KEY))
        await client.close()
        client.send_ready(ready)
        assert isinstance(await client.answer(ready), TransportError)


@virtual
async def test_what_was_made_ready_waits_for_the_window_and_for_those_before_it() -> None:
    async with smp_pair(bounds=Bounds(window_blocks=1)) as (client, router):
        ready = client.ready(Call(ACK(bytes(24)), queue_id(3), KEY))
        first = asyncio.create_task(client.send(GET(), queue_id(1), KEY))
        (asked,) = await router.until_requests(1)
        second = asyncio.create_task(client.send(GET(), queue_id(2), KEY))
        await asyncio.sleep(0)
        client.send_ready(ready)
        await settle()
        assert client.commands_waiting == 2
        router.reply(asked, OK())
        assert await first == OK()
        for asked in (await router.until_requests(3))[1:]:
            router.reply(asked, OK())
        assert [await second, await client.answer(ready)] == [OK(), OK()]
        assert [asked.entity_id for asked in router.requests] == [queue_id(1), queue_id(2), queue_id(3)]


@virtual
async def test_the_response_to_what_was_made_ready_is_late_for_a_caller_that_left() -> None:
    async with smp_pair() as (client, router):
        ready = client.ready(Call(ACK(bytes(24)), queue_id(1), KEY))
        client.send_ready(ready)
        answering = asyncio.create_task(client.answer(ready))
        (asked,) = await router.until_requests(1)
        answering.cancel()
        router.reply(asked, MESSAGE)
        assert await client.next_event() == Late(ACK(bytes(24)), queue_id(1), MESSAGE)
