"""XChaCha20-Poly1305: nonces of 24 bytes, which may be drawn at random for as long as a key is used."""

from __future__ import annotations

from nacl import bindings
from nacl.exceptions import CryptoError as SodiumError

from blindpost.crypto.aead import AeadError

NONCE_SIZE = bindings.crypto_aead_xchacha20poly1305_ietf_NPUBBYTES


def seal(key: bytes, nonce: bytes, associated: bytes, plaintext: bytes) -> bytes:
    """Ciphertext and tag."""
    return bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(plaintext, associated, nonce, key)


def unseal(key: bytes, nonce: bytes, associated: bytes, sealed: bytes) -> bytes:
    try:
        return bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(sealed, associated, nonce, key)
    except (SodiumError, ValueError, TypeError):
        raise AeadError("the authentication tag does not fit") from None
