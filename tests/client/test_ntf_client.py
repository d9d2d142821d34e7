"""Devices and notification routers: small blocks, one command each at version 1, batches since."""

from __future__ import annotations

import asyncio

import pytest

from blindpost.client.calls import Call, Late, Push, Unexpected
from blindpost.client.errors import (
    CredentialsError,
    NoRouterKeyError,
    RefusedError,
    ResponseTimeoutError,
    TooLargeError,
    UnexpectedResponseError,
)
from blindpost.client.options import Bounds, Timing
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.commands import PING, SCHK, SNEW, TCHK, TDEL, TNEW, TVFY, Command
from blindpost.wire.ntf.responses import ERR, IDTKN, OK, PONG, SUB, TKN, Response
from blindpost.wire.ntf.status import SubState, SubStatus, TokenState, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.ntf.transmissions import Request
from blindpost.wire.smp.errors import HAS_AUTH, NO_AUTH, Code
from blindpost.wire.versions import VersionRange
from tests.support.client.scripted_ntf import ntf_pair
from tests.support.client.scripted_router import queue_id, queue_key, settle, virtual
from tests.support.wire.ntf_samples import COMMANDS, DH_KEY, TOKEN
from tests.support.wire.smp_keys import verified

KEY = queue_key(0)
ACTIVE = SUB(SubStatus(SubState.ACTIVE))


def done(request: Request) -> Response:
    match request.command:
        case TNEW():
            return IDTKN(queue_id(7), DH_KEY)
        case PING():
            return PONG()
        case SCHK():
            return ACTIVE
        case TCHK():
            return TKN(TokenStatus(TokenState.ACTIVE))
    return OK()


def checks(count: int) -> list[Call[Command]]:
    return [Call(SCHK(), queue_id(number), KEY) for number in range(count)]


@virtual
async def test_version_1_sends_one_command_per_block_with_the_session_id() -> None:
    async with ntf_pair(done, versions=VersionRange(1, 1)) as (client, router):
        assert client.version == 1
        assert await client.send_many([*checks(3), Call(PING())]) == [ACTIVE, ACTIVE, ACTIVE, PONG()]
        assert [len(block) for block in router.blocks] == [1, 1, 1, 1]
        session_id = router.session.agreed.session_id
        for payload, request in zip(router.payloads, router.requests, strict=True):
            auth = request.authorization
            assert payload == b"".join(
                (bytes((len(auth),)), auth, b"\x20", session_id, bytes(request.signed))
            )


@pytest.mark.parametrize("version", [2, 3])
def test_since_version_2_commands_share_blocks_in_order(version: int) -> None:
    @virtual
    async def run() -> None:
        async with ntf_pair(done, versions=VersionRange(1, version)) as (client, router):
            assert client.version == version
            assert await client.send_many(checks(10)) == [ACTIVE] * 10
            assert [len(block) for block in router.blocks] == [4, 4, 2]
            assert [request.entity_id for request in router.requests] == [queue_id(n) for n in range(10)]
            session_id = router.session.agreed.session_id
            assert all(session_id not in payload for payload in router.payloads)

    run()


@virtual
async def test_a_large_command_has_a_block_to_itself_and_a_larger_one_is_refused() -> None:
    key = queue_key(4, Algorithm.ED448)

    def register(size: int) -> Call[Command]:
        return Call(TNEW(DeviceToken(PushProvider.APNS_PROD, bytes(size)), key.public, DH_KEY), b"", key)

    async with ntf_pair(done) as (client, router):
        results = await client.send_many([*checks(1), register(242), *checks(1), register(243), *checks(1)])
        assert [type(result) for result in results] == [SUB, IDTKN, SUB, TooLargeError, SUB]
        assert [len(block) for block in router.blocks] == [1, 1, 2]
        assert len(router.payloads[1]) == 510


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("algorithm", [Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519])
def test_every_kind_of_key_authorizes_what_it_may(version: int, algorithm: Algorithm) -> None:
    @virtual
    async def run() -> None:
        key = queue_key(3, algorithm)
        async with ntf_pair(done, versions=VersionRange(1, version)) as (client, router):
            (result,) = await client.send_many([Call(TDEL(), queue_id(5), key)])
            if version == 1 and algorithm is Algorithm.X25519:
                assert isinstance(result, NoRouterKeyError)
                return
            assert result == OK()
            (request,) = router.requests
            agreed = router.session.agreed
            assert agreed.own_key is not None
            authorized = bytes((len(agreed.session_id),)) + agreed.session_id + bytes(request.signed)
            assert verified(key.public, request.authorization, authorized, request.corr_id, agreed.own_key)

    run()


