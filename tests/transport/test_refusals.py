"""Anything wrong with a peer ends in a named error on both sides, over real sockets."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import replace

import pytest

from blindpost.crypto.credentials import Credentials
from blindpost.crypto.entropy import system_entropy
from blindpost.transport import errors
from blindpost.transport.plan import SessionPlan
from blindpost.transport.smp_handshake import SmpClient
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.versions import VersionRange
from tests.support.transport.certificates import certificate, chain_of
from tests.support.transport.sessions import (
    HOST,
    NOW,
    QUICK,
    Recorder,
    router_credentials,
    service_credentials,
    serving,
    smp_client,
    smp_router,
)
from tests.support.transport.streams import connect


async def refused(
    router_plan: SessionPlan, client_plan: SessionPlan
) -> tuple[errors.TransportError, Recorder]:
    """The client's error; the router must have closed the session too."""
    router = Recorder()
    async with serving(router_plan, router) as port:
        with pytest.raises(errors.TransportError) as caught:
            await (await connect(client_plan, HOST, port)).read_block()
        await router.until("reasons")
    assert router.payloads == []
    return caught.value, router


async def test_wrong_fingerprint() -> None:
    error, router = await refused(smp_router(limits=QUICK), smp_client(key_hash=bytes(32), limits=QUICK))
    assert type(error) is errors.UnknownCaError
    assert type(router.reasons[0]) is errors.UnknownCaError
    assert router.sessions == []


@pytest.mark.parametrize(
    ("credentials", "kind"),
    [
        (chain_of(1), errors.ChainTooShortError),
        (chain_of(5), errors.ChainTooLongError),
        (chain_of(2, end=NOW - 1), errors.CertificateExpiredError),
        (chain_of(2, start=NOW + 1), errors.CertificateExpiredError),
    ],
    ids=["one certificate", "five certificates", "expired leaf", "leaf of the future"],
)
async def test_chain_of_a_router(credentials: Credentials, kind: type[errors.TransportError]) -> None:
    key_hash = credentials.fingerprint if len(credentials.chain) < 5 else bytes(32)
    error, router = await refused(
        smp_router(credentials=credentials, limits=QUICK), smp_client(key_hash=key_hash, limits=QUICK)
    )
    assert type(error) is kind
    assert isinstance(router.reasons[0], errors.CertificateError)


async def test_a_leaf_that_its_authority_did_not_sign() -> None:
    good, other = chain_of(2), service_credentials("stranger")
    leaf = certificate("level 0", other.key, "level 1", other.key)
    forged = Credentials((leaf, good.chain[1]), other.key)
    assert forged.fingerprint == good.fingerprint
    error, _ = await refused(
        smp_router(credentials=forged, limits=QUICK), smp_client(key_hash=good.fingerprint, limits=QUICK)
    )
    assert type(error) is errors.ChainInvalidError


@pytest.mark.parametrize("length", [2, 3, 4])
async def test_chains_of_two_to_four_are_accepted(length: int) -> None:
    credentials = chain_of(length)
    async with serving(smp_router(credentials=credentials, limits=QUICK), Recorder()) as port:
        stream = await connect(smp_client(key_hash=credentials.fingerprint, limits=QUICK), HOST, port)
        assert stream.session.agreed.router_proof is not None
        assert stream.session.agreed.router_proof.chain == credentials.chain
        await stream.close()


@pytest.mark.parametrize(
    ("credentials", "kind"),
    [
        (chain_of(5), errors.ChainTooLongError),
        (chain_of(1, end=NOW - 1), errors.CertificateExpiredError),
        (chain_of(2, start=NOW + 1), errors.CertificateExpiredError),
        (Credentials((chain_of(1).chain[0], chain_of(3).chain[1]), chain_of(1).key), errors.CertificateError),
    ],
    ids=["five certificates", "expired", "of the future", "unrelated certificates"],
)
async def test_chain_of_a_client(credentials: Credentials, kind: type[errors.TransportError]) -> None:
    error, router = await refused(
        smp_router(limits=QUICK), smp_client(service=(ServiceRole.MESSAGING, credentials), limits=QUICK)
    )
    assert isinstance(router.reasons[0], kind)
    assert isinstance(error, errors.ClosedError)
    assert router.requests == []


@pytest.mark.parametrize("length", [1, 2, 3, 4])
async def test_a_service_may_have_up_to_four_certificates(length: int) -> None:
    credentials, router = chain_of(length), Recorder()
    async with serving(smp_router(limits=QUICK), router) as port:
        plan = smp_client(service=(ServiceRole.NOTIFIER, credentials), limits=QUICK)
        stream = await connect(plan, HOST, port)
        await stream.close()
    assert [request.chain for request in router.requests] == [credentials.chain]
    assert router.requests[0].fingerprint == credentials.fingerprint


def presenting(tls: Credentials, hello: Credentials) -> SessionPlan:
    """A client that presents one identity in TLS and another in its hello."""
    plan = smp_client(service=(ServiceRole.MESSAGING, tls), limits=QUICK)
    key_hash = router_credentials().fingerprint
    other = SmpClient(key_hash, system_entropy, service=(ServiceRole.MESSAGING, hello))
    return replace(plan, handshake=other.handshake)


@pytest.mark.claim("SVC-10")
async def test_a_different_certificate_in_the_hello_than_in_tls() -> None:
    plan = presenting(tls=service_credentials("one"), hello=service_credentials("another"))
    error, router = await refused(smp_router(limits=QUICK), plan)
    assert type(error) is errors.HandshakeBadAuthError
    assert type(router.reasons[0]) is errors.HandshakeBadAuthError
    assert router.requests == []
    assert router.sessions == []


