"""Private keys: signatures, secrets, stored form, and what they print."""

from __future__ import annotations

import hmac
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x448 import X448PrivateKey, X448PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.keys import PrivateKey, verify
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from tests.support.wire.hostile import changed_everywhere, truncated_everywhere
from tests.support.wire.long_values import ramp

SIGNING = (Algorithm.ED25519, Algorithm.ED448)
AGREEING = (Algorithm.X25519, Algorithm.X448)
Independent = Ed25519PrivateKey | Ed448PrivateKey | X25519PrivateKey | X448PrivateKey
INDEPENDENT: dict[Algorithm, Callable[[bytes], Independent]] = {
    Algorithm.ED25519: Ed25519PrivateKey.from_private_bytes,
    Algorithm.ED448: Ed448PrivateKey.from_private_bytes,
    Algorithm.X25519: X25519PrivateKey.from_private_bytes,
    Algorithm.X448: X448PrivateKey.from_private_bytes,
}


def key_of(algorithm: Algorithm, first: int = 1) -> PrivateKey:
    return PrivateKey(algorithm, ramp(first, algorithm.raw_size))


@pytest.mark.parametrize("algorithm", Algorithm)
@given(data=st.data())
@settings(deadline=None, max_examples=20)
def test_public_key_and_stored_form_agree_with_cryptography(
    algorithm: Algorithm, data: st.DataObject
) -> None:
    raw = data.draw(st.binary(min_size=algorithm.raw_size, max_size=algorithm.raw_size))
    key, independent = PrivateKey(algorithm, raw), INDEPENDENT[algorithm](raw)
    assert key.public == PublicKey(algorithm, independent.public_key().public_bytes_raw())
    assert key.pkcs8 == independent.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    restored = PrivateKey.from_pkcs8(key.pkcs8)
    assert restored == key
    assert restored.raw == raw
    assert PrivateKey.decoded(key.encoded) == key


@pytest.mark.parametrize("algorithm", SIGNING)
@given(message=st.binary(max_size=100))
@settings(deadline=None, max_examples=20)
def test_signatures_agree_with_cryptography(algorithm: Algorithm, message: bytes) -> None:
    independent = INDEPENDENT[algorithm](key_of(algorithm).raw)
    assert isinstance(independent, Ed25519PrivateKey | Ed448PrivateKey)
    key = key_of(algorithm)
    assert key.sign(memoryview(message)) == independent.sign(message)
    assert key.sign(message) == independent.sign(message)
    assert verify(key.public, memoryview(message), memoryview(independent.sign(message)))


@pytest.mark.parametrize("algorithm", SIGNING)
def test_a_changed_signature_message_or_key_does_not_verify(algorithm: Algorithm) -> None:
    key = key_of(algorithm)
    signature = key.sign(b"hello")
    assert verify(key.public, b"hello", signature)
    for place in range(len(signature)):
        changed = bytearray(signature)
        changed[place] ^= 1
        assert not verify(key.public, b"hello", bytes(changed)), place
    assert verify(key.public, b"hallo", signature) is False
    assert not verify(key.public, b"hello", signature[:-1])
    assert not verify(key.public, b"hello", b"")
    assert not verify(key_of(algorithm, 2).public, b"hello", signature)


@pytest.mark.parametrize("algorithm", SIGNING)
def test_a_public_key_not_on_the_curve_verifies_nothing(algorithm: Algorithm) -> None:
    no_point = PublicKey(algorithm, b"\xff" * algorithm.raw_size)
    assert not verify(no_point, b"hello", key_of(algorithm).sign(b"hello"))


def test_agreement_keys_do_not_sign_and_vice_versa() -> None:
    for algorithm in AGREEING:
        with pytest.raises(CryptoError, match="do not sign"):
            key_of(algorithm).sign(b"hello")
        assert verify(key_of(algorithm).public, b"hello", bytes(64)) is False
        with pytest.raises(CryptoError, match="Ed25519 or Ed448"):
            key_of(algorithm).for_certificates()
    for algorithm in SIGNING:
        with pytest.raises(CryptoError, match="do not agree"):
            key_of(algorithm).agree(key_of(algorithm, 2).public)


