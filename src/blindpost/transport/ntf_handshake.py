"""The handshake of the notification protocol: a version, a session key from version 2, no services."""

from __future__ import annotations

import hmac

from blindpost.crypto.credentials import Credentials, sign_session_key
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.transport import errors
from blindpost.transport.handshake import (
    CLIENT,
    ROUTER,
    Agreement,
    Effect,
    Established,
    Event,
    Handshake,
    Peer,
    Send,
    router_key,
)
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.handshake import (
    ClientHello,
    ServerHello,
    read_client_hello,
    read_server_hello,
    write_client_hello,
    write_server_hello,
)
from blindpost.wire.ntf.versions import AUTH_BATCH_VERSION, NTF_VERSIONS, offered_versions
from blindpost.wire.primitives import Reader, encode
from blindpost.wire.value import Buffer
from blindpost.wire.versions import VersionRange


@dataclass(frozen=True, slots=True)
class NtfRouter:
    """What a notification router brings to every handshake."""

    credentials: Credentials
    entropy: Entropy
    versions: VersionRange = NTF_VERSIONS

    def handshake(self, peer: Peer) -> Handshake:
        return _RouterHandshake(self, peer)


@dataclass(frozen=True, slots=True)
class NtfClient:
    """What a client brings: the router it wants to reach and the versions it knows."""

    key_hash: bytes
    versions: VersionRange = NTF_VERSIONS

    def handshake(self, peer: Peer) -> Handshake:
        return _ClientHandshake(self, peer)


class _RouterHandshake(Handshake):
    table = ROUTER

    def __init__(self, router: NtfRouter, peer: Peer) -> None:
        self._router = router
        self._peer = peer
        self._offered = offered_versions(router.versions, peer.alpn)
        self._key = PrivateKey.generate(Algorithm.X25519, router.entropy)

    def start(self) -> list[Effect]:
        if self._offered.agreed(self._router.versions) is None:
            return self._failed(
                errors.HandshakeVersionError("the peer negotiated no ALPN, its version is too old")
            )
        signed = None
        if self._offered.high >= AUTH_BATCH_VERSION:
            signed = sign_session_key(self._router.credentials, self._key.public).signed_key
        hello = ServerHello(self._offered, self._peer.session_id, signed)
        self._go(Event.TLS_COMPLETE)
        return [Send(encode(hello, write_server_hello))]

    def _read(self, payload: Buffer) -> list[Effect]:
        hello = read_client_hello(Reader(payload))
        if not hmac.compare_digest(hello.key_hash, self._router.credentials.fingerprint):
            raise errors.HandshakeIdentityError
        if hello.version not in self._offered:
            raise errors.HandshakeVersionError(
                f"the client chose version {hello.version}, which was not offered"
            )
        self._go(Event.HELLO)
        return [Established(Agreement(hello.version, self._peer.session_id, self._key, None))]


class _ClientHandshake(Handshake):
    table = CLIENT

    def __init__(self, client: NtfClient, peer: Peer) -> None:
        self._client = client
        self._peer = peer

    def start(self) -> list[Effect]:
        self._go(Event.TLS_COMPLETE)
        return []

    def _read(self, payload: Buffer) -> list[Effect]:
        hello = read_server_hello(Reader(payload))
        if not hmac.compare_digest(hello.session_id, self._peer.session_id):
            raise errors.HandshakeSessionError
        version = hello.versions.agreed(self._client.versions)
        if version is None:
            raise errors.HandshakeVersionError(
                f"the router offers versions {hello.versions.text}, we know {self._client.versions.text}"
            )
        key = None if hello.signed_key is None else router_key(hello.signed_key, self._peer)
        answer = encode(ClientHello(version, self._client.key_hash), write_client_hello)
        self._go(Event.HELLO)
        agreement = Agreement(version, self._peer.session_id, None, key, offered=hello.versions)
        return [Send(answer), Established(agreement)]