async def test_a_proof_of_possession_by_another_key() -> None:
    shown = service_credentials("one")
    plan = presenting(tls=shown, hello=Credentials(shown.chain, service_credentials("another").key))
    error, router = await refused(smp_router(limits=QUICK), plan)
    assert type(error) is errors.HandshakeBadAuthError
    assert type(router.reasons[0]) is errors.HandshakeBadAuthError
    assert router.requests == []


async def test_a_service_that_the_store_refuses() -> None:
    router = Recorder(service_id=None)
    async with serving(smp_router(limits=QUICK), router) as port:
        with pytest.raises(errors.HandshakeBadServiceError):
            await connect(
                smp_client(service=(ServiceRole.MESSAGING, service_credentials()), limits=QUICK), HOST, port
            )
        await router.until("reasons")
    assert type(router.reasons[0]) is errors.HandshakeBadServiceError
    assert router.sessions == []


async def test_no_version_in_common() -> None:
    error, router = await refused(
        smp_router(versions=VersionRange(6, 8), limits=QUICK),
        smp_client(versions=VersionRange(9, 20), limits=QUICK),
    )
    assert type(error) is errors.HandshakeVersionError
    assert isinstance(router.reasons[0], errors.ClosedError)


async def test_no_protocol_name_for_a_router_without_version_6() -> None:
    error, router = await refused(
        smp_router(versions=VersionRange(7, 20), limits=QUICK), smp_client(alpn=None, limits=QUICK)
    )
    assert isinstance(error, errors.ClosedError)
    assert type(router.reasons[0]) is errors.HandshakeVersionError


async def test_an_unknown_protocol_name() -> None:
    error, router = await refused(smp_router(limits=QUICK), smp_client(alpn=b"xftp/1", limits=QUICK))
    assert type(error) is errors.AlpnError
    assert type(router.reasons[0]) is errors.AlpnError


async def raw(router: Recorder, data: bytes) -> bytes:
    """What a router answers to raw bytes before it closes."""
    async with serving(smp_router(limits=QUICK), router) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(data)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        await router.until("reasons")
    return answer


@pytest.mark.parametrize("method", [b"GET / ", b"POST /x ", b"HEAD / ", b"PUT / ", b"CONNECT a:443 "])
async def test_plain_http(method: bytes) -> None:
    router = Recorder()
    assert await raw(router, method + b"HTTP/1.1\r\nHost: example.org\r\n\r\n") == b""
    assert type(router.reasons[0]) is errors.PlainHttpError


@pytest.mark.parametrize(
    "data",
    [b"SSH-2.0-OpenSSH_9.6\r\n", bytes(range(256)), b"\x16\x03\x01\xff\xff" + bytes(64), b"#" * 16384],
    ids=["ssh", "ascending", "long record", "a block without TLS"],
)
async def test_garbage(data: bytes) -> None:
    router = Recorder()
    await raw(router, data)
    assert isinstance(router.reasons[0], errors.NotTlsError)


async def test_a_client_hello_with_garbage_inside() -> None:
    router = Recorder()
    await raw(router, b"\x16\x03\x01\x00\x10\x01\x00\x00\x0c" + bytes(12))
    assert isinstance(router.reasons[0], errors.TlsError)


def stdlib_client() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def test_tls_1_2_is_refused_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    context = stdlib_client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    router = Recorder()
    with caplog.at_level(logging.INFO, "blindpost.transport"):
        async with serving(smp_router(limits=QUICK), router) as port:
            for _ in range(2):
                with pytest.raises(ssl.SSLError, match=r"(?i)protocol version"):
                    await asyncio.open_connection(HOST, port, ssl=context)
            await router.until("reasons", 2)
    assert {type(reason) for reason in router.reasons} == {errors.TlsVersionError}
    (record,) = caplog.records
    assert "TLS 1.3" in record.getMessage()
    assert record.levelno == logging.WARNING


async def test_another_cipher_suite_than_chacha20_is_refused() -> None:
    error, router = await refused(smp_router(limits=QUICK), only(b"TLS_AES_256_GCM_SHA384"))
    assert type(error) is errors.TlsParametersError
    assert type(router.reasons[0]) is errors.TlsParametersError


def only(suite: bytes) -> SessionPlan:
    plan = smp_client(limits=QUICK)
    plan.context.set_tls13_ciphersuites(suite)
    return plan


def test_a_key_that_does_not_belong_to_the_certificate_is_refused_at_once() -> None:
    mixed = Credentials(router_credentials().chain, service_credentials().key)
    with pytest.raises(errors.CertificateError, match="does not belong"):
        smp_router(credentials=mixed)


async def test_nobody_listens() -> None:
    async with serving(smp_router(limits=QUICK), Recorder()) as port:
        pass
    with pytest.raises(errors.ConnectError):
        await connect(smp_client(limits=QUICK), HOST, port)


async def test_more_connections_than_the_server_allows() -> None:
    router = Recorder()
    async with serving(smp_router(limits=QUICK), router, connections_max=1) as port:
        first = await connect(smp_client(limits=QUICK), HOST, port)
        with pytest.raises(errors.ClosedError):
            await connect(smp_client(limits=QUICK), HOST, port)
        await router.until("reasons")
        assert type(router.reasons[0]) is errors.RefusedError
        await first.close()
        second = await connect(smp_client(limits=QUICK), HOST, port)
        await second.close()
