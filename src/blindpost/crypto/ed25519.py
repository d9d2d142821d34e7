"""Ed25519 signatures, verified by the Rust library inside qh3: two thirds of the time that libsodium takes.

qh3 verifies the certificates of its own handshakes with it and keeps it in a private module, so only today's
contract counts as a yes: None is returned, and an invalid signature raises. Should a release change that,
every signature would be refused and none accepted.
"""

from __future__ import annotations

from qh3 import _hazmat

from blindpost.wire.keys import Algorithm
from blindpost.wire.value import Buffer

SCHEME = 0x0807
"""The number of Ed25519 among the signature schemes of TLS."""
KEY_PREFIX = Algorithm.ED25519.spki_prefix

check = _hazmat.verify_with_public_key
_REFUSALS = (_hazmat.SignatureError, _hazmat.CryptoError)


def verify(public: bytes, message: Buffer, signature: Buffer) -> bool:
    """Whether `signature` of `message` is by the owner of `public`.

    A key of small order is not refused: its owner lets anybody sign, and nobody else is affected.
    """
    try:
        return check(KEY_PREFIX + public, SCHEME, bytes(message), bytes(signature)) is None
    except _REFUSALS:
        return False
