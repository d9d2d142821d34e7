"""Private keys of the four algorithms in use: signatures and shared secrets.

Curve25519 goes through libsodium (twice as fast), but for verification; Curve448 through `cryptography`.
"""

from __future__ import annotations

import hmac
from typing import cast

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey, Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x448 import X448PrivateKey, X448PublicKey

from blindpost.crypto import sodium
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.errors import CryptoError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.private_keys import EncodedPrivateKey
from blindpost.wire.value import Buffer

CertificateKey = Ed25519PrivateKey | Ed448PrivateKey


class PrivateKey:
    """A private key; prints as the fingerprint of its public key, compares in constant time.

    It defines equality and therefore has no hash: a secret must not choose a slot in a table.
    """

    __slots__ = ("_loaded", "_public", "algorithm", "raw")

    def __init__(self, algorithm: Algorithm, raw: bytes) -> None:
        if len(raw) != algorithm.raw_size:
            raise CryptoError(f"a private {algorithm.label} key of {algorithm.raw_size} bytes expected")
        self.algorithm = algorithm
        self.raw = bytes(raw)
        self._public: PublicKey | None = None
        self._loaded: bytes | Ed448PrivateKey | X448PrivateKey | None = None
        """The key as its library uses it: making that of a key takes as long as using it."""

    @classmethod
    def generate(cls, algorithm: Algorithm, entropy: Entropy) -> PrivateKey:
        return cls(algorithm, entropy(algorithm.raw_size))

    @classmethod
    def decoded(cls, key: EncodedPrivateKey) -> PrivateKey:
        """A key that came over the wire, ready for use."""
        return cls(key.algorithm, key.raw)

    @classmethod
    def from_pkcs8(cls, der: bytes) -> PrivateKey:
        return cls.decoded(EncodedPrivateKey.from_pkcs8(der))

    @property
    def encoded(self) -> EncodedPrivateKey:
        return EncodedPrivateKey(self.algorithm, self.raw)

    @property
    def pkcs8(self) -> bytes:
        return self.encoded.pkcs8

    @property
    def public(self) -> PublicKey:
        if self._public is None:
            self._public = PublicKey(self.algorithm, self._public_raw())
        return self._public

    def _public_raw(self) -> bytes:
        match self.algorithm:
            case Algorithm.ED25519:
                return sodium.ed25519_expand(self.raw)[32:]
            case Algorithm.X25519:
                return sodium.x25519_public(self.raw)
            case Algorithm.ED448:
                return Ed448PrivateKey.from_private_bytes(self.raw).public_key().public_bytes_raw()
            case Algorithm.X448:
                return self._x448().public_key().public_bytes_raw()

    def _x448(self) -> X448PrivateKey:
        if self._loaded is None:
            self._loaded = X448PrivateKey.from_private_bytes(self.raw)
        return cast(X448PrivateKey, self._loaded)

    def sign(self, message: Buffer) -> bytes:
        """The pure EdDSA signature, without context."""
        signing = self._loaded
        if self.algorithm is Algorithm.ED25519:
            if not isinstance(signing, bytes):
                signing = self._loaded = sodium.ed25519_expand(self.raw)
            return sodium.ed25519_sign(signing, message)
        if self.algorithm is Algorithm.ED448:
            if not isinstance(signing, Ed448PrivateKey):
                signing = self._loaded = Ed448PrivateKey.from_private_bytes(self.raw)
            return signing.sign(message)
        raise CryptoError(f"{self.algorithm.label} keys do not sign")

    def agree(self, public: PublicKey) -> bytes:
        """The raw shared secret with `public`, a key of the same algorithm.

        A public key of small order gives zeros, as in the reference; see `sodium.x25519`.
        """
        if public.algorithm is not self.algorithm:
            raise CryptoError(f"a peer's {self.algorithm.label} key expected")
        if self.algorithm is Algorithm.X25519:
            return sodium.x25519(self.raw, public.raw)
        if self.algorithm is Algorithm.X448:
            try:
                return self._x448().exchange(X448PublicKey.from_public_bytes(public.raw))
            except ValueError:
                return bytes(Algorithm.X448.raw_size)
        raise CryptoError(f"{self.algorithm.label} keys do not agree on secrets")

    def for_certificates(self) -> CertificateKey:
        """The same key as an object of `cryptography`, for certificates and TLS."""
        if self.algorithm is Algorithm.ED25519:
            return Ed25519PrivateKey.from_private_bytes(self.raw)
        if self.algorithm is Algorithm.ED448:
            return Ed448PrivateKey.from_private_bytes(self.raw)
        raise CryptoError("an Ed25519 or Ed448 key expected")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PrivateKey):
            return NotImplemented
        return self.algorithm is other.algorithm and hmac.compare_digest(self.raw, other.raw)

    def __repr__(self) -> str:
        return f"private {self.public!r}"


_VERIFIED_BY: dict[Algorithm, type[Ed25519PublicKey] | type[Ed448PublicKey]] = {
    Algorithm.ED25519: Ed25519PublicKey,
    Algorithm.ED448: Ed448PublicKey,
}


def verify(public: PublicKey, message: Buffer, signature: Buffer) -> bool:
    """Whether `signature` of `message` is by the owner of `public`; False also for a key that cannot sign."""
    kind = _VERIFIED_BY.get(public.algorithm)
    if kind is None:
        return False
    try:
        kind.from_public_bytes(public.raw).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
