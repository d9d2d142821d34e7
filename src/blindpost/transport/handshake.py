"""The handshake in blocks, without I/O: payloads in, effects out.

Both protocols and both sides share the states and the two tables below; what a hello holds and which
checks it must pass is in `smp_handshake` and `ntf_handshake`. Randomness is given, time does not matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum, auto

from blindpost.crypto.block_chain import BlockChains
from blindpost.crypto.chains import leaf_key
from blindpost.crypto.credentials import verify_session_key
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.keys import PrivateKey
from blindpost.transport.errors import HandshakeBadAuthError, HandshakeError, HandshakeParseError
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.signed_key import CertKey, SignedKey
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.value import Buffer, Value
from blindpost.wire.versions import VersionRange


class HandshakeState(Enum):
    """What one side of a handshake waits for."""

    TLS = auto()
    SERVER_HELLO = auto()
    CLIENT_HELLO = auto()
    SERVICE_LOOKUP = auto()
    SERVICE_RESPONSE = auto()
    ESTABLISHED = auto()
    FAILED = auto()


class Event(Enum):
    """What happened."""

    TLS_COMPLETE = auto()
    HELLO = auto()
    HELLO_WITH_SERVICE = auto()
    SERVICE_FOUND = auto()
    SERVICE_REFUSED = auto()
    ERROR = auto()


Table = Mapping[tuple[HandshakeState, Event], HandshakeState]

ROUTER: Table = {
    (HandshakeState.TLS, Event.TLS_COMPLETE): HandshakeState.CLIENT_HELLO,
    (HandshakeState.TLS, Event.ERROR): HandshakeState.FAILED,
    (HandshakeState.CLIENT_HELLO, Event.HELLO): HandshakeState.ESTABLISHED,
    (HandshakeState.CLIENT_HELLO, Event.HELLO_WITH_SERVICE): HandshakeState.SERVICE_LOOKUP,
    (HandshakeState.CLIENT_HELLO, Event.ERROR): HandshakeState.FAILED,
    (HandshakeState.SERVICE_LOOKUP, Event.SERVICE_FOUND): HandshakeState.ESTABLISHED,
    (HandshakeState.SERVICE_LOOKUP, Event.SERVICE_REFUSED): HandshakeState.FAILED,
}
"""The router's hello leaves with TLS_COMPLETE, its answer about a service with the last two events."""

CLIENT: Table = {
    (HandshakeState.TLS, Event.TLS_COMPLETE): HandshakeState.SERVER_HELLO,
    (HandshakeState.SERVER_HELLO, Event.HELLO): HandshakeState.ESTABLISHED,
    (HandshakeState.SERVER_HELLO, Event.HELLO_WITH_SERVICE): HandshakeState.SERVICE_RESPONSE,
    (HandshakeState.SERVER_HELLO, Event.ERROR): HandshakeState.FAILED,
    (HandshakeState.SERVICE_RESPONSE, Event.SERVICE_FOUND): HandshakeState.ESTABLISHED,
    (HandshakeState.SERVICE_RESPONSE, Event.SERVICE_REFUSED): HandshakeState.FAILED,
    (HandshakeState.SERVICE_RESPONSE, Event.ERROR): HandshakeState.FAILED,
}
"""The client's hello leaves with HELLO, or with HELLO_WITH_SERVICE when it presents a service in it."""


@dataclass(frozen=True, slots=True, repr=False)
class Peer(Value):
    """What TLS established: the session, the protocol name if any was negotiated, the peer's chain."""

    session_id: bytes
    alpn: bytes | None
    chain: tuple[bytes, ...]
    certificate_sent: bool = False
    """Whether this side was asked for a certificate and presented one."""


@dataclass(frozen=True, slots=True, repr=False)
class ServiceSession(Value):
    """A service as both sides know it for the session; only the client has `private`."""

    role: ServiceRole
    service_id: bytes
    fingerprint: bytes
    key: PublicKey
    private: PrivateKey | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Agreement(Value):
    """What the handshake agreed on.

    `own_key` and `peer_key` are the X25519 keys of the session. A client finds in `offered` and
    `router_proof` what a proxy passes on about its relay.
    """

    version: int
    session_id: bytes
    own_key: PrivateKey | None
    peer_key: PublicKey | None
    encrypted: bool = False
    proxy: bool = False
    service: ServiceSession | None = None
    offered: VersionRange | None = None
    router_proof: CertKey | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Send(Value):
    """Send this payload in a plain block."""

    payload: bytes


@dataclass(frozen=True, slots=True, repr=False)
class FindService(Value):
    """Look up the service with this identity, or create it; its role must be the one it was created with."""

    role: ServiceRole
    fingerprint: bytes
    chain: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Established:
    """The handshake is complete; from the next block on `chains`, if any, encrypt."""

    agreement: Agreement
    chains: BlockChains | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The handshake failed and the connection must be closed."""

    error: HandshakeError


Effect = Send | FindService | Established | Failed


class Handshake(ABC):
    """One side of one handshake. The effects that a method returns must be executed in order."""

    table: Table
    state = HandshakeState.TLS

    @abstractmethod
    def start(self) -> list[Effect]:
        """TLS is complete."""

    def received(self, payload: Buffer) -> list[Effect]:
        """A block arrived."""
        try:
            return self._read(payload)
        except HandshakeError as error:
            return self._failed(error)
        except WireError as error:
            return self._failed(HandshakeParseError(f"the handshake message could not be read: {error}"))

    def service_found(self, service_id: bytes) -> list[Effect]:
        """The answer to `FindService`, from those who ask for one."""
        raise AssertionError("this handshake asks for no service")

    def service_refused(self) -> list[Effect]:
        """The answer to `FindService` when the service may not be used."""
        raise AssertionError("this handshake asks for no service")

    @abstractmethod
    def _read(self, payload: Buffer) -> list[Effect]: ...

    def _go(self, event: Event) -> None:
        self.state = self.table[self.state, event]

    def _failed(self, error: HandshakeError, event: Event = Event.ERROR) -> list[Effect]:
        self._go(event)
        return [Failed(error)]


def router_key(signed: SignedKey, peer: Peer) -> PublicKey:
    """The router's session key, if it was signed with the key that the router proved in TLS."""
    try:
        leaf = leaf_key(peer.chain)
    except CryptoError as error:
        raise HandshakeBadAuthError from error
    if signed.key.algorithm is not Algorithm.X25519 or not verify_session_key(leaf, signed):
        raise HandshakeBadAuthError
    return signed.key
