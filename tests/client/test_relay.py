"""Sending through a proxy: what each of the two routers sees, and whose error it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from blindpost.client.errors import (
    CredentialsError,
    GarbledResponseError,
    NotAvailableError,
    ProxyFailedError,
    RefusedError,
    ResponseTimeoutError,
    TooLargeError,
    UnexpectedResponseError,
)
from blindpost.client.relay import Relay
from blindpost.client.smp import SmpClient
from blindpost.crypto.credentials import sign_session_key
from blindpost.crypto.keys import PrivateKey
from blindpost.transport.errors import HandshakeIdentityError, HandshakeVersionError
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import LGET, LKEY, PING, PRXY, RSLV, SEND, SKEY, SUB, Command
from blindpost.wire.smp.errors import (
    BROKER,
    NAME,
    PROTOCOL,
    PROXY,
    BrokerCode,
    Code,
    NameCode,
    ProxyCode,
    SMPError,
)
from blindpost.wire.smp.responses import ERR, LNK, OK, PONG, PRES, Response
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.smp.values import LinkData
from blindpost.wire.smp.versions import body_size_max
from blindpost.wire.versions import VersionRange
from tests.support.client.scripted_relay import RELAY_SESSION, ScriptedRelay
from tests.support.client.scripted_router import (
    ScriptedRouter,
    queue_id,
    queue_key,
    settle,
    smp_pair,
    virtual,
)
from tests.support.transport.certificates import chain_of
from tests.support.transport.sessions import NOW, router_credentials, seeded
from tests.support.wire.smp_keys import verified

CREDENTIALS = router_credentials("relay")
SERVER = Server((Host("relay.example"),), "5223", CREDENTIALS.fingerprint)
KEY = queue_key(0)
LINK = LNK(queue_id(9), LinkData(b"fixed", b"user"))


def done(request: Request) -> Response:
    return LINK if isinstance(request.command, LKEY | LGET) else OK()


@asynccontextmanager
async def behind_proxy(
    answer: Callable[[Request], Response] = done, **options: Any
) -> AsyncIterator[tuple[SmpClient, ScriptedRouter, ScriptedRelay]]:
    relay = ScriptedRelay(CREDENTIALS, answer)
    async with smp_pair(relay.proxy, **options) as (client, proxy):
        yield client, proxy, relay


def signed_bytes(request: Request) -> bytes:
    return bytes((len(RELAY_SESSION),)) + RELAY_SESSION + bytes(request.signed)


@pytest.mark.parametrize(
    ("command", "entity_id", "signs", "response"),
    [
        (SEND(True, b"hello"), queue_id(1), True, OK()),
        (SEND(False, b"hello"), queue_id(1), False, OK()),
        (SKEY(KEY.public), queue_id(1), True, OK()),
        (LKEY(KEY.public), queue_id(1), True, LINK),
        (LGET(), queue_id(1), False, LINK),
    ],
)
def test_a_command_reaches_the_relay_and_its_response_comes_back(
    command: Command, entity_id: bytes, signs: bool, response: Response
) -> None:
    @virtual
    async def run() -> None:
        async with behind_proxy() as (client, proxy, relay):
            session = await Relay.open(client, SERVER, b"password")
            assert relay.prxys == [PRXY(SERVER, b"password")]
            assert session.version == 20
            assert await session.send(command, entity_id, KEY if signs else None) == response
            (request,) = relay.requests
            assert (request.command, request.entity_id) == (command, entity_id)
            assert request.service_signature is None
            if signs:
                agreed = (request.authorization, signed_bytes(request), request.corr_id, relay.key)
                assert verified(KEY.public, *agreed)
            else:
                assert request.authorization == b""
            ((outer, pfwd),) = relay.pfwds
            assert outer.entity_id == RELAY_SESSION
            assert outer.corr_id == request.corr_id
            assert len(outer.corr_id) == 24
            assert len(pfwd.enc_transmission) == 16242
            assert pfwd.version == 20
            assert proxy.tags == [b"PRXY", b"PFWD"]

    run()


@virtual
async def test_one_relay_session_serves_many_commands_each_with_its_own_keys() -> None:
    async with behind_proxy() as (client, _, relay):
        session = await Relay.open(client, SERVER)
        sender = queue_key(2, Algorithm.X25519)
        await asyncio.gather(*(session.send(SEND(True, b""), queue_id(n), sender) for n in range(5)))
        assert len({pfwd.command_key.raw for _, pfwd in relay.pfwds}) == 5
        assert len({request.corr_id for request in relay.requests}) == 5
        for request in relay.requests:
            agreed = (request.authorization, signed_bytes(request), request.corr_id, relay.key)
            assert verified(sender.public, *agreed)


@pytest.mark.parametrize(
    ("algorithm", "version", "limit"),
    [
        (Algorithm.ED25519, 20, 16048),
        (Algorithm.ED448, 20, 16048),
        (Algorithm.X25519, 20, 16048),
        (Algorithm.ED25519, 10, 16064),
        (Algorithm.X25519, 10, 16064),
        (Algorithm.ED448, 10, 16049),
    ],
)
def test_the_largest_message_fits_through_a_proxy(algorithm: Algorithm, version: int, limit: int) -> None:
    @virtual
    async def run() -> None:
        async with behind_proxy() as (client, _, relay):
            relay.present(versions=VersionRange(8, version))
            session = await Relay.open(client, SERVER)
            key = queue_key(1, algorithm)
            assert await session.send(SEND(True, bytes(limit)), queue_id(1), key) == OK()
            assert limit <= body_size_max(version)
            if algorithm is Algorithm.ED448:
                with pytest.raises(TooLargeError):
                    await session.send(SEND(True, bytes(limit + 1)), queue_id(1), key)
                assert len(relay.requests) == 1

    run()


@pytest.mark.parametrize("error", [Code.AUTH, Code.QUOTA, PROXY(ProxyCode.NO_SESSION)])
def test_an_error_of_the_relay_is_raised_as_if_asked_directly(error: SMPError) -> None:
    @virtual
    async def run() -> None:
        async with behind_proxy(lambda request: ERR(error)) as (client, _, _relay):
            session = await Relay.open(client, SERVER)
            with pytest.raises(RefusedError) as refused:
                await session.send(SEND(True, b""), queue_id(1))
            assert refused.value.error == error

    run()


@pytest.mark.parametrize(
    "error",
    [
        PROXY(ProxyCode.BASIC_AUTH),
        PROXY(ProxyCode.NO_SESSION),
        PROXY(PROTOCOL(Code.AUTH)),
        PROXY(BROKER(BrokerCode.TIMEOUT)),
        Code.CRYPTO,
        Code.INTERNAL,
    ],
)
def test_an_error_of_the_proxy_is_distinguished(error: SMPError) -> None:
    @virtual
    async def run() -> None:
        async with behind_proxy() as (client, _, relay):
            session = await Relay.open(client, SERVER)
            relay.refused = ERR(error)
            with pytest.raises(ProxyFailedError) as failed:
                await session.send(SEND(True, b""), queue_id(1))
            assert failed.value.error == error
            with pytest.raises(ProxyFailedError) as refused:
                await Relay.open(client, SERVER)
            assert refused.value.error == error
            assert relay.requests == []

    run()


@virtual
async def test_names_are_resolved_behind_a_proxy_without_an_entity() -> None:
    error = NAME(NameCode.NOT_FOUND)
    async with behind_proxy(lambda request: ERR(error)) as (client, _, relay):
        session = await Relay.open(client, SERVER)
        with pytest.raises(RefusedError) as refused:
            await session.send(RSLV("name.simplex"))
        assert refused.value.error == error
        assert relay.requests[0].entity_id == b""


@virtual
async def test_commands_that_are_not_forwarded_or_do_not_fit_are_refused_locally() -> None:
    async with behind_proxy() as (client, _, relay):
        session = await Relay.open(client, SERVER)
        for command in (SUB(), PING()):
            with pytest.raises(NotAvailableError):
                await session.send(command, queue_id(1), KEY)
        with pytest.raises(CredentialsError):
            await session.send(SKEY(KEY.public), queue_id(1))
        relay.present(versions=VersionRange(8, 8))
        old = await Relay.open(client, SERVER)
        assert old.version == 8
        with pytest.raises(NotAvailableError):
            await old.send(SKEY(KEY.public), queue_id(1), KEY)
        assert relay.pfwds == []


@virtual
async def test_a_relay_with_another_identity_or_a_foreign_key_is_refused() -> None:
    other = router_credentials("another relay")
    stranger = PrivateKey.generate(Algorithm.X25519, seeded("stranger")).public
    signed_by_other = sign_session_key(other, stranger)
    ed25519 = sign_session_key(CREDENTIALS, KEY.public)
    async with behind_proxy() as (client, _, relay):
        good = relay.pkey.cert_key
        for chain, signed in [
            (other.chain, signed_by_other.signed_key),
            (good.chain, signed_by_other.signed_key),
            (good.chain[:1], good.signed_key),
            ((other.chain[0], good.chain[1]), signed_by_other.signed_key),
            ((b"not a certificate", good.chain[1]), good.signed_key),
            (good.chain, ed25519.signed_key),
        ]:
            relay.present(cert_key=type(good)(chain, signed))
            with pytest.raises(HandshakeIdentityError):
                await Relay.open(client, SERVER)


@virtual
async def test_an_expired_relay_is_refused() -> None:
    good, expired = chain_of(3), chain_of(2, end=NOW - 1)
    for credentials, valid in ((good, True), (expired, False)):
        relay = ScriptedRelay(credentials, done)
        server = replace(SERVER, key_hash=credentials.fingerprint)
        async with smp_pair(relay.proxy) as (client, _):
            if valid:
                assert (await Relay.open(client, server)).version == 20
            else:
                with pytest.raises(HandshakeIdentityError, match="expired"):
                    await Relay.open(client, server)


@virtual
async def test_versions_are_agreed_with_the_relay() -> None:
    async with behind_proxy() as (client, _, relay):
        relay.present(versions=VersionRange(8, 99))
        assert (await Relay.open(client, SERVER)).version == 20
        relay.present(versions=VersionRange(8, 12))
        session = await Relay.open(client, SERVER)
        assert session.version == 12
        await session.send(SEND(True, b""), queue_id(1), KEY)
        assert relay.pfwds[0][1].version == 12
        relay.present(versions=VersionRange(21, 22))
        with pytest.raises(HandshakeVersionError):
            await Relay.open(client, SERVER)


@virtual
async def test_answers_not_from_the_relay_to_this_command_are_named() -> None:
    async with behind_proxy() as (client, _, relay):
        session = await Relay.open(client, SERVER)
        relay.copies = 2
        with pytest.raises(GarbledResponseError, match="BLOCK"):
            await session.send(SEND(True, b""), queue_id(1))
        relay.copies = 1
        relay.corr_id = bytes(24)
        with pytest.raises(UnexpectedResponseError):
            await session.send(SEND(True, b""), queue_id(1))
        relay.corr_id, relay.entity_id = None, queue_id(2)
        with pytest.raises(UnexpectedResponseError):
            await session.send(SEND(True, b""), queue_id(1))
        relay.entity_id = b""
        with pytest.raises(GarbledResponseError, match="NO_ENTITY"):
            await session.send(SEND(True, b""), queue_id(1))
        relay.refused = PRES(bytes(16242))
        with pytest.raises(GarbledResponseError, match="CRYPTO"):
            await session.send(SEND(True, b""), queue_id(1))
        relay.refused = OK()
        with pytest.raises(UnexpectedResponseError):
            await session.send(SEND(True, b""), queue_id(1))


@virtual
async def test_prxy_answered_with_something_else_is_unexpected() -> None:
    async with smp_pair(lambda request: PONG()) as (client, _):
        with pytest.raises(UnexpectedResponseError):
            await Relay.open(client, SERVER)


@virtual
async def test_a_relay_gets_a_longer_timeout() -> None:
    async with behind_proxy() as (client, proxy, relay):
        loop = asyncio.get_running_loop()
        session = await Relay.open(client, SERVER)
        proxy.answer = lambda request: None
        start = loop.time()
        with pytest.raises(ResponseTimeoutError):
            await session.send(SEND(True, b""), queue_id(1))
        assert loop.time() - start == pytest.approx(60)
        start = loop.time()
        with pytest.raises(ResponseTimeoutError):
            await Relay.open(client, SERVER)
        assert loop.time() - start == pytest.approx(75)
        await settle()
        assert relay.requests == []


@virtual
async def test_a_proxy_that_is_too_old_is_not_asked() -> None:
    async with behind_proxy(versions=VersionRange(6, 7)) as (client, proxy, _):
        with pytest.raises(NotAvailableError):
            await Relay.open(client, SERVER)
        assert proxy.blocks == []
