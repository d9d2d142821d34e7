"""Numbers in place of names, by day: tier L distinguishes the things of one day and no more.

The key of a day is random, lives in memory only and is forgotten two days later: after that nobody can
say which number stood for what, and the numbers of two days have nothing in common.
"""

from __future__ import annotations

from hashlib import blake2b

from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.journal.folder import DAY_S

_KEY_SIZE = 32
_DAYS = 2


class Blinding:
    """The keys of one process for one kind of data: SMP, NTF and DS each have their own."""

    def __init__(self, entropy: Entropy = system_entropy) -> None:
        self._entropy = entropy
        self._keys: dict[int, bytes] = {}

    def number(self, name: bytes, seconds: float) -> int:
        """What stands for `name` on the day of `seconds`: a signed number of 64 bits."""
        digest = blake2b(name, digest_size=8, key=self._key(int(seconds) // DAY_S)).digest()
        return int.from_bytes(digest, "big", signed=True)

    def _key(self, day: int) -> bytes:
        key = self._keys.get(day) or self._entropy(_KEY_SIZE)
        self._keys[day] = key
        for old in sorted(self._keys)[:-_DAYS]:
            del self._keys[old]
        return key
