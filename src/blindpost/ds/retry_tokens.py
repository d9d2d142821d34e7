"""Tokens by which a caller over QUIC shows that it receives what is sent to its address.

A service keeps nothing for a caller before that: the token holds what it must know again. Whoever can send a
datagram makes the service write or check one, so both must be cheap. A token is for the address that it was
sent to, and for a short time.
"""

from __future__ import annotations

import itertools
import os
import struct
import time
from collections.abc import Callable
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TOKEN_S = 30.0
"""A caller answers at once; the rest is for datagrams that are lost."""
_NONCE = struct.Struct(">Q4x")
_HEAD = struct.Struct(">dB")
"""When the token was written, and the length of the first connection id; both ids follow."""


class RetryTokens:
    """Writes and checks them, with a key that is known to nobody else and ends with the process."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._cipher = AESGCM(os.urandom(16))
        self._numbers = itertools.count()

    def create_token(self, addr: Any, original: bytes, chosen: bytes) -> bytes:
        """For a caller at `addr` that connects to the id `original`, and shall go on with `chosen`."""
        nonce = _NONCE.pack(next(self._numbers))
        content = _HEAD.pack(self._now(), len(original)) + original + chosen
        return nonce + self._cipher.encrypt(nonce, content, _place(addr))

    def validate_token(self, addr: Any, token: bytes) -> tuple[bytes, bytes]:
        """Both ids; `ValueError` for anything that was not written here for this caller, or too long ago."""
        try:
            content = self._cipher.decrypt(token[: _NONCE.size], token[_NONCE.size :], _place(addr))
        except InvalidTag:
            raise ValueError("this token was not written here for this caller") from None
        written, size = _HEAD.unpack_from(content)
        if not written <= self._now() <= written + TOKEN_S:
            raise ValueError("this token is too old")
        ids = content[_HEAD.size :]
        return ids[:size], ids[size:]


def _place(addr: Any) -> bytes:
    return f"{addr[0]} {addr[1]}".encode()
