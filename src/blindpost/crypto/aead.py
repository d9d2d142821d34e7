"""AES-256-GCM with the 16-byte IVs that the ratchet uses, tag and ciphertext apart."""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from blindpost.crypto.errors import CryptoError
from blindpost.wire.e2e import TAG_SIZE
from blindpost.wire.value import Buffer


class AeadError(CryptoError):
    """The tag does not fit: another key, or changed bytes."""


def seal(key: bytes, iv: bytes, associated: Buffer, plaintext: Buffer) -> tuple[bytes, memoryview]:
    """The tag and the ciphertext."""
    sealed = memoryview(AESGCM(key).encrypt(iv, plaintext, associated))
    return bytes(sealed[-TAG_SIZE:]), sealed[:-TAG_SIZE]


def unseal(key: bytes, iv: bytes, associated: Buffer, tag: bytes, ciphertext: Buffer) -> bytes:
    try:
        return AESGCM(key).decrypt(iv, b"".join((ciphertext, tag)), associated)
    except InvalidTag:
        raise AeadError("the authentication tag does not fit") from None
