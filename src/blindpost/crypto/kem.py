"""sntrup761, the post-quantum half of the key agreement and of the ratchet.

A ciphertext that was not made for a key decapsulates to a secret nobody else has, without an error:
the failure shows where that secret is used.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

from pqcrypto.kem import sntrup_761

from blindpost.wire.e2e import KEM_CIPHERTEXT_SIZE, KEM_PUBLIC_KEY_SIZE
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value

SECRET_KEY_SIZE = 1763
SHARED_SECRET_SIZE = 32


@dataclass(frozen=True, slots=True, repr=False)
class KemKeyPair:
    """A key pair; prints as the fingerprint of its public half."""

    public_key: bytes
    secret_key: bytes

    def __post_init__(self) -> None:
        if len(self.public_key) != KEM_PUBLIC_KEY_SIZE or len(self.secret_key) != SECRET_KEY_SIZE:
            raise WireError("an sntrup761 key pair expected")

    def __repr__(self) -> str:
        return f"sntrup761({hashlib.sha256(self.public_key).hexdigest()[:12]})"


@dataclass(frozen=True, slots=True, repr=False)
class Encapsulated(Value):
    """A shared secret and what lets the owner of the key find it."""

    ciphertext: bytes
    secret: bytes

    def __post_init__(self) -> None:
        if len(self.ciphertext) != KEM_CIPHERTEXT_SIZE or len(self.secret) != SHARED_SECRET_SIZE:
            raise WireError("an sntrup761 ciphertext and secret expected")


class KemSource(Protocol):
    """Where the random parts of a KEM come from: the library, a pool of pairs, or recorded values."""

    def key_pair(self) -> KemKeyPair: ...

    def encapsulate(self, public_key: bytes) -> Encapsulated: ...


class KemLibrary:
    """Fresh values from the library. Making a pair takes tens of milliseconds and holds the interpreter."""

    def key_pair(self) -> KemKeyPair:
        return generate_key_pair()

    def encapsulate(self, public_key: bytes) -> Encapsulated:
        return encapsulate(public_key)


def generate_key_pair() -> KemKeyPair:
    public_key, secret_key = sntrup_761.keygen()
    return KemKeyPair(public_key, secret_key)


def encapsulate(public_key: bytes) -> Encapsulated:
    """A new secret for the owner of `public_key`."""
    try:
        ciphertext, secret = sntrup_761.encaps(public_key)
    except ValueError as error:
        raise WireError("an sntrup761 public key expected") from error
    return Encapsulated(ciphertext, secret)


def decapsulate(pair: KemKeyPair, ciphertext: bytes) -> bytes:
    """The secret behind `ciphertext`, or a secret only we have when it was not made for this pair."""
    try:
        secret: bytes = sntrup_761.decaps(pair.secret_key, ciphertext)
    except ValueError as error:
        raise WireError("an sntrup761 ciphertext expected") from error
    return secret
