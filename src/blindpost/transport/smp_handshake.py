"""The SMP handshake: versions, session keys, block encryption, and services that prove their certificate."""

from __future__ import annotations

import hmac

from blindpost.crypto.block_chain import BlockChains, client_chains, router_chains
from blindpost.crypto.chains import identity_fingerprint, leaf_key
from blindpost.crypto.credentials import Credentials, sign_session_key, verify_session_key
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.keys import PrivateKey
from blindpost.transport import errors
from blindpost.transport.handshake import (
    CLIENT,
    ROUTER,
    Agreement,
    Effect,
    Established,
    Event,
    Failed,
    FindService,
    Handshake,
    HandshakeState,
    Peer,
    Send,
    ServiceSession,
    router_key,
)
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import Reader, encode
from blindpost.wire.signed_key import CertKey
from blindpost.wire.smp.handshake import (
    SERVICE_VERSIONS,
    ClientHello,
    ClientService,
    ServerHello,
    ServiceAccepted,
    ServiceRefused,
    ServiceRole,
    encrypts_blocks,
    read_client_hello,
    read_server_hello,
    read_service_response,
    write_client_hello,
    write_server_hello,
    write_service_response,
)
from blindpost.wire.smp.versions import (
    AUTH_KEYS_VERSION,
    LEGACY_VERSIONS,
    PROXY_FLAG_VERSION,
    SMP_VERSIONS,
    proxy_versions,
)
from blindpost.wire.value import Buffer
from blindpost.wire.versions import VersionRange


@dataclass(frozen=True, slots=True)
class SmpRouter:
    """What a router brings to every handshake."""

    credentials: Credentials
    entropy: Entropy
    versions: VersionRange = SMP_VERSIONS

    def handshake(self, peer: Peer) -> Handshake:
        return _RouterHandshake(self, peer)


@dataclass(frozen=True, slots=True)
class SmpClient:
    """What a client brings: the router it wants to reach, and its own identity.

    Without `offer_key` blocks are not encrypted inside TLS.
    """

    key_hash: bytes
    entropy: Entropy
    versions: VersionRange = SMP_VERSIONS
    proxy: bool = False
    service: tuple[ServiceRole, Credentials] | None = None
    offer_key: bool = True

    def handshake(self, peer: Peer) -> Handshake:
        return _ClientHandshake(self, peer)


class _RouterHandshake(Handshake):
    table = ROUTER

    def __init__(self, router: SmpRouter, peer: Peer) -> None:
        self._router = router
        self._peer = peer
        self._key = PrivateKey.generate(Algorithm.X25519, router.entropy)
        self._hello: ServerHello
        self._answer: ClientHello

    def start(self) -> list[Effect]:
        router, peer = self._router, self._peer
        offered = router.versions
        if peer.alpn is None:
            if offered.agreed(LEGACY_VERSIONS) is None:
                return self._failed(
                    errors.HandshakeVersionError("a client without ALPN: its version is too old")
                )
            offered = LEGACY_VERSIONS
        proof = None
        if offered.high >= AUTH_KEYS_VERSION:
            proof = sign_session_key(router.credentials, self._key.public)
        self._hello = ServerHello(offered, peer.session_id, proof)
        self._go(Event.TLS_COMPLETE)
        return [Send(encode(self._hello, write_server_hello))]

    def _read(self, payload: Buffer) -> list[Effect]:
        hello = self._answer = read_client_hello(Reader(payload))
        if not hmac.compare_digest(hello.key_hash, self._router.credentials.fingerprint):
            raise errors.HandshakeIdentityError
        if hello.version not in self._hello.versions:
            raise errors.HandshakeVersionError(
                f"the client chose version {hello.version}, which was not offered"
            )
        service = hello.service
        if service is None:
            self._go(Event.HELLO)
            return [self._established(None)]
        self._go(Event.HELLO_WITH_SERVICE)
        try:
            self._check_service(service.cert_key)
        except (errors.HandshakeBadAuthError, CryptoError):
            return self._refuse(errors.HandshakeBadAuthError())
        chain = service.cert_key.chain
        return [FindService(service.role, identity_fingerprint(chain), chain)]

    def _check_service(self, proof: CertKey) -> None:
        """The certificate must be the one used in TLS, and its owner must have signed the session key."""
        signed = proof.signed_key
        if proof.chain != self._peer.chain:
            raise errors.HandshakeBadAuthError
        if signed.key.algorithm is not Algorithm.ED25519 or not verify_session_key(
            leaf_key(proof.chain), signed
        ):
            raise errors.HandshakeBadAuthError

    def service_found(self, service_id: bytes) -> list[Effect]:
        service = self._answer.service
        assert service is not None, "no service was asked for"
        self._go(Event.SERVICE_FOUND)
        accepted = encode(ServiceAccepted(service_id), write_service_response)
        proof = service.cert_key
        session = ServiceSession(
            service.role, service_id, identity_fingerprint(proof.chain), proof.signed_key.key
        )
        return [Send(accepted), self._established(session)]

    def service_refused(self) -> list[Effect]:
        return self._refuse(errors.HandshakeBadServiceError())

    def _refuse(self, error: errors.HandshakeError) -> list[Effect]:
        self._go(Event.SERVICE_REFUSED)
        assert error.wire is not None
        return [Send(encode(ServiceRefused(error.wire), write_service_response)), Failed(error)]

    def _established(self, service: ServiceSession | None) -> Established:
        answer = self._answer
        chains = _chains(self._hello, answer, self._key, answer.client_key, router=True)
        agreement = Agreement(
            answer.version,
            self._peer.session_id,
            self._key,
            answer.client_key,
            encrypted=chains is not None,
            proxy=answer.proxy_server,
            service=service,
            offered=self._hello.versions,
        )
        return Established(agreement, chains)


