"""Long values of the vectors: written as length, prefix and SHA-256, and rebuilt or compared here."""

from __future__ import annotations

import hashlib
from typing import Any

from blindpost.wire.value import Buffer


def whole(value: Any) -> bytes:
    """The bytes of an input; a long one goes on as its prefix ends, and its hash must say so."""
    if isinstance(value, str):
        return bytes.fromhex(value)
    prefix = bytes.fromhex(value["prefix"])
    data: bytes = prefix + prefix[-1:] * (value["length"] - len(prefix))
    assert hashlib.sha256(data).hexdigest() == value["sha256"]
    return data


def same(data: Buffer, value: Any) -> bool:
    """Whether `data` is the expected value, whole or described."""
    if isinstance(value, str):
        return bytes(data) == bytes.fromhex(value)
    return (
        len(data) == value["length"]
        and bytes(data[:64]) == bytes.fromhex(value["prefix"])
        and hashlib.sha256(data).hexdigest() == value["sha256"]
    )


def ramp(first: int, count: int) -> bytes:
    """`count` bytes that go up by one from `first`, as the documents write their inputs."""
    return bytes((first + place) % 256 for place in range(count))
