"""Secrets at rest: sealed under a key that follows from a passphrase, or as they are when there is none."""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Protocol

from blindpost.crypto.boxes import NONCE_SIZE, BoxKey
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.errors import CryptoError
from blindpost.wire.value import Buffer

SALT_SIZE = 16
_CHECK = b"Blindpost agent"
_COST, _BLOCK, _PARALLEL = 1 << 15, 8, 1
_MEMORY = 64 * 1024 * 1024


class PassphraseError(Exception):
    """The passphrase does not open the store."""


class Vault(Protocol):
    """Seals what goes into a secret column and opens what comes out of it."""

    def seal(self, secret: Buffer) -> bytes: ...

    def open(self, stored: bytes) -> bytes: ...


class PlainVault:
    """No passphrase: the file's own protection is all there is."""

    def seal(self, secret: Buffer) -> bytes:
        return bytes(secret)

    def open(self, stored: bytes) -> bytes:
        return stored


class SealedVault:
    """Every value under a nonce of its own."""

    def __init__(self, key: bytes, entropy: Entropy) -> None:
        self._key = BoxKey(key)
        self._entropy = entropy

    def seal(self, secret: Buffer) -> bytes:
        nonce = self._entropy(NONCE_SIZE)
        return nonce + self._key.seal(nonce, secret)

    def open(self, stored: bytes) -> bytes:
        return bytes(self._key.open(stored[:NONCE_SIZE], stored[NONCE_SIZE:]))


def stretched(passphrase: str, salt: bytes) -> bytes:
    """A key that takes a tenth of a second and 32 MB to try."""
    return hashlib.scrypt(
        passphrase.encode(), salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL, maxmem=_MEMORY, dklen=32
    )


def open_vault(sql: sqlite3.Connection, passphrase: str | None, entropy: Entropy, *, new: bool) -> Vault:
    """The vault of a store inside a transaction; a new store takes the passphrase that it is given."""
    stored = dict(sql.execute("SELECT name, value FROM settings WHERE name IN ('salt', 'check')"))
    if not stored:
        if passphrase is None:
            return PlainVault()
        if not new:
            raise PassphraseError("this store has no passphrase: open it without one")
        salt = entropy(SALT_SIZE)
        vault = SealedVault(stretched(passphrase, salt), entropy)
        rows = [("salt", salt), ("check", vault.seal(_CHECK))]
        sql.executemany("INSERT INTO settings (name, value) VALUES (?, ?)", rows)
        return vault
    if passphrase is None:
        raise PassphraseError("this store is sealed: its passphrase is needed")
    vault = SealedVault(stretched(passphrase, stored["salt"]), entropy)
    try:
        vault.open(stored["check"])
    except CryptoError as error:
        raise PassphraseError("this is not the passphrase of the store") from error
    return vault
