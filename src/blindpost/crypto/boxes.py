"""NaCl boxes as these protocols use them: every 32-byte secret goes through HSalsa20 first.

With a shared X25519 point this is `crypto_box`; with a symmetric key it is deliberately not
`crypto_secretbox` of that key.
"""

from __future__ import annotations

import hmac

from blindpost.crypto import sodium
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.errors import WireError
from blindpost.wire.keys import PublicKey
from blindpost.wire.padding import PAD_CONTENT_MAX, unpad
from blindpost.wire.value import Buffer

NONCE_SIZE = sodium.NONCE_SIZE
TAG_SIZE = sodium.TAG_SIZE
_TAG_ROOM = bytes(TAG_SIZE)


class BoxKey:
    """A secret made ready for many boxes: the HSalsa20 step is done once."""

    __slots__ = ("_subkey",)

    def __init__(self, secret: bytes) -> None:
        self._subkey = sodium.hsalsa20(secret)

    @classmethod
    def agreed(cls, private: PrivateKey, public: PublicKey) -> BoxKey:
        """The key of boxes between the owners of two X25519 keys."""
        return cls(private.agree(public))

    def seal(self, nonce: bytes, message: Buffer) -> bytes:
        """The box of `message`: 16 bytes of tag, then the ciphertext."""
        work = bytearray(TAG_SIZE)
        work += message
        sodium.seal_in_place(work, self._subkey, nonce)
        return bytes(work)

    def seal_padded(self, nonce: bytes, content: Buffer, size: int) -> memoryview:
        """The box of `content` padded to `size`: `size + 16` bytes."""
        return self.seal_parts(nonce, [content], len(content), size)

    def seal_parts(self, nonce: bytes, parts: list[Buffer], count: int, size: int) -> memoryview:
        """Like `seal_padded`, for content split into `parts` of `count` bytes in total: one copy in all."""
        work = _padded(parts, count, size)
        sodium.seal_in_place(work, self._subkey, nonce)
        return memoryview(work)

    def open(self, nonce: bytes, box: Buffer) -> memoryview:
        """The message in `box`, or `CryptoError`."""
        return memoryview(sodium.open_box(box, self._subkey, nonce))

    def open_padded(self, nonce: bytes, box: Buffer) -> memoryview:
        """The content of a padded box, without its padding."""
        return unpad(self.open(nonce, box))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoxKey):
            return NotImplemented
        return hmac.compare_digest(self._subkey, other._subkey)

    def __repr__(self) -> str:
        return "BoxKey(32 secret bytes)"


def seal_parts_once(secret: bytes, nonce: bytes, parts: list[Buffer], count: int, size: int) -> bytearray:
    """Like `BoxKey(secret).seal_parts`, for a secret whose key is not kept."""
    work = _padded(parts, count, size)
    sodium.seal_once(work, secret, nonce)
    return work


def _padded(parts: list[Buffer], count: int, size: int) -> bytearray:
    """The padded content behind room for the tag."""
    if count > PAD_CONTENT_MAX or count + 2 > size:
        raise WireError(f"{count} bytes do not fit into {size} padded bytes")
    return bytearray().join((_TAG_ROOM, count.to_bytes(2, "big"), *parts, b"#" * (size - 2 - count)))


def nonce_of(data: bytes) -> bytes:
    """A nonce from a correlation or message id: cut to 24 bytes, or extended with zeros."""
    if len(data) == NONCE_SIZE:
        return data
    return data[:NONCE_SIZE].ljust(NONCE_SIZE, b"\0")


def reversed_nonce(nonce: bytes) -> bytes:
    """The nonce of the answer to a forwarded command."""
    return nonce[::-1]
