"""HKDF against an independent implementation."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blindpost.crypto.errors import CryptoError
from blindpost.crypto.kdf import hkdf


@given(
    salt=st.binary(max_size=200),
    secret=st.binary(max_size=200),
    info=st.binary(max_size=200),
    size=st.integers(1, 400),
)
@example(salt=b"", secret=bytes(32), info=b"SimpleXSbChain", size=88)
@example(salt=bytes(64), secret=bytes(32), info=b"SimpleXSbChain", size=88)
@example(salt=bytes(129), secret=b"", info=b"", size=64)
@settings(deadline=None)
def test_agrees_with_cryptography(salt: bytes, secret: bytes, info: bytes, size: int) -> None:
    assert hkdf(salt, secret, info, size) == HKDF(SHA512(), size, salt, info).derive(secret)


def test_the_longest_output_and_one_byte_more() -> None:
    assert hkdf(b"", b"secret", b"", 255 * 64) == HKDF(SHA512(), 255 * 64, None, b"").derive(b"secret")
    with pytest.raises(CryptoError, match="at most 16320"):
        hkdf(b"", b"secret", b"", 255 * 64 + 1)
