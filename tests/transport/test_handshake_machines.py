"""The handshake machines alone: their tables, hostile bytes, and invalid proofs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from blindpost.crypto.credentials import Credentials, sign_session_key
from blindpost.crypto.keys import PrivateKey
from blindpost.transport import errors
from blindpost.transport.certificates import client_chain_check, router_chain_check
from blindpost.transport.handshake import (
    CLIENT,
    ROUTER,
    Effect,
    Established,
    Event,
    Failed,
    FindService,
    Handshake,
    HandshakeState,
    Peer,
    Send,
    Table,
)
from blindpost.transport.ntf_handshake import NtfClient, NtfRouter
from blindpost.transport.smp_handshake import SmpClient, SmpRouter
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader, encode
from blindpost.wire.smp.handshake import (
    ClientHello,
    ClientService,
    ServerHello,
    ServiceRole,
    read_client_hello,
    read_server_hello,
    write_client_hello,
    write_server_hello,
)
from blindpost.wire.versions import VersionRange
from tests.support.transport.certificates import chain_of
from tests.support.transport.sessions import (
    SERVICE_ID,
    at_now,
    router_credentials,
    seeded,
    service_credentials,
)

SESSION = bytes(range(32))


def router_side(chain: tuple[bytes, ...] = (), alpn: bytes | None = b"smp/1") -> tuple[Handshake, bytes]:
    """A router that waits for a client's hello, and its own."""
    machine = SmpRouter(router_credentials(), seeded("router keys")).handshake(Peer(SESSION, alpn, chain))
    (hello,) = machine.start()
    assert isinstance(hello, Send)
    return machine, hello.payload


def client_side(service: Credentials | None = None) -> Handshake:
    """A client that waits for the router's hello."""
    presented = None if service is None else (ServiceRole.MESSAGING, service)
    client = SmpClient(router_credentials().fingerprint, seeded("client keys"), service=presented)
    machine = client.handshake(Peer(SESSION, b"smp/1", router_credentials().chain, service is not None))
    assert machine.start() == []
    return machine


def client_hello(service: Credentials | None = None) -> bytes:
    """The hello of a client that has just received the router's."""
    _, server_hello = router_side()
    sent = client_side(service).received(memoryview(server_hello))[0]
    assert isinstance(sent, Send)
    return sent.payload


def only_error(effects: list[Effect]) -> errors.HandshakeError:
    (failed,) = effects
    assert isinstance(failed, Failed)
    return failed.error


@pytest.mark.parametrize("table", [ROUTER, CLIENT], ids=["router", "client"])
def test_every_state_is_reached_and_leads_to_an_end(table: Table) -> None:
    reached, new = {HandshakeState.TLS}, {HandshakeState.TLS}
    while new:
        new = {after for (before, _), after in table.items() if before in new} - reached
        reached |= new
    sources = {before for before, _ in table}
    assert sources | {HandshakeState.ESTABLISHED, HandshakeState.FAILED} == reached
    assert HandshakeState.ESTABLISHED not in sources
    assert HandshakeState.FAILED not in sources
    for state in sources:
        ends = {after for (before, _), after in table.items() if before is state}
        assert ends & {HandshakeState.ESTABLISHED, HandshakeState.FAILED} or state is HandshakeState.TLS


def test_only_the_router_looks_up_services_and_only_the_client_awaits_the_answer() -> None:
    assert HandshakeState.SERVICE_LOOKUP not in {state for state, _ in CLIENT}
    assert HandshakeState.SERVICE_RESPONSE not in {state for state, _ in ROUTER}
    assert (HandshakeState.SERVICE_LOOKUP, Event.ERROR) not in ROUTER


@pytest.mark.claim("SVC-08")
def test_without_credentials_two_messages_complete_both_sides() -> None:
    router, server_hello = router_side()
    client = client_side()
    hello, established = client.received(memoryview(server_hello))
    assert isinstance(hello, Send)
    assert isinstance(established, Established)
    assert client.state is HandshakeState.ESTABLISHED
    (answer,) = router.received(memoryview(hello.payload))
    assert isinstance(answer, Established), "the router sends nothing after the client's hello"
    assert router.state is HandshakeState.ESTABLISHED


def test_with_credentials_the_client_is_not_established_before_the_third_message() -> None:
    service = service_credentials()
    router, server_hello = router_side(service.chain)
    client = client_side(service)
    (hello,) = client.received(memoryview(server_hello))
    assert isinstance(hello, Send)
    assert client.state is HandshakeState.SERVICE_RESPONSE
    assert read_client_hello(Reader(hello.payload)).service is not None
    (request,) = router.received(memoryview(hello.payload))
    assert isinstance(request, FindService)
    assert router.state is HandshakeState.SERVICE_LOOKUP
    response, at_router = router.service_found(SERVICE_ID)
    assert isinstance(response, Send)
    assert response.payload == b"R\x18" + SERVICE_ID
    assert isinstance(at_router, Established)
    (at_client,) = client.received(memoryview(response.payload))
    assert isinstance(at_client, Established)
    assert at_client.agreement.service is not None
    assert at_client.agreement.service.service_id == SERVICE_ID


