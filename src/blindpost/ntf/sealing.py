"""What the store holds: sealed under a key kept elsewhere, and found by blind names.

A blind name is a keyed hash. Without the key, the store reveals how many rows there are and their statuses,
but no device, router, queue or key.
"""

from __future__ import annotations

import hashlib
import hmac

from blindpost.crypto import aead
from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.crypto.kdf import hkdf
from blindpost.wire.e2e import TAG_SIZE

KEY_SIZE = 32
_IV_SIZE = 16


class Sealer:
    """Seals and names rows with keys that are derived from one."""

    __slots__ = ("_blind_key", "_entropy", "_seal_key")

    def __init__(self, key: bytes, entropy: Entropy = system_entropy) -> None:
        if len(key) != KEY_SIZE:
            raise ValueError(f"a key of {KEY_SIZE} bytes expected")
        derived = hkdf(b"", key, b"blindpost ntf store", 2 * KEY_SIZE)
        self._seal_key, self._blind_key = derived[:KEY_SIZE], derived[KEY_SIZE:]
        self._entropy = entropy

    def seal(self, row: bytes, content: bytes) -> bytes:
        """`content`, readable only with the key and only as a part of the row of this name."""
        iv = self._entropy(_IV_SIZE)
        tag, ciphertext = aead.seal(self._seal_key, iv, row, content)
        return b"".join((iv, tag, ciphertext))

    def unseal(self, row: bytes, sealed: bytes) -> bytes:
        """The sealed content, or `CryptoError`."""
        iv, tag = sealed[:_IV_SIZE], sealed[_IV_SIZE : _IV_SIZE + TAG_SIZE]
        return aead.unseal(self._seal_key, iv, row, tag, sealed[_IV_SIZE + TAG_SIZE :])

    def blind(self, kind: bytes, name: bytes) -> bytes:
        """The name under which rows of this kind are found."""
        return hmac.digest(self._blind_key, bytes((len(kind),)) + kind + name, hashlib.sha256)

    @property
    def mark(self) -> bytes:
        """What a store keeps to recognise its key."""
        return self.blind(b"mark", b"")
