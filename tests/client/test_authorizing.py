"""Who signs which bytes: queues, services, and nobody."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from blindpost.client import authorizing
from blindpost.client.calls import Call
from blindpost.client.errors import (
    CredentialsError,
    NoRouterKeyError,
    NoServiceError,
    NotAvailableError,
    RefusedError,
)
from blindpost.client.options import Bounds, SmpOptions
from blindpost.client.smp import SmpClient
from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.keys import PrivateKey, verify
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import Reader
from blindpost.wire.smp import commands as smp
from blindpost.wire.smp.commands import COMMANDS, Command
from blindpost.wire.smp.credentials import RULES
from blindpost.wire.smp.errors import HAS_AUTH, NO_AUTH, NO_ENTITY, Code
from blindpost.wire.smp.handshake import ClientHello, ServiceRole, read_client_hello
from blindpost.wire.smp.responses import ERR, OK, SOK, Response
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.smp.values import LinkData, NtfCreds
from blindpost.wire.versions import VersionRange
from tests.support.client.scripted_router import (
    ScriptedRouter,
    listening,
    queue_id,
    queue_key,
    server_at,
    settle,
    smp_pair,
    tapped,
    virtual,
)
from tests.support.transport.sessions import SERVICE_ID, at_now, service_credentials, smp_router
from tests.support.wire.smp_keys import verified

KEY = queue_key(0)
DH = queue_key(1, Algorithm.X25519).public
RELAY = Server((Host("relay.example"),), "5223", bytes(32))

SIGNED: list[Command] = [
    smp.NEW(KEY.public, DH),
    smp.SUB(),
    smp.KEY(KEY.public),
    smp.RKEY((KEY.public,)),
    smp.LSET(bytes(24), LinkData(b"fixed", b"user")),
    smp.LDEL(),
    smp.NKEY(NtfCreds(KEY.public, DH)),
    smp.NDEL(),
    smp.GET(),
    smp.ACK(bytes(24)),
    smp.OFF(),
    smp.DEL(),
    smp.QUE(),
    smp.SKEY(KEY.public),
    smp.SEND(True, b"body"),
    smp.LKEY(KEY.public),
    smp.NSUB(),
]
UNSIGNED: list[Command] = [
    smp.LGET(),
    smp.PING(),
    smp.PRXY(RELAY, None),
    smp.PFWD(20, DH, b"sealed"),
    smp.RFWD(b"sealed"),
    smp.RSLV("name.simplex"),
]
BY_SERVICE: list[Command] = [smp.SUBS(7, bytes(16)), smp.NSUBS(7, bytes(16))]
NO_ENTITY_COMMANDS = (smp.NEW, smp.PING, smp.PRXY, smp.RFWD, smp.RSLV, smp.SUBS, smp.NSUBS)


def call_of(command: Command, key: PrivateKey = KEY) -> Call[Command]:
    entity_id = b"" if isinstance(command, NO_ENTITY_COMMANDS) else queue_id(5)
    return Call(command, entity_id, key if command in SIGNED else None)


def done(request: Request) -> Response:
    return OK()


def short(data: bytes) -> bytes:
    return bytes((len(data),)) + data


def signed_bytes(request: Request, session_id: bytes) -> bytes:
    """The authorized bytes, assembled from the document alone."""
    return short(session_id) + short(request.corr_id) + short(request.entity_id) + _text_of(request)


def _text_of(request: Request) -> bytes:
    ids = short(request.corr_id) + short(request.entity_id)
    signed = bytes(request.signed)
    assert signed.startswith(ids)
    return signed[len(ids) :]


def test_every_command_is_covered() -> None:
    assert {command.TAG for command in SIGNED + UNSIGNED + BY_SERVICE} == set(COMMANDS)


@pytest.mark.claim("SVC-16", "SVC-17")
@virtual
async def test_on_a_service_session_exactly_new_sub_and_nsub_carry_two_signatures() -> None:
    async with smp_pair(done, service=ServiceRole.MESSAGING) as (client, router):
        service = client.service
        assert service is not None
        await client.send_many([call_of(command) for command in SIGNED + UNSIGNED + BY_SERVICE])
        assert len(router.requests) == len(COMMANDS)
        seen = router.session.agreed.service
        assert seen is not None
        fingerprint = service_credentials().fingerprint
        assert fingerprint == hashlib.sha256(service_credentials().chain[-1]).digest()
        for request in router.requests:
            authorized = signed_bytes(request, router.session.agreed.session_id)
            if request.command.TAG in {b"NEW", b"SUB", b"NSUB"}:
                assert request.service_signature is not None
                assert verify(KEY.public, fingerprint + authorized, request.authorization)
                assert verify(seen.key, authorized, request.service_signature)
                assert not verify(KEY.public, authorized, request.authorization)
                assert not verify(seen.key, fingerprint + authorized, request.service_signature)
                continue
            assert request.service_signature is None
            if request.command in BY_SERVICE:
                assert request.entity_id == SERVICE_ID
                assert verify(seen.key, authorized, request.authorization)
            elif request.command in UNSIGNED:
                assert request.authorization == b""
            else:
                assert verify(KEY.public, authorized, request.authorization)


@pytest.mark.claim("SVC-19")
@pytest.mark.parametrize("version", [19, 20])
def test_without_a_service_every_command_is_signed_once_and_alone(version: int) -> None:
    @virtual
    async def run() -> None:
        async with smp_pair(done, versions=VersionRange(6, version)) as (client, router):
            assert client.version == version
            assert client.service is None
            await client.send_many([call_of(command) for command in SIGNED])
            assert len(router.requests) == len(SIGNED)
            for request in router.requests:
                authorized = signed_bytes(request, router.session.agreed.session_id)
                assert verify(KEY.public, authorized, request.authorization)
                assert request.service_signature is None

    run()


@pytest.mark.claim("SVC-01")
@pytest.mark.parametrize("version", [15, 16])
def test_services_exist_from_version_16(version: int) -> None:
    @virtual
    async def run() -> None:
        network = MemoryNetwork()
        log: list[tuple[str, bytes]] = []
        router = ScriptedRouter(lambda request: SOK(SERVICE_ID))
        plan = tapped(smp_router(versions=VersionRange(6, version)), log)
        options = SmpOptions(
            network=network, now=at_now, service=(ServiceRole.NOTIFIER, service_credentials())
        )
        async with (
            listening(router, plan, network) as port,
            await SmpClient.connect(server_at(port), options) as client,
        ):
            assert client.version == version
            reply = await client.send(smp.NSUB(), queue_id(5), KEY)
        hello: ClientHello = read_client_hello(Reader(log[1][1]))
        (request,) = router.requests
        if version < 16:
            assert [side for side, _ in log] == ["router", "client"]
            assert hello.service is None
            assert client.service is None
            assert reply == OK()
            assert request.service_signature is None
        else:
            assert [side for side, _ in log] == ["router", "client", "router"]
            assert hello.service is not None
            assert hello.service.role is ServiceRole.NOTIFIER
            assert client.service is not None
            assert client.service.service_id == SERVICE_ID
            assert reply == SOK(SERVICE_ID)
            assert request.service_signature is not None

    run()


@pytest.mark.claim("SVC-08")
@virtual
async def test_without_credentials_the_handshake_has_two_messages_and_commands_follow_at_once() -> None:
    network = MemoryNetwork()
    log: list[tuple[str, bytes]] = []
    router = ScriptedRouter(done)
    async with listening(router, tapped(smp_router(), log), network) as port:
        options = SmpOptions(network=network, now=at_now)
        async with await SmpClient.connect(server_at(port), options) as client:
            assert await client.send(smp.ACK(bytes(24)), queue_id(5), KEY) == OK()
            assert asyncio.get_running_loop().time() == 0.0
            await asyncio.sleep(1000)
    assert [side for side, _ in log] == ["router", "client"]
    assert read_client_hello(Reader(log[1][1])).service is None
    assert router.services == []


@pytest.mark.claim("SVC-09")
@virtual
async def test_a_service_sends_no_command_before_the_third_message() -> None:
    network = MemoryNetwork()
    log: list[tuple[str, bytes]] = []
    router = ScriptedRouter(done)
    router.service_id = None
    async with listening(router, tapped(smp_router(), log), network) as port:
        options = SmpOptions(
            network=network, now=at_now, service=(ServiceRole.MESSAGING, service_credentials())
        )

        async def connect_and_send() -> SmpClient:
            client = await SmpClient.connect(server_at(port), options)
            await client.send(smp.ACK(bytes(24)), queue_id(5), KEY)
            return client

        working = asyncio.create_task(connect_and_send())
        await router.until(lambda: bool(router.services))
        hello = read_client_hello(Reader(log[1][1]))
        assert hello.service is not None
        assert hello.service.role is ServiceRole.MESSAGING
        assert hello.service.cert_key.chain == service_credentials().chain
        delivered = network.connections[0][0].bytes_delivered
        await asyncio.sleep(10)
        assert [side for side, _ in log] == ["router", "client"]
        assert network.connections[0][0].bytes_delivered == delivered
        assert router.blocks == []
        session, _ = router.services[0]
        session.service_found(SERVICE_ID)
        client = await working
        assert [side for side, _ in log] == ["router", "client", "router"]
        assert client.service is not None
        assert client.service.service_id == SERVICE_ID
        assert router.tags == [b"ACK"]
        await client.close()


@pytest.mark.parametrize("algorithm", [Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519])
@pytest.mark.parametrize("version", [6, 7, 15, 16, 20])
def test_every_kind_of_key_authorizes_what_it_may(version: int, algorithm: Algorithm) -> None:
    @virtual
    async def run() -> None:
        key = queue_key(3, algorithm)
        async with smp_pair(done, versions=VersionRange(6, version)) as (client, router):
            (result,) = await client.send_many([Call(smp.ACK(bytes(24)), queue_id(5), key)])
            if version == 6 and algorithm is Algorithm.X25519:
                assert isinstance(result, NoRouterKeyError)
                assert router.blocks == []
                return
            assert result == OK()
            (request,) = router.requests
            agreed = router.session.agreed
            assert agreed.own_key is not None
            authorized = signed_bytes(request, agreed.session_id)
            assert verified(key.public, request.authorization, authorized, request.corr_id, agreed.own_key)

    run()


@virtual
async def test_an_x25519_key_authorizes_for_a_service_too() -> None:
    key = queue_key(3, Algorithm.X25519)
    async with smp_pair(lambda request: SOK(SERVICE_ID), service=ServiceRole.MESSAGING) as (client, router):
        await client.send(smp.SUB(), queue_id(5), key)
        (request,) = router.requests
        agreed = router.session.agreed
        assert agreed.own_key is not None
        authorized = signed_bytes(request, agreed.session_id)
        vouched = service_credentials().fingerprint + authorized
        assert verified(key.public, request.authorization, vouched, request.corr_id, agreed.own_key)


@virtual
async def test_agreed_secrets_are_cached_and_the_oldest_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    agreed: list[PublicKey] = []

    class Counting(BoxKey):
        __slots__ = ()

        @classmethod
        def agreed(cls, private: PrivateKey, public: PublicKey) -> BoxKey:
            agreed.append(private.public)
            return BoxKey.agreed(private, public)

    monkeypatch.setattr(authorizing, "BoxKey", Counting)
    first, second, third = (queue_key(number, Algorithm.X25519) for number in range(3))
    async with smp_pair(done, bounds=Bounds(secrets=2)) as (client, _):
        for key in (first, second, first, second, first, third, first, third, second):
            await client.send(smp.ACK(bytes(24)), queue_id(5), key)
    assert agreed == [first.public, second.public, third.public, second.public]


@virtual
async def test_credentials_that_do_not_fit_the_command_are_refused_before_sending() -> None:
    async with smp_pair(done) as (client, router):
        results = await client.send_many(
            [
                Call(smp.SUB(), queue_id(5)),
                Call(smp.SUB(), b"", KEY),
                Call(smp.NEW(KEY.public, DH), b""),
                Call(smp.NEW(KEY.public, DH), queue_id(5), KEY),
                Call(smp.SEND(True, b""), b""),
                Call(smp.LGET(), queue_id(5), KEY),
                Call(smp.PING(), queue_id(5)),
            ]
        )
        errors = [result.error for result in results if isinstance(result, CredentialsError)]
        assert errors == [NO_AUTH, NO_AUTH, NO_AUTH, HAS_AUTH, NO_ENTITY, HAS_AUTH, HAS_AUTH]
        await settle()
        assert router.blocks == []
        assert await client.send(smp.SEND(True, b""), queue_id(5)) == OK()


@virtual
async def test_service_subscriptions_need_a_service() -> None:
    async with smp_pair(done) as (client, router):
        results = await client.send_many(map(call_of, BY_SERVICE))
        assert [type(result) for result in results] == [NoServiceError, NoServiceError]
        assert router.blocks == []


SINCE = {kind: rule.since for kind, rule in RULES.items() if rule.since}


@pytest.mark.parametrize(("kind", "since"), SINCE.items())
def test_commands_are_not_sent_below_their_version(kind: type[Command], since: int) -> None:
    (command,) = (one for one in SIGNED + UNSIGNED + BY_SERVICE if type(one) is kind)

    @virtual
    async def run(version: int, expected: type) -> None:
        role = ServiceRole.NOTIFIER
        versions = VersionRange(6, version)
        async with smp_pair(lambda request: ERR(Code.AUTH), versions=versions, service=role) as (client, _):
            (result,) = await client.send_many([call_of(command)])
            assert type(result) is expected

    run(since - 1, NotAvailableError)
    run(since, RefusedError)


def test_first_version_of_each_command() -> None:
    brought = {kind.TAG: since for kind, since in SINCE.items()}
    assert brought == {
        **dict.fromkeys((b"PRXY", b"PFWD", b"RFWD"), 8),
        b"SKEY": 9,
        **dict.fromkeys((b"RKEY", b"LSET", b"LDEL", b"LKEY", b"LGET"), 15),
        **dict.fromkeys((b"SUBS", b"NSUBS"), 16),
        b"RSLV": 20,
    }
