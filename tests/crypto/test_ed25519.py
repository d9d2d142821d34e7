"""Verification of Ed25519 signatures, compared with libsodium's."""

from __future__ import annotations

from collections.abc import Callable

import nacl.bindings
import nacl.exceptions
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.crypto import ed25519, sodium
from blindpost.wire.value import Buffer
from tests.support.wire.long_values import ramp

GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
SEED = ramp(0, 32)
MESSAGE = b"a message that was signed"


def signed(seed: bytes, message: bytes) -> tuple[bytes, bytes]:
    """The public key and the signature."""
    expanded = sodium.ed25519_expand(seed)
    return expanded[32:], sodium.ed25519_sign(expanded, message)


def accepted_by_libsodium(public: bytes, message: bytes, signature: bytes) -> bool:
    try:
        nacl.bindings.crypto_sign_open(signature + message, public)
    except nacl.exceptions.BadSignatureError:
        return False
    return True


def flipped(data: bytes, bit: int) -> bytes:
    place = bit % (8 * len(data))
    return (int.from_bytes(data, "little") ^ 1 << place).to_bytes(len(data), "little")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_signature_verifies_in_any_buffer(kind: Callable[[bytes], Buffer]) -> None:
    public, signature = signed(SEED, MESSAGE)
    assert ed25519.verify(public, kind(MESSAGE), kind(signature)) is True


@given(
    seed=st.binary(min_size=32, max_size=32),
    message=st.binary(min_size=1, max_size=200),
    spoiled=st.sampled_from(("nothing", "key", "message", "signature")),
    bit=st.integers(min_value=0, max_value=2000),
)
@settings(deadline=None)
def test_the_verdict_is_that_of_libsodium(seed: bytes, message: bytes, spoiled: str, bit: int) -> None:
    public, signature = signed(seed, message)
    if spoiled == "key":
        public = flipped(public, bit)
    elif spoiled == "message":
        message = flipped(message, bit)
    elif spoiled == "signature":
        signature = flipped(signature, bit)
    verdict = ed25519.verify(public, message, signature)
    assert verdict is accepted_by_libsodium(public, message, signature)
    assert verdict is (spoiled == "nothing")


def test_a_signature_cannot_be_changed_into_another_valid_one() -> None:
    public, signature = signed(SEED, MESSAGE)
    scalar = int.from_bytes(signature[32:], "little") + GROUP_ORDER
    assert ed25519.verify(public, MESSAGE, signature[:32] + scalar.to_bytes(32, "little")) is False


@pytest.mark.parametrize("size", [0, 31, 33, 63, 65, 80, 114])
def test_wrong_lengths_are_refused(size: int) -> None:
    public, signature = signed(SEED, MESSAGE)
    assert ed25519.verify(public, MESSAGE, (signature + signature)[:size]) is False
    assert ed25519.verify((public * 4)[:size], MESSAGE, signature) is False


def test_a_key_that_is_no_point_of_the_curve_is_refused() -> None:
    _, signature = signed(SEED, MESSAGE)
    assert ed25519.verify(b"\2" + bytes(31), MESSAGE, signature) is False


def test_a_key_of_small_order_is_accepted_though_anybody_can_sign_for_it() -> None:
    neutral = b"\1" + bytes(31)
    assert ed25519.verify(neutral, MESSAGE, neutral + bytes(32)) is True
    assert accepted_by_libsodium(neutral, MESSAGE, neutral + bytes(32)) is False


@pytest.mark.parametrize("answer", [True, False, 1, b""])
def test_only_the_librarys_exact_success_value_verifies(
    monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    public, signature = signed(SEED, MESSAGE)
    monkeypatch.setattr(ed25519, "check", lambda *_: answer)
    assert ed25519.verify(public, MESSAGE, signature) is False
