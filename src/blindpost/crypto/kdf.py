"""HKDF with SHA-512, the only key derivation of these protocols.

Every block takes one derivation with an empty salt, so the two SHA-512 states that an all-zero HMAC key
leads to are computed once, and the expansion reuses the states of its own key. That halves the time of
the general-purpose functions, which start from the key every time.
"""

from __future__ import annotations

import hashlib
import hmac

from blindpost.crypto.errors import CryptoError

HASH_SIZE = 64
_BLOCK_SIZE = 128
OUTPUT_SIZE_MAX = 255 * HASH_SIZE

_sha512 = hashlib.sha512
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))
_INNER_REST = b"\x36" * (_BLOCK_SIZE - HASH_SIZE)
_OUTER_REST = b"\x5c" * (_BLOCK_SIZE - HASH_SIZE)
_ZERO_INNER = _sha512(b"\x36" * _BLOCK_SIZE)
_ZERO_OUTER = _sha512(b"\x5c" * _BLOCK_SIZE)
_CHAIN_FIRST, _CHAIN_SECOND, _CHAIN_REST = b"SimpleXSbChain\x01", b"SimpleXSbChain\x02", 88 - HASH_SIZE
_COUNTERS = tuple(bytes([count]) for count in range(256))


def chain_step(secret: bytes) -> bytes:
    """`hkdf(b"", secret, b"SimpleXSbChain", 88)`, written out: every block takes one."""
    inner, outer = _ZERO_INNER.copy(), _ZERO_OUTER.copy()
    inner.update(secret)
    outer.update(inner.digest())
    key = outer.digest()
    from_inner = _sha512(key.translate(_INNER) + _INNER_REST)
    from_outer = _sha512(key.translate(_OUTER) + _OUTER_REST)
    inner, outer = from_inner.copy(), from_outer.copy()
    inner.update(_CHAIN_FIRST)
    outer.update(inner.digest())
    first = outer.digest()
    from_inner.update(first + _CHAIN_SECOND)
    from_outer.update(from_inner.digest())
    return first + from_outer.digest()[:_CHAIN_REST]


def hkdf(salt: bytes, secret: bytes, info: bytes, size: int) -> bytes:
    """`size` bytes derived from `secret`; an empty salt stands for 64 zero bytes."""
    if size > OUTPUT_SIZE_MAX:
        raise CryptoError(f"at most {OUTPUT_SIZE_MAX} bytes can be derived, not {size}")
    if salt:
        key = hmac.digest(salt, secret, "sha512")
    else:
        inner, outer = _ZERO_INNER.copy(), _ZERO_OUTER.copy()
        inner.update(secret)
        outer.update(inner.digest())
        key = outer.digest()
    from_inner = _sha512(key.translate(_INNER) + _INNER_REST)
    from_outer = _sha512(key.translate(_OUTER) + _OUTER_REST)
    part = derived = b""
    rounds = -(-size // HASH_SIZE)
    for count in range(1, rounds + 1):
        last = count == rounds
        inner, outer = (from_inner, from_outer) if last else (from_inner.copy(), from_outer.copy())
        inner.update(part + info + _COUNTERS[count])
        outer.update(inner.digest())
        part = outer.digest()
        derived += part
    return derived[:size]
