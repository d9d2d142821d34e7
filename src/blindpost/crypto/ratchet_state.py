"""The state of a double ratchet: how it starts, its key derivations, and the keys of missing messages."""

from __future__ import annotations

from collections.abc import Mapping

from blindpost.crypto.kdf import hkdf
from blindpost.crypto.kem import KemKeyPair
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.x3dh import AcceptedKem, KeyAgreement
from blindpost.crypto.x448 import shared_x448
from blindpost.wire.e2e import KEM_E2E_VERSION
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey
from blindpost.wire.value import Value


@dataclass(frozen=True, slots=True, repr=False)
class RatchetKem(Value):
    """The own KEM pair that the peer may encapsulate to, and what we encapsulated to the peer's."""

    pair: KemKeyPair
    accepted: AcceptedKem | None


@dataclass(frozen=True, slots=True, repr=False)
class SendingChain(Value):
    peer_key: PublicKey
    chain_key: bytes
    header_key: bytes


@dataclass(frozen=True, slots=True, repr=False)
class ReceivingChain(Value):
    chain_key: bytes
    header_key: bytes


@dataclass(frozen=True, slots=True, repr=False)
class Ratchet(Value):
    """One side of a double ratchet, between two messages.

    `support_kem` decides the size of headers and never turns off; `enable_kem` is the wish for the next
    step; `snd_kem` and `rcv_kem` say whether the current chains have a KEM secret in them. `ns`, `nr` and
    `pn` count the messages of the sending, the receiving and the previous sending chain.
    """

    current: int
    max_supported: int
    ad: bytes
    dh_key: PrivateKey
    kem: RatchetKem | None
    support_kem: bool
    enable_kem: bool
    snd_kem: bool
    rcv_kem: bool
    root_key: bytes
    snd: SendingChain | None
    rcv: ReceivingChain | None
    ns: int
    nr: int
    pn: int
    next_snd_header_key: bytes
    next_rcv_header_key: bytes


def sending_ratchet(
    version: int, own_max: int, peer_key2: PublicKey, dh_key: PrivateKey, agreed: KeyAgreement
) -> Ratchet:
    """The ratchet of S, who sends first with the fresh `dh_key` against R's second key."""
    secret = agreed.accepted.secret if agreed.accepted is not None else None
    root_key, chain_key, next_header_key = root_kdf(agreed.root_key, peer_key2, dh_key, secret)
    kem = RatchetKem(agreed.kem, agreed.accepted) if agreed.kem is not None else None
    return Ratchet(
        current=version,
        max_supported=own_max,
        ad=agreed.ad,
        dh_key=dh_key,
        kem=kem,
        support_kem=kem is not None,
        enable_kem=kem is not None,
        snd_kem=secret is not None,
        rcv_kem=False,
        root_key=root_key,
        snd=SendingChain(peer_key2, chain_key, agreed.header_key),
        rcv=None,
        ns=0,
        nr=0,
        pn=0,
        next_snd_header_key=next_header_key,
        next_rcv_header_key=agreed.next_header_key,
    )


def receiving_ratchet(
    version: int, own_max: int, key2: PrivateKey, agreed: KeyAgreement, *, pq_support: bool
) -> Ratchet:
    """The ratchet of R, who waits for the first message with its second key."""
    return Ratchet(
        current=version,
        max_supported=own_max,
        ad=agreed.ad,
        dh_key=key2,
        kem=RatchetKem(agreed.kem, agreed.accepted) if agreed.kem is not None else None,
        support_kem=pq_support,
        enable_kem=pq_support,
        snd_kem=False,
        rcv_kem=False,
        root_key=agreed.root_key,
        snd=None,
        rcv=None,
        ns=0,
        nr=0,
        pn=0,
        next_snd_header_key=agreed.next_header_key,
        next_rcv_header_key=agreed.header_key,
    )


def root_kdf(
    root_key: bytes, public: PublicKey, private: PrivateKey, secret: bytes | None
) -> tuple[bytes, bytes, bytes]:
    """The next root key, a chain key and the header key of the chain after it."""
    shared = shared_x448(private, public) + (secret or b"")
    out = hkdf(root_key, shared, b"SimpleXRootRatchet", 96)
    return out[:32], out[32:64], out[64:]


def chain_kdf(chain_key: bytes) -> tuple[bytes, MessageKey, bytes]:
    """The next chain key, the key of one message, and the IV of its header."""
    out = hkdf(b"", chain_key, b"SimpleXChainRatchet", 96)
    return out[:32], MessageKey(out[32:64], out[64:80]), out[80:]


def supports_kem(version: int, *, before: bool, enabled: bool) -> bool:
    """Large headers come with the first wish for a KEM that the version can carry, and stay."""
    return before or (version >= KEM_E2E_VERSION and enabled)


@dataclass(frozen=True, slots=True, repr=False)
class MessageKey(Value):
    """Opens or seals the body of one message."""

    key: bytes
    iv: bytes


@dataclass(frozen=True, slots=True, repr=False)
class BodyKey(Value):
    """All that sealing a body needs once its header is made; kept with a message until it is delivered."""

    version: int
    ad: bytes
    key: MessageKey
    encoded_header: bytes


SkippedKeys = Mapping[bytes, Mapping[int, MessageKey]]
"""Keys of messages that have not come yet: by header key, then by number."""


@dataclass(frozen=True, slots=True)
class NoSkippedChange:
    """The skipped keys stay as they are."""


@dataclass(frozen=True, slots=True, repr=False)
class SkippedRemoved(Value):
    """One skipped key was used."""

    header_key: bytes
    number: int


@dataclass(frozen=True, slots=True, repr=False)
class SkippedAdded(Value):
    """Keys to remember."""

    keys: SkippedKeys


SkippedChange = NoSkippedChange | SkippedRemoved | SkippedAdded
