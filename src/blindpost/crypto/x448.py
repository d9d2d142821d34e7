"""X448: all Diffie-Hellman of the key agreement and of the ratchet."""

from __future__ import annotations

import hmac

from blindpost.crypto.entropy import Entropy
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.keys import Algorithm, PublicKey

_NO_SECRET = bytes(Algorithm.X448.raw_size)


class LowOrderKeyError(CryptoError):
    """The peer's key leads to a secret that everybody knows."""


def generate_x448(entropy: Entropy) -> PrivateKey:
    return PrivateKey.generate(Algorithm.X448, entropy)


def shared_x448(private: PrivateKey, public: PublicKey) -> bytes:
    """The raw shared secret, not hashed. No honest peer has a key of low order, so one is refused."""
    secret = private.agree(public)
    if hmac.compare_digest(secret, _NO_SECRET):
        raise LowOrderKeyError("an X448 key of full order expected")
    return secret
