"""Streamlined NTRU Prime 761 in plain arithmetic, independent of the library that it checks."""

from __future__ import annotations

import hashlib

P, Q, W = 761, 4591, 286
HALF = (Q - 1) // 2
SMALL_SIZE = 191
ROUNDED_SIZE = 1007
_LIMIT = 16384


def multiply(left: list[int], right: list[int], modulus: int) -> list[int]:
    """The product modulo x^P - x - 1 and `modulus`, centred around zero."""
    width = 5
    packed = [
        int.from_bytes(b"".join((c % modulus).to_bytes(width, "little") for c in poly), "little")
        for poly in (left, right)
    ]
    product = (packed[0] * packed[1]).to_bytes(width * 2 * P, "little")
    wide = [int.from_bytes(product[i * width : (i + 1) * width], "little") for i in range(2 * P - 1)]
    for i in range(2 * P - 2, P - 1, -1):
        wide[i - P] += wide[i]
        wide[i - P + 1] += wide[i]
    return [centred(c, modulus) for c in wide[:P]]


def centred(number: int, modulus: int) -> int:
    return (number + modulus // 2) % modulus - modulus // 2


def hashed(prefix: int, data: bytes) -> bytes:
    return hashlib.sha512(bytes([prefix]) + data).digest()[:32]


def random_words(stream: bytes) -> list[int]:
    return [int.from_bytes(stream[i : i + 4], "little") for i in range(0, 4 * P, 4)]


def small_of(words: list[int]) -> list[int]:
    """A random polynomial with coefficients -1, 0, 1."""
    return [(((word & 0x3FFFFFFF) * 3) >> 30) - 1 for word in words]


def short_of(words: list[int]) -> list[int]:
    """A random polynomial with exactly W coefficients -1 or 1."""
    marked = [word & ~1 if i < W else (word & ~3) | 1 for i, word in enumerate(words)]
    return [(word & 3) - 1 for word in sorted(marked)]


def encode_small(poly: list[int]) -> bytes:
    digits = [*(c + 1 for c in poly), 0, 0, 0]
    return bytes(sum(digits[i + j] << (2 * j) for j in range(4)) for i in range(0, P, 4))


def decode_small(data: bytes) -> list[int]:
    return [((byte >> (2 * j)) & 3) - 1 for byte in data for j in range(4)][:P]


def decode_public_key(data: bytes) -> list[int]:
    return [c - HALF for c in _decode(list(data), [Q] * P)]


def decode_rounded(data: bytes) -> list[int]:
    return [3 * c - HALF for c in _decode(list(data), [(Q + 2) // 3] * P)]


def rounded(poly: list[int]) -> list[int]:
    return [c - centred(c, 3) for c in poly]


def _decode(data: list[int], limits: list[int]) -> list[int]:
    if len(limits) == 1:
        return [sum(byte << (8 * i) for i, byte in enumerate(data)) % limits[0]]
    taken, low, above = 0, [], []
    for i in range(0, len(limits) - 1, 2):
        limit, value, scale = limits[i] * limits[i + 1], 0, 1
        while limit >= _LIMIT:
            value += data[taken] * scale
            scale *= 256
            taken += 1
            limit = (limit + 255) // 256
        low.append((value, scale))
        above.append(limit)
    if len(limits) % 2:
        above.append(limits[-1])
    high = _decode(data[taken:], above)
    decoded = []
    for i, (value, scale) in enumerate(low):
        value += scale * high[i]
        decoded += [value % limits[2 * i], value // limits[2 * i] % limits[2 * i + 1]]
    return decoded + high[len(low) :]
