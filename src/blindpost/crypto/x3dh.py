"""The first key agreement of a connection, with or without a KEM, and who is who in a later one.

R created the link and receives the first ratchet message; S joins and sends it.
"""

from __future__ import annotations

import hashlib
from enum import Enum

from blindpost.crypto.entropy import Entropy
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.kdf import hkdf
from blindpost.crypto.kem import Encapsulated, KemKeyPair, KemSource, decapsulate
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.x448 import generate_x448, shared_x448
from blindpost.wire.e2e import KEM_E2E_VERSION, E2EParams, KemAccepted, KemParams, KemProposed
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey
from blindpost.wire.value import Value

_INFO = b"SimpleXX3DH"


class KemStateError(CryptoError):
    """One side accepted a KEM that the other did not propose."""


class ReflectedKeysError(CryptoError):
    """Our own keys came back as the peer's: no role can be chosen."""


@dataclass(frozen=True, slots=True, repr=False)
class AcceptedKem(Value):
    """A secret shared through the peer's key, and the ciphertext that carries it."""

    peer_key: bytes
    secret: bytes
    ciphertext: bytes


@dataclass(frozen=True, slots=True, repr=False)
class PrivateParams(Value):
    """What stays with us of the parameters we sent. `encapsulated` is there when we accepted a KEM key."""

    key1: PrivateKey
    key2: PrivateKey
    kem: KemKeyPair | None = None
    encapsulated: Encapsulated | None = None

    def public(self, version: int) -> E2EParams:
        kem: KemParams | None = None
        if self.kem is not None and self.encapsulated is not None:
            kem = KemAccepted(self.encapsulated.ciphertext, self.kem.public_key)
        elif self.kem is not None:
            kem = KemProposed(self.kem.public_key)
        return E2EParams(version, self.key1.public, self.key2.public, kem)


def proposed_params(version: int, *, pq: bool, entropy: Entropy, kem: KemSource) -> PrivateParams:
    """New parameters of R: with PQ, a KEM key that S may accept."""
    key1, key2 = generate_x448(entropy), generate_x448(entropy)
    return PrivateParams(key1, key2, kem.key_pair() if pq and version >= KEM_E2E_VERSION else None)


def answering_params(peer: E2EParams, *, pq: bool, entropy: Entropy, kem: KemSource) -> PrivateParams:
    """New parameters of S: with PQ, accepts the KEM key of R or proposes one where R did not."""
    own = proposed_params(peer.version, pq=pq, entropy=entropy, kem=kem)
    if own.kem is None or not isinstance(peer.kem, KemProposed):
        return own
    return PrivateParams(own.key1, own.key2, own.kem, kem.encapsulate(peer.kem.public_key))


@dataclass(frozen=True, slots=True, repr=False)
class KeyAgreement(Value):
    """The same on both sides, but for the own KEM pair, which is there when the ratchet starts with one."""

    header_key: bytes
    next_header_key: bytes
    root_key: bytes
    ad: bytes
    kem: KemKeyPair | None
    accepted: AcceptedKem | None

    @property
    def security_code(self) -> bytes:
        """What two people may compare out of band."""
        return hashlib.sha256(self.ad).digest()


def agree_as_sender(own: PrivateParams, peer: E2EParams) -> KeyAgreement:
    """The agreement as S computes it."""
    kem = own.kem if peer.version >= KEM_E2E_VERSION else None
    accepted = None
    if kem is not None and own.encapsulated is not None:
        if not isinstance(peer.kem, KemProposed):
            raise KemStateError("a KEM was accepted that the peer did not propose")
        accepted = AcceptedKem(peer.kem.public_key, own.encapsulated.secret, own.encapsulated.ciphertext)
    secrets = (
        shared_x448(own.key2, peer.key1),
        shared_x448(own.key1, peer.key2),
        shared_x448(own.key2, peer.key2),
    )
    return _agreement(own.key1.public, peer.key1, secrets, kem, accepted)


def agree_as_receiver(own: PrivateParams, peer: E2EParams) -> KeyAgreement:
    """The agreement as R computes it. A proposal of S takes no part in it."""
    kem, accepted = None, None
    if isinstance(peer.kem, KemAccepted) and peer.version >= KEM_E2E_VERSION:
        if own.kem is None:
            raise KemStateError("the peer accepted a KEM that we did not propose")
        kem = own.kem
        secret = decapsulate(kem, peer.kem.ciphertext)
        accepted = AcceptedKem(peer.kem.public_key, secret, peer.kem.ciphertext)
    secrets = (
        shared_x448(own.key1, peer.key2),
        shared_x448(own.key2, peer.key1),
        shared_x448(own.key2, peer.key2),
    )
    return _agreement(peer.key1, own.key1.public, secrets, kem, accepted)


def _agreement(
    sender1: PublicKey,
    receiver1: PublicKey,
    secrets: tuple[bytes, bytes, bytes],
    kem: KemKeyPair | None,
    accepted: AcceptedKem | None,
) -> KeyAgreement:
    shared = b"".join(secrets) + (accepted.secret if accepted is not None else b"")
    out = hkdf(b"", shared, _INFO, 96)
    return KeyAgreement(out[:32], out[32:64], out[64:], sender1.raw + receiver1.raw, kem, accepted)


class SyncRole(Enum):
    """Who a side is when both sent ratchet keys: the receiver waits, the sender sends EREADY first."""

    RECEIVER = "receiver"
    SENDER = "sender"


def sync_hash(key1: PublicKey, key2: PublicKey) -> bytes:
    """By this hash ratchet keys are recognised and roles are chosen."""
    return hashlib.sha256(key1.raw + key2.raw).digest()


def sync_role(own: bytes, peer: bytes) -> SyncRole:
    """The role of the side whose keys hash to `own`."""
    if own == peer:
        raise ReflectedKeysError("the peer's ratchet keys are our own")
    return SyncRole.RECEIVER if own < peer else SyncRole.SENDER