class _ClientHandshake(Handshake):
    table = CLIENT

    def __init__(self, client: SmpClient, peer: Peer) -> None:
        self._client = client
        self._peer = peer
        self._key = PrivateKey.generate(Algorithm.X25519, client.entropy) if client.offer_key else None
        self._session_key: PrivateKey | None = None
        self._hello: ServerHello
        self._answer: ClientHello

    def start(self) -> list[Effect]:
        self._go(Event.TLS_COMPLETE)
        return []

    def _read(self, payload: Buffer) -> list[Effect]:
        if self.state is HandshakeState.SERVICE_RESPONSE:
            return self._read_response(payload)
        client = self._client
        hello = self._hello = read_server_hello(Reader(payload))
        if not hmac.compare_digest(hello.session_id, self._peer.session_id):
            raise errors.HandshakeSessionError
        own = proxy_versions(client.versions, hello.versions) if client.proxy else client.versions
        version = hello.versions.agreed(own)
        if version is None:
            raise errors.HandshakeVersionError(
                f"the router offers versions {hello.versions.text}, we know {own.text}"
            )
        if hello.cert_key is not None:
            self._check_router(hello.cert_key)
        service = self._service(version)
        key = self._key.public if self._key is not None and version >= AUTH_KEYS_VERSION else None
        proxy = client.proxy and version >= PROXY_FLAG_VERSION
        self._answer = ClientHello(version, client.key_hash, key, proxy, service)
        sent = Send(encode(self._answer, write_client_hello))
        if service is not None:
            self._go(Event.HELLO_WITH_SERVICE)
            return [sent]
        self._go(Event.HELLO)
        return [sent, self._established(None)]

    def _check_router(self, proof: CertKey) -> None:
        try:
            known = hmac.compare_digest(identity_fingerprint(proof.chain), self._client.key_hash)
        except CryptoError as error:
            raise errors.HandshakeBadAuthError from error
        if not known or len(proof.chain) < 2:
            raise errors.HandshakeBadAuthError
        router_key(proof.signed_key, self._peer)

    def _service(self, version: int) -> ClientService | None:
        """The service part, if there is one to present and the version has a place for its role."""
        client = self._client
        if client.service is None or not self._peer.certificate_sent:
            return None
        role, credentials = client.service
        if version < SERVICE_VERSIONS[role]:
            return None
        self._session_key = PrivateKey.generate(Algorithm.ED25519, client.entropy)
        return ClientService(role, sign_session_key(credentials, self._session_key.public))

    def _read_response(self, payload: Buffer) -> list[Effect]:
        response = read_service_response(Reader(payload))
        if isinstance(response, ServiceRefused):
            return self._failed(errors.refusal(response.error), Event.SERVICE_REFUSED)
        assert self._client.service is not None
        assert self._session_key is not None
        role, credentials = self._client.service
        self._go(Event.SERVICE_FOUND)
        session = ServiceSession(
            role, response.service_id, credentials.fingerprint, self._session_key.public, self._session_key
        )
        return [self._established(session)]

    def _established(self, service: ServiceSession | None) -> Established:
        hello, answer = self._hello, self._answer
        peer_key = None if hello.cert_key is None else hello.cert_key.signed_key.key
        chains = _chains(hello, answer, self._key, peer_key, router=False)
        agreement = Agreement(
            answer.version,
            hello.session_id,
            self._key,
            peer_key,
            encrypted=chains is not None,
            proxy=self._client.proxy,
            service=service,
            offered=hello.versions,
            router_proof=hello.cert_key,
        )
        return Established(agreement, chains)


def _chains(
    hello: ServerHello, answer: ClientHello, own: PrivateKey | None, peer: PublicKey | None, *, router: bool
) -> BlockChains | None:
    """The keys of encrypted blocks, if the two hellos agree on encryption."""
    if own is None or peer is None or not encrypts_blocks(hello, answer):
        return None
    derive = router_chains if router else client_chains
    return derive(hello.session_id, own.agree(peer))