def test_agreement_needs_one_algorithm_and_matches_cryptography() -> None:
    for algorithm in AGREEING:
        first, second = key_of(algorithm), key_of(algorithm, 2)
        assert first.agree(second.public) == second.agree(first.public)
    x25519 = X25519PrivateKey.from_private_bytes(key_of(Algorithm.X25519).raw)
    x448 = X448PrivateKey.from_private_bytes(key_of(Algorithm.X448).raw)
    peers = [key_of(algorithm, 2).public for algorithm in AGREEING]
    expected = x25519.exchange(X25519PublicKey.from_public_bytes(peers[0].raw))
    assert key_of(Algorithm.X25519).agree(peers[0]) == expected
    assert key_of(Algorithm.X448).agree(peers[1]) == x448.exchange(
        X448PublicKey.from_public_bytes(peers[1].raw)
    )
    with pytest.raises(CryptoError, match="a peer's X448 key expected"):
        key_of(Algorithm.X448).agree(peers[0])


@pytest.mark.parametrize("algorithm", AGREEING)
def test_a_peer_key_of_small_order_gives_zeros(algorithm: Algorithm) -> None:
    zero = PublicKey(algorithm, bytes(algorithm.raw_size))
    assert key_of(algorithm).agree(zero) == bytes(algorithm.raw_size)


@pytest.mark.parametrize("algorithm", SIGNING)
def test_the_certificate_key_is_the_same_key(algorithm: Algorithm) -> None:
    certificate_key = key_of(algorithm).for_certificates()
    assert certificate_key.private_bytes_raw() == key_of(algorithm).raw
    assert certificate_key.public_key().public_bytes_raw() == key_of(algorithm).public.raw


@pytest.mark.parametrize("algorithm", Algorithm)
def test_generated_from_the_given_entropy(algorithm: Algorithm) -> None:
    asked: list[int] = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return ramp(9, count)

    assert PrivateKey.generate(algorithm, entropy) == key_of(algorithm, 9)
    assert asked == [algorithm.raw_size]


def test_system_entropy_has_the_requested_size_and_never_repeats() -> None:
    assert len(system_entropy(24)) == 24
    assert system_entropy(24) != system_entropy(24)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_broken_stored_keys_are_refused(algorithm: Algorithm) -> None:
    good = key_of(algorithm).pkcs8
    assert truncated_everywhere(PrivateKey.from_pkcs8, good) == 0
    values = changed_everywhere(PrivateKey.from_pkcs8, good, "stored keys")
    assert values == algorithm.raw_size, "a change in the secret is another key, one before it is none"
    with pytest.raises(WireError):
        PrivateKey.from_pkcs8(good + b"\0")
    with pytest.raises(WireError):
        PrivateKey(algorithm, good)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_prints_as_the_fingerprint_of_its_public_key(algorithm: Algorithm) -> None:
    key = key_of(algorithm)
    assert repr(key) == f"private {key.public!r}"
    assert str(key) == f"{key}" == repr(key)
    assert key.public.raw.hex()[:12] not in repr(key)
    assert key.raw.hex()[:8] not in repr(key)


def test_secrets_compare_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def watched(first: bytes, second: bytes) -> bool:
        compared.append((first, second))
        return real(first, second)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    key, other = key_of(Algorithm.X25519), key_of(Algorithm.X25519, 2)
    assert key == key_of(Algorithm.X25519)
    assert key != other
    assert compared == [(key.raw, key.raw), (key.raw, other.raw)]
    compared.clear()
    assert BoxKey(bytes(32)) == BoxKey(bytes(32))
    assert BoxKey(bytes(32)) != BoxKey(ramp(1, 32))
    assert len(compared) == 2


def test_keys_of_two_algorithms_differ_even_with_the_same_bytes() -> None:
    assert key_of(Algorithm.X25519) != key_of(Algorithm.ED25519)
    same_bytes: list[tuple[object, object]] = [
        (key_of(Algorithm.X25519), key_of(Algorithm.X25519).raw),
        (BoxKey(bytes(32)), bytes(32)),
    ]
    for secret, raw in same_bytes:
        assert (secret == raw) is False


def test_secrets_have_no_hash() -> None:
    for secret in (key_of(Algorithm.X25519), BoxKey(bytes(32))):
        with pytest.raises(TypeError, match="unhashable"):
            hash(secret)