@virtual
async def test_every_command_is_sent_unchanged() -> None:
    without_entity = (TNEW, SNEW, PING)
    async with ntf_pair() as (client, router):
        calls: list[Call[Command]] = [
            Call(
                command,
                b"" if isinstance(command, without_entity) else queue_id(1),
                None if isinstance(command, PING) else KEY,
                timeout_s=30,
            )
            for command in COMMANDS
        ]
        await client.send_many(calls)
        assert [request.command for request in router.requests] == list(COMMANDS)


@virtual
async def test_each_reply_goes_to_its_caller_and_one_failure_does_not_fail_the_others() -> None:
    async with ntf_pair() as (client, router):
        waiting = asyncio.create_task(client.send_many(checks(3)))
        asked = await router.until_requests(3)
        router.say((asked[2].corr_id, queue_id(2), ACTIVE))
        router.say((asked[1].corr_id, queue_id(1), ERR(Code.AUTH)))
        await settle()
        assert not waiting.done()
        router.say((asked[0].corr_id, queue_id(2), ACTIVE))
        first, second, third = await waiting
        assert isinstance(first, UnexpectedResponseError)
        assert isinstance(second, RefusedError)
        assert second.error is Code.AUTH
        assert third == ACTIVE


@virtual
async def test_late_and_unknown_replies_and_block_errors_are_events() -> None:
    async with ntf_pair(timing=Timing(response_s=10.0)) as (client, router):
        with pytest.raises(ResponseTimeoutError):
            await client.send(TVFY(b"code"), queue_id(1), KEY)
        router.say((router.requests[0].corr_id, queue_id(1), OK()))
        assert await client.next_event() == Late(TVFY(b"code"), queue_id(1), OK())
        router.say((b"unknown", queue_id(1), OK()))
        assert await client.next_event() == Unexpected(queue_id(1), OK())
        router.say((b"", b"", ERR(Code.BLOCK)))
        assert await client.next_event() == Push(b"", ERR(Code.BLOCK))


@virtual
async def test_credentials_that_do_not_fit_are_refused_before_sending() -> None:
    async with ntf_pair(done) as (client, router):
        results = await client.send_many(
            [
                Call(TCHK(), queue_id(1)),
                Call(TNEW(TOKEN, KEY.public, DH_KEY), queue_id(1), KEY),
                Call(PING(), b"", KEY),
            ]
        )
        errors = [result.error for result in results if isinstance(result, CredentialsError)]
        assert errors == [NO_AUTH, HAS_AUTH, HAS_AUTH]
        assert router.blocks == []


@virtual
async def test_the_window_counts_small_blocks_too() -> None:
    async with ntf_pair(bounds=Bounds(window_blocks=2)) as (client, router):
        waiting = asyncio.create_task(client.send_many(checks(12)))
        await settle()
        assert [len(block) for block in router.blocks] == [4, 4]
        for request in router.requests[:4]:
            router.say((request.corr_id, request.entity_id, ACTIVE))
        await settle()
        assert [len(block) for block in router.blocks] == [4, 4, 4]
        for request in router.requests[4:]:
            router.say((request.corr_id, request.entity_id, ACTIVE))
        assert await waiting == [ACTIVE] * 12


@pytest.mark.claim("NTF-35")
@virtual
async def test_an_idle_device_pings_to_stay_connected() -> None:
    async with ntf_pair(done, timing=Timing(ping_after_s=600)) as (client, router):
        await asyncio.sleep(6000)
        assert router.requests == [], "who asked for nothing has nothing to keep"
        await client.send_many(checks(1))
        await asyncio.sleep(6010)
        pings = router.requests[1:]
        assert [request.command for request in pings] == [PING()] * 10
        assert {(request.authorization, request.entity_id) for request in pings} == {(b"", b"")}
        assert client.closed_because is None