@pytest.mark.claim("SVC-11")
def test_every_flipped_bit_of_the_proof_of_possession_is_refused() -> None:
    service = service_credentials()
    good = client_hello(service)
    signature = len(good) - 64
    for place in range(signature, len(good)):
        for bit in range(8):
            router, _ = router_side(service.chain)
            changed = bytearray(good)
            changed[place] ^= 1 << bit
            response, failed = router.received(memoryview(bytes(changed)))
            assert isinstance(response, Send)
            assert response.payload == b"EHANDSHAKE BAD_AUTH"
            assert isinstance(failed, Failed)
            assert type(failed.error) is errors.HandshakeBadAuthError
            assert router.state is HandshakeState.FAILED
    for other in (service_credentials("unrelated"), chain_of(1, algorithm=Algorithm.ED448)):
        router, _ = router_side(service.chain)
        hello = client_hello(Credentials(service.chain, other.key))
        assert isinstance(router.received(memoryview(hello))[1], Failed)


@pytest.mark.parametrize("algorithm", [Algorithm.X25519, Algorithm.ED448])
def test_the_session_key_of_a_service_must_be_ed25519(algorithm: Algorithm) -> None:
    service = service_credentials()
    hello = read_client_hello(Reader(client_hello(service)))
    key = PrivateKey.generate(algorithm, seeded("other algorithm")).public
    part = ClientService(ServiceRole.MESSAGING, sign_session_key(service, key))
    router, _ = router_side(service.chain)
    effects = router.received(memoryview(encode(replace(hello, service=part), write_client_hello)))
    assert isinstance(effects[1], Failed)
    assert type(effects[1].error) is errors.HandshakeBadAuthError


def test_a_service_without_a_certificate_in_tls_is_refused() -> None:
    router, _ = router_side(chain=())
    effects = router.received(memoryview(client_hello(service_credentials())))
    assert isinstance(effects[1], Failed)
    assert type(effects[1].error) is errors.HandshakeBadAuthError


def test_a_certificate_of_an_ed448_key_proves_a_service_too() -> None:
    service = chain_of(1, algorithm=Algorithm.ED448)
    router, _ = router_side(service.chain)
    (request,) = router.received(memoryview(client_hello(service)))
    assert isinstance(request, FindService)


def test_the_router_refuses_another_identity_and_versions_it_did_not_offer() -> None:
    good = read_client_hello(Reader(client_hello()))
    for changed, kind in (
        (replace(good, key_hash=bytes(32)), errors.HandshakeIdentityError),
        (replace(good, key_hash=b""), errors.HandshakeIdentityError),
        (replace(good, version=5), errors.HandshakeVersionError),
        (replace(good, version=21), errors.HandshakeVersionError),
    ):
        router, _ = router_side()
        error = only_error(router.received(memoryview(encode(changed, write_client_hello))))
        assert type(error) is kind
    router, _ = router_side(alpn=None)
    seven = ClientHello(7, good.key_hash)
    error = only_error(router.received(memoryview(encode(seven, write_client_hello))))
    assert type(error) is errors.HandshakeVersionError


def test_bytes_after_the_hellos_are_ignored() -> None:
    router, server_hello = router_side()
    client = client_side()
    hello, _ = client.received(memoryview(server_hello + b"later versions"))
    assert isinstance(hello, Send)
    (established,) = router.received(memoryview(hello.payload + b"may say more"))
    assert isinstance(established, Established)


