"""Private keys as they travel and are stored: PKCS#8 DER of four algorithms, without attributes."""

from __future__ import annotations

import hashlib
import hmac

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import AUTH_ALGORITHMS, Algorithm
from blindpost.wire.primitives import Reader, Writer

_VERSION_0 = bytes.fromhex("020100")


def _prefix(algorithm: Algorithm) -> bytes:
    identifier = algorithm.spki_prefix[2:9]
    inner = bytes((0x04, algorithm.raw_size + 2, 0x04, algorithm.raw_size))
    content = _VERSION_0 + identifier + inner
    return bytes((0x30, len(content) + algorithm.raw_size)) + content


_PREFIXES = {algorithm: _prefix(algorithm) for algorithm in Algorithm}
_BY_PREFIX = {prefix: algorithm for algorithm, prefix in _PREFIXES.items()}
_PREFIX_SIZE = 16


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class EncodedPrivateKey:
    """An encoded private key. Prints its algorithm only; compares in constant time."""

    algorithm: Algorithm
    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != self.algorithm.raw_size:
            raise WireError(
                f"a private {self.algorithm.label} key of {self.algorithm.raw_size} bytes expected"
            )

    @property
    def pkcs8(self) -> bytes:
        return _PREFIXES[self.algorithm] + self.raw

    @classmethod
    def from_pkcs8(cls, der: bytes) -> EncodedPrivateKey:
        algorithm = _BY_PREFIX.get(der[:_PREFIX_SIZE])
        if algorithm is None or len(der) != _PREFIX_SIZE + algorithm.raw_size:
            raise WireError("a private key of a known algorithm in PKCS#8 DER expected")
        return cls(algorithm, der[_PREFIX_SIZE:])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EncodedPrivateKey):
            return NotImplemented
        return self.algorithm is other.algorithm and hmac.compare_digest(self.raw, other.raw)

    def __hash__(self) -> int:
        return hash(hashlib.sha256(self.raw).digest())

    def __repr__(self) -> str:
        return f"{self.algorithm.label}(private)"


def read_private_auth_key(reader: Reader) -> EncodedPrivateKey:
    """A private key that may authorize commands: Ed25519, Ed448 or X25519."""
    key = EncodedPrivateKey.from_pkcs8(reader.short())
    if key.algorithm not in AUTH_ALGORITHMS:
        raise WireError("a private authorization key expected")
    return key


def write_private_key(writer: Writer, key: EncodedPrivateKey) -> None:
    writer.short(key.pkcs8)
