"""Secrets at rest: sealed under a key that follows from a passphrase, or as they are when there is none.

The passphrase is stretched with Argon2id to a key that seals the store's own random key. A sealed value is
XChaCha20-Poly1305 under that one, with its place (table, column, row) as associated data.
"""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
import struct
from typing import Protocol

from nacl.pwhash import argon2id

from blindpost.agent.errors import AgentError
from blindpost.crypto import xaead
from blindpost.crypto.boxes import NONCE_SIZE, BoxKey
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.kdf import hkdf
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Buffer

KEY_SIZE = 32
SALT_SIZE = argon2id.SALTBYTES
_PASSES_MAX, _MEMORY_MAX_KIB = 64, 4 * 1024 * 1024
_HEAD = struct.Struct(f">BII{SALT_SIZE}s")
_FORMAT = 2


class PassphraseError(AgentError):
    """The passphrase does not open the store."""

    family = "STORE"
    remedy = "Give the passphrase that the store was made with, or none if it has none."


@dataclass(frozen=True, slots=True)
class Stretching:
    """How much work one guess at the passphrase is. Argon2id is hard on graphics cards by the memory that
    each guess takes; three passes over 128 MiB are half a second of one core, once for each opening."""

    passes: int = 3
    memory_kib: int = 128 * 1024

    def key(self, passphrase: str, salt: bytes) -> bytes:
        return argon2id.kdf(
            KEY_SIZE, passphrase.encode(), salt, opslimit=self.passes, memlimit=self.memory_kib * 1024
        )


STRETCHING = Stretching()


class Vault(Protocol):
    """Seals what goes into a secret column and opens what comes out of it.

    `column` is `table.column`; `row` are the values of the columns that `places.SEALED` names for it.
    """

    def seal(self, secret: Buffer, column: str, *row: str | int | bytes) -> bytes: ...

    def open(self, stored: bytes, column: str, *row: str | int | bytes) -> bytes: ...

    def blind(self, value: bytes, column: str) -> bytes:
        """What a value is looked for by."""
        ...


class PlainVault:
    """No passphrase: the file's own protection is all there is."""

    def seal(self, secret: Buffer, column: str, *row: str | int | bytes) -> bytes:
        return bytes(secret)

    def open(self, stored: bytes, column: str, *row: str | int | bytes) -> bytes:
        return stored

    def blind(self, value: bytes, column: str) -> bytes:
        return value


class SealedVault:
    """Every value under its own nonce, bound to its place."""

    def __init__(self, key: bytes, entropy: Entropy) -> None:
        derived = hkdf(b"", key, b"blindpost agent store", 2 * KEY_SIZE)
        self._seal_key, self._blind_key = derived[:KEY_SIZE], derived[KEY_SIZE:]
        self._entropy = entropy

    def seal(self, secret: Buffer, column: str, *row: str | int | bytes) -> bytes:
        nonce = self._entropy(xaead.NONCE_SIZE)
        return nonce + xaead.seal(self._seal_key, nonce, _place(column, row), bytes(secret))

    def open(self, stored: bytes, column: str, *row: str | int | bytes) -> bytes:
        nonce, sealed = stored[: xaead.NONCE_SIZE], stored[xaead.NONCE_SIZE :]
        return xaead.unseal(self._seal_key, nonce, _place(column, row), sealed)

    def blind(self, value: bytes, column: str) -> bytes:
        return hmac.digest(self._blind_key, _place(column, (value,)), hashlib.sha256)


def _place(column: str, row: tuple[str | int | bytes, ...]) -> bytes:
    """The associated data: no two places have the same."""
    parts = [column.encode()]
    for each in row:
        parts.append(each if isinstance(each, bytes) else str(each).encode())
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


class FirstFormat:
    """The vault of stores that were made before values were bound to their places; it only opens."""

    def __init__(self, passphrase: str, salt: bytes, check: bytes) -> None:
        memory = 64 * 1024 * 1024
        key = hashlib.scrypt(
            passphrase.encode(), salt=salt, n=1 << 15, r=8, p=1, maxmem=memory, dklen=KEY_SIZE
        )
        self._key = BoxKey(key)
        try:
            self.open(check)
        except CryptoError as error:
            raise PassphraseError("this is not the passphrase of the store") from error

    def open(self, stored: bytes) -> bytes:
        return bytes(self._key.open(stored[:NONCE_SIZE], stored[NONCE_SIZE:]))


def new_vault(passphrase: str, entropy: Entropy, stretching: Stretching) -> tuple[SealedVault, bytes]:
    """A vault with a new key, and what the store must keep to open it again."""
    salt, key = entropy(SALT_SIZE), entropy(KEY_SIZE)
    head = _HEAD.pack(_FORMAT, stretching.passes, stretching.memory_kib, salt)
    nonce = entropy(xaead.NONCE_SIZE)
    sealed = xaead.seal(stretching.key(passphrase, salt), nonce, head, key)
    return SealedVault(key, entropy), head + nonce + sealed


def known_vault(passphrase: str, kept: bytes, entropy: Entropy) -> SealedVault:
    """The vault of a store, or `PassphraseError`."""
    head, nonce = kept[: _HEAD.size], kept[_HEAD.size : _HEAD.size + xaead.NONCE_SIZE]
    try:
        number, passes, memory_kib, salt = _HEAD.unpack(head)
    except struct.error as error:
        raise PassphraseError("this store is damaged: what its key is made of cannot be read") from error
    if number != _FORMAT or not (0 < passes <= _PASSES_MAX and 0 < memory_kib <= _MEMORY_MAX_KIB):
        raise PassphraseError("this store is sealed in a way that this program does not know")
    stretched = Stretching(passes, memory_kib).key(passphrase, salt)
    try:
        key = xaead.unseal(stretched, nonce, head, kept[_HEAD.size + xaead.NONCE_SIZE :])
    except CryptoError as error:
        raise PassphraseError("this is not the passphrase of the store") from error
    return SealedVault(key, entropy)


def open_vault(
    sql: sqlite3.Connection, passphrase: str | None, entropy: Entropy, stretching: Stretching, *, new: bool
) -> tuple[Vault, FirstFormat | None]:
    """The vault of a store inside a transaction; a new store takes the passphrase that it is given.

    For a store of the first format it also returns what opens the old values, to seal them again.
    """
    names = "SELECT name, value FROM settings WHERE name IN ('salt', 'check', 'vault')"
    stored: dict[str, bytes] = dict(sql.execute(names))
    if not stored and passphrase is None:
        return PlainVault(), None
    if not stored and not new:
        raise PassphraseError("this store has no passphrase: open it without one")
    if passphrase is None:
        raise PassphraseError("this store is sealed: its passphrase is needed")
    if "vault" in stored:
        return known_vault(passphrase, stored["vault"], entropy), None
    first = FirstFormat(passphrase, stored["salt"], stored["check"]) if stored else None
    vault, kept = new_vault(passphrase, entropy, stretching)
    sql.execute("DELETE FROM settings WHERE name IN ('salt', 'check')")
    sql.execute("INSERT INTO settings (name, value) VALUES ('vault', ?)", (kept,))
    return vault, first
