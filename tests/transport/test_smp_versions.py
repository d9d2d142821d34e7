"""Our client and our router over real TLS sockets, at every version that changed the wire."""

from __future__ import annotations

import pytest

from blindpost.transport.handshake import Agreement
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.versions import VersionRange
from tests.support.transport.sessions import (
    HOST,
    QUICK,
    SERVICE_ID,
    Recorder,
    service_credentials,
    serving,
    smp_client,
    smp_router,
)
from tests.support.transport.streams import connect

VERSIONS = (6, 7, 9, 11, 14, 15, 16, 17, 18, 19, 20)
FIRST_VERSION = {ServiceRole.NOTIFIER: 16, ServiceRole.PROXY: 16, ServiceRole.MESSAGING: 19}


async def agreed(
    router_high: int, *, client_low: int = 6, client_high: int = 20, **options: object
) -> tuple[Agreement, Agreement, Recorder]:
    """What both sides agreed on after one block each way, and what the router received."""
    router = Recorder(echo=True)
    plan = smp_router(versions=VersionRange(6, router_high), limits=QUICK)
    async with serving(plan, router) as port:
        client_plan = smp_client(versions=VersionRange(client_low, client_high), limits=QUICK, **options)
        stream = await connect(client_plan, HOST, port)
        stream.send(b"one ", b"block")
        assert bytes(await stream.read_block()) == b"one block"
        client = stream.session.agreed
        await stream.close()
        await router.until("reasons")
    assert router.payloads == [b"one block"]
    return client, router.sessions[0].agreed, router


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_highest_common_version_is_agreed(version: int) -> None:
    client, router, _ = await agreed(version)
    assert client.version == router.version == version
    assert client.session_id == router.session_id
    assert len(client.session_id) == 32
    assert client.encrypted == router.encrypted == (version >= 11)
    assert client.service is None
    assert router.service is None
    assert router.own_key is not None
    if version >= 7:
        assert client.own_key is not None
        assert client.peer_key == router.own_key.public
        assert router.peer_key == client.own_key.public
        assert client.router_proof is not None
    else:
        assert client.peer_key is None
        assert router.peer_key is None


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_older_client_lowers_the_version(version: int) -> None:
    client, router, _ = await agreed(20, client_high=version)
    assert client.version == router.version == version
    assert client.offered == router.offered == VersionRange(6, 20)


@pytest.mark.claim("SVC-05")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("role", ServiceRole)
async def test_a_service_is_presented_from_the_version_that_knows_its_role(
    role: ServiceRole, version: int
) -> None:
    credentials = service_credentials()
    client, router, told = await agreed(version, service=(role, credentials))
    if version < FIRST_VERSION[role]:
        assert client.service is None
        assert router.service is None
        assert told.requests == []
        return
    assert [(asked.role, asked.fingerprint, asked.chain) for asked in told.requests] == [
        (role, credentials.fingerprint, credentials.chain)
    ]
    assert client.service is not None
    assert router.service is not None
    for service in (client.service, router.service):
        assert (service.role, service.service_id) == (role, SERVICE_ID)
        assert service.fingerprint == credentials.fingerprint
    assert client.service.key == router.service.key
    assert client.service.private is not None
    assert client.service.private.public == router.service.key
    assert router.service.private is None
    assert client.encrypted


@pytest.mark.parametrize("alpn", [b"smp/1", b"h2", b"http/1.1"])
async def test_any_known_protocol_name_gives_the_full_range(alpn: bytes) -> None:
    client, _, _ = await agreed(20, alpn=alpn)
    assert client.version == 20


async def test_without_a_protocol_name_only_version_6_is_offered() -> None:
    client, router, _ = await agreed(20, alpn=None)
    assert client.version == 6
    assert client.offered == router.offered == VersionRange(6, 6)
    assert client.router_proof is None


async def test_without_a_client_key_blocks_stay_plain() -> None:
    client, router, _ = await agreed(20, offer_key=False)
    assert client.version == 20
    assert not client.encrypted
    assert not router.encrypted
    assert router.peer_key is None


async def test_a_proxy_does_not_encrypt_blocks() -> None:
    client, router, _ = await agreed(20, proxy=True)
    assert client.version == 20
    assert client.proxy
    assert router.proxy
    assert not client.encrypted
    assert not router.encrypted


@pytest.mark.parametrize(("relay_high", "version"), [(8, 8), (12, 10), (14, 14)])
async def test_a_proxy_agrees_with_an_old_relay_on_a_version_without_encryption(
    relay_high: int, version: int
) -> None:
    client, router, _ = await agreed(relay_high, proxy=True)
    assert client.version == version
    assert not router.encrypted


async def test_a_proxy_lowers_its_version_no_further_than_its_minimum() -> None:
    client, router, _ = await agreed(12, client_low=12, proxy=True)
    assert client.version == 12
    assert client.encrypted == router.encrypted


async def test_each_connection_has_its_own_session_key() -> None:
    credentials = service_credentials()
    seen = []
    for _ in range(2):
        client, _, _ = await agreed(20, service=(ServiceRole.MESSAGING, credentials))
        assert client.service is not None
        seen.append((client.service.key, client.peer_key, client.session_id))
    for first, second in zip(*seen, strict=True):
        assert first != second
    assert all(key != credentials.key.public for key, _, _ in seen)