def test_the_client_checks_session_versions_and_proof() -> None:
    _, payload = router_side()
    good = read_server_hello(Reader(payload))
    assert good.cert_key is not None
    stranger = sign_session_key(service_credentials(), good.cert_key.signed_key.key).signed_key
    ed25519 = sign_session_key(router_credentials(), service_credentials().key.public)
    other_chain = replace(good.cert_key, chain=chain_of(2).chain)
    leaf_alone = replace(good.cert_key, chain=good.cert_key.chain[:1])
    too_long = replace(good.cert_key, chain=good.cert_key.chain + chain_of(3).chain)
    for changed, kind in (
        (replace(good, session_id=bytes(32)), errors.HandshakeSessionError),
        (replace(good, session_id=b""), errors.HandshakeSessionError),
        (replace(good, versions=VersionRange(21, 30)), errors.HandshakeVersionError),
        (replace(good, cert_key=replace(good.cert_key, signed_key=stranger)), errors.HandshakeBadAuthError),
        (replace(good, cert_key=ed25519), errors.HandshakeBadAuthError),
        (replace(good, cert_key=other_chain), errors.HandshakeBadAuthError),
        (replace(good, cert_key=leaf_alone), errors.HandshakeBadAuthError),
        (replace(good, cert_key=too_long), errors.HandshakeBadAuthError),
    ):
        assert isinstance(changed, ServerHello)
        client = client_side()
        error = only_error(client.received(memoryview(encode(changed, write_server_hello))))
        assert type(error) is kind
        assert client.state is HandshakeState.FAILED


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b"EHANDSHAKE BAD_SERVICE", errors.HandshakeBadServiceError),
        (b"EHANDSHAKE BAD_AUTH", errors.HandshakeBadAuthError),
        (b"EHANDSHAKE PARSE", errors.HandshakeParseError),
        (b"EHANDSHAKE IDENTITY", errors.HandshakeIdentityError),
        (b"EVERSION", errors.HandshakeVersionError),
        (b"ESESSION", errors.HandshakeSessionError),
        (b"EBLOCK", errors.HandshakeError),
        (b"ENONSENSE", errors.HandshakeParseError),
        (b"", errors.HandshakeParseError),
        (b"X", errors.HandshakeParseError),
    ],
)
def test_refusals_of_a_service_have_named_errors(payload: bytes, kind: type[errors.HandshakeError]) -> None:
    client = client_side(service_credentials())
    _, server_hello = router_side()
    client.received(memoryview(server_hello))
    assert type(only_error(client.received(memoryview(payload)))) is kind
    assert client.state is HandshakeState.FAILED


def ntf_sides() -> tuple[Handshake, bytes, Handshake, bytes]:
    """Router and client of the notification protocol, each with the message it may receive next."""
    router = NtfRouter(router_credentials(), seeded("ntf")).handshake(Peer(SESSION, b"ntf/1", ()))
    (hello,) = router.start()
    assert isinstance(hello, Send)
    fingerprint = router_credentials().fingerprint
    client = NtfClient(fingerprint).handshake(Peer(SESSION, b"ntf/1", router_credentials().chain))
    client.start()
    return router, b"\0\3\x20" + fingerprint, client, hello.payload


def waiting_for_response() -> Handshake:
    client = client_side(service_credentials())
    client.received(memoryview(SERVER_HELLO))
    return client


def test_the_notification_router_refuses_versions_it_did_not_offer() -> None:
    for version in (0, 4):
        router, good, _, _ = ntf_sides()
        error = only_error(router.received(memoryview(version.to_bytes(2, "big") + good[2:])))
        assert type(error) is errors.HandshakeVersionError


def test_the_notification_client_checks_the_routers_signature() -> None:
    _, _, client, hello = ntf_sides()
    changed = bytearray(hello)
    changed[-1] ^= 1
    error = only_error(client.received(memoryview(bytes(changed))))
    assert type(error) is errors.HandshakeBadAuthError


def test_a_router_without_any_certificate_is_refused() -> None:
    with pytest.raises(errors.ChainEmptyError):
        router_chain_check(bytes(32), at_now)(())
    client_chain_check(at_now)(())


SERVER_HELLO = router_side()[1]
MACHINES: dict[str, tuple[Callable[[], Handshake], bytes]] = {
    "smp router": (lambda: router_side(service_credentials().chain)[0], client_hello(service_credentials())),
    "smp client": (client_side, SERVER_HELLO),
    "smp client, service": (waiting_for_response, b"R\x18" + SERVICE_ID),
    "ntf router": (lambda: ntf_sides()[0], ntf_sides()[1]),
    "ntf client": (lambda: ntf_sides()[2], ntf_sides()[3]),
}
"""Each machine at each place where it reads, with a message that is good there."""


@pytest.mark.parametrize("name", MACHINES)
def test_any_bytes_give_effects(name: str) -> None:
    """A message cut or changed anywhere gives effects or a named failure, nothing else."""
    make, good = MACHINES[name]
    chance = random.Random(name)
    assert not any(isinstance(effect, Failed) for effect in make().received(memoryview(good)))
    for place in range(len(good)):
        changed = bytearray(good)
        changed[place] ^= chance.randrange(1, 256)
        for payload in (good[:place], bytes(changed)):
            machine = make()
            effects = machine.received(memoryview(payload))
            assert effects
            assert (machine.state is HandshakeState.FAILED) is any(
                isinstance(effect, Failed) for effect in effects
            )
