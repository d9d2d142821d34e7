"""Public keys as they travel: X.509 SubjectPublicKeyInfo DER of four algorithms, nothing else."""

from __future__ import annotations

import hashlib
from enum import Enum

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.primitives import Reader, Writer


class Algorithm(Enum):
    """A key algorithm with its DER prefixes and raw sizes."""

    __hash__ = object.__hash__  # members are single objects, and the enum's own hash is a call of Python

    ED25519 = ("Ed25519", "302a300506032b6570032100", 32)
    X25519 = ("X25519", "302a300506032b656e032100", 32)
    ED448 = ("Ed448", "3043300506032b6571033a00", 57)
    X448 = ("X448", "3042300506032b656f033900", 56)

    def __init__(self, label: str, spki_prefix: str, raw_size: int) -> None:
        self.label = label
        self.spki_prefix = bytes.fromhex(spki_prefix)
        self.raw_size = raw_size
        self.spki_size = len(self.spki_prefix) + raw_size


AUTH_ALGORITHMS = frozenset({Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519})
"""Algorithms of keys that may authorize a command."""

_new = object.__new__
_BY_PREFIX = {algorithm.spki_prefix: algorithm for algorithm in Algorithm}


@dataclass(frozen=True, slots=True, repr=False, init=False)
class PublicKey:
    """A public key; prints as a fingerprint."""

    algorithm: Algorithm
    raw: bytes

    def __init__(self, algorithm: Algorithm, raw: bytes) -> None:
        if len(raw) != algorithm.raw_size:
            raise WireError(f"a {algorithm.label} key of {algorithm.raw_size} bytes expected")
        _set_algorithm(self, algorithm)
        _set_raw(self, raw)

    @property
    def spki(self) -> bytes:
        return self.algorithm.spki_prefix + self.raw

    @classmethod
    def from_spki(cls, der: bytes) -> PublicKey:
        algorithm = _BY_PREFIX.get(der[:12])
        if algorithm is None or len(der) != algorithm.spki_size:
            raise WireError("a public key of a known algorithm in DER expected")
        key = _new(cls)
        _set_algorithm(key, algorithm)
        _set_raw(key, der[12:])
        return key

    def __repr__(self) -> str:
        return f"{self.algorithm.label}({hashlib.sha256(self.spki).hexdigest()[:12]})"


_set_algorithm, _set_raw = (PublicKey.__dict__[name].__set__ for name in ("algorithm", "raw"))
"""The slots themselves: a router makes two keys for each queue that it loads."""


def read_key(reader: Reader) -> PublicKey:
    """A key of any algorithm."""
    return PublicKey.from_spki(reader.short())


def read_auth_key(reader: Reader) -> PublicKey:
    """A key that may authorize commands: Ed25519, Ed448 or X25519."""
    key = read_key(reader)
    if key.algorithm not in AUTH_ALGORITHMS:
        raise WireError("an authorization key expected")
    return key


def read_x25519(reader: Reader) -> PublicKey:
    return _of(reader, Algorithm.X25519)


def read_ed25519(reader: Reader) -> PublicKey:
    return _of(reader, Algorithm.ED25519)


def read_x448(reader: Reader) -> PublicKey:
    return _of(reader, Algorithm.X448)


def _of(reader: Reader, algorithm: Algorithm) -> PublicKey:
    key = read_key(reader)
    if key.algorithm is not algorithm:
        raise WireError(f"a {algorithm.label} key expected")
    return key


def write_key(writer: Writer, key: PublicKey) -> None:
    writer.short(key.spki)
