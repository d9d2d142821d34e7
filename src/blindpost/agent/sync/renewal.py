"""A new ratchet from ratchet keys that both sides sent: who is who, and how the ratchet starts."""

from __future__ import annotations

import hashlib

from blindpost.crypto.entropy import Entropy
from blindpost.crypto.ratchet_state import Ratchet, receiving_ratchet, sending_ratchet
from blindpost.crypto.x3dh import (
    PrivateParams,
    SyncRole,
    agree_as_receiver,
    agree_as_sender,
    sync_hash,
    sync_role,
)
from blindpost.crypto.x448 import generate_x448
from blindpost.wire.e2e import E2EParams
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value


@dataclass(frozen=True, slots=True, repr=False)
class Renewed(Value):
    """The ratchet that replaces the old one, and our role: the sender sends EREADY under it at once."""

    role: SyncRole
    ratchet: Ratchet


def hash_of(params: E2EParams) -> bytes:
    """By this hash ratchet keys are recognised when they come again."""
    return sync_hash(params.key1, params.key2)


def sign_of(ad: bytes) -> bytes:
    """Of two keys that a ratchet was made from. Who sends its keys again says with it which keys of the peer
    they were agreed with: a copy of them that comes late does not say so."""
    return hashlib.sha256(b"ratchet keys agreed" + ad).digest()


def ad_of(own: PrivateParams, peer: E2EParams) -> bytes:
    """What the ratchet from these keys has as its associated data."""
    first, second = own.key1.public.raw, peer.key1.raw
    return first + second if _role(own, peer) is SyncRole.SENDER else second + first


def _role(own: PrivateParams, peer: E2EParams) -> SyncRole:
    return sync_role(sync_hash(own.key1.public, own.key2.public), hash_of(peer))


def renewed(
    own: PrivateParams, peer: E2EParams, own_max: int, *, pq_support: bool, entropy: Entropy
) -> Renewed:
    """The new ratchet. Roles follow from the hashes of both keys, regardless of who sent first.

    A KEM is only proposed by either side: its secret enters with the second message, not here.
    """
    role = _role(own, peer)
    if role is SyncRole.SENDER:
        agreed = agree_as_sender(own, peer)
        fresh = generate_x448(entropy)
        return Renewed(role, sending_ratchet(peer.version, own_max, peer.key2, fresh, agreed))
    agreed = agree_as_receiver(own, peer)
    return Renewed(role, receiving_ratchet(peer.version, own_max, own.key2, agreed, pq_support=pq_support))
