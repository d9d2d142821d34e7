"""sntrup761 against the reference's values and against plain arithmetic."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from blindpost.crypto.kem import (
    SECRET_KEY_SIZE,
    Encapsulated,
    KemKeyPair,
    KemLibrary,
    decapsulate,
    encapsulate,
    generate_key_pair,
)
from blindpost.wire.e2e import KEM_CIPHERTEXT_SIZE, KEM_PUBLIC_KEY_SIZE
from blindpost.wire.errors import WireError
from tests.support.crypto import sntrup761
from tests.support.wire.vectors import named, vectors

REJECTED = "ss (implicit rejection)"
PAIRS = [entry for entry in vectors("sntrup761.json") if "encapsulations" in entry]
ZEROS = [
    entry for entry in vectors("sntrup761.json") if entry["name"].endswith("ciphertext of 1039 zero bytes")
]
DETERMINISTIC = vectors("sntrup761.json", "deterministic")


def pair_of(entry: dict[str, Any]) -> KemKeyPair:
    return KemKeyPair(bytes.fromhex(entry["pk"]), bytes.fromhex(entry["sk"]))


def test_every_vector_is_of_a_kind_that_is_tested() -> None:
    assert len(PAIRS) + len(ZEROS) + len(DETERMINISTIC) == len(vectors("sntrup761.json"))


@pytest.mark.parametrize("entry", PAIRS, ids=named)
def test_recorded_encapsulations_and_rejections(entry: dict[str, Any]) -> None:
    pair = pair_of(entry)
    check_pair(pair)
    for made in entry["encapsulations"]:
        ciphertext, secret = bytes.fromhex(made["ct"]), bytes.fromhex(made["ss"])
        assert decapsulate(pair, ciphertext) == secret
        check_encapsulation(pair, ciphertext, secret)
    for made in entry["rejections"]:
        ciphertext = bytes.fromhex(made["ct"])
        assert decapsulate(pair, ciphertext).hex() == made[REJECTED]
        assert own_secret(pair, ciphertext).hex() == made[REJECTED]


@pytest.mark.parametrize("entry", ZEROS, ids=named)
def test_recorded_rejection_of_zeros(entry: dict[str, Any]) -> None:
    (owner,) = [pair for pair in PAIRS if pair["name"] == entry["name"].partition(",")[0]]
    assert decapsulate(pair_of(owner), bytes(KEM_CIPHERTEXT_SIZE)).hex() == entry[REJECTED]


@pytest.mark.parametrize("entry", DETERMINISTIC, ids=named)
def test_recorded_values_follow_from_the_stated_randomness(entry: dict[str, Any]) -> None:
    """The library draws its own randomness, so the recorded keys are checked against plain arithmetic."""
    stream = hashlib.shake_256(entry["label"].encode()).digest(entry["keygen_bytes"] + entry["enc_bytes"])
    assert stream[:64].hex() == entry["stream_prefix"]
    small = sntrup761.small_of(sntrup761.random_words(stream))
    short = sntrup761.short_of(sntrup761.random_words(stream[3044:]))
    pair = pair_of(entry)
    secret_key = pair.secret_key
    assert secret_key[:191] == sntrup761.encode_small(short)
    assert secret_key[1540:1731] == stream[6088:6279]
    inverse = sntrup761.decode_small(secret_key[191:382])
    assert sntrup761.multiply(small, inverse, 3) == [1] + [0] * 760
    public = sntrup761.decode_public_key(pair.public_key)
    assert sntrup761.multiply(public, [3 * c for c in short], sntrup761.Q) == small
    check_pair(pair)
    ciphertext, secret = bytes.fromhex(entry["ct"]), bytes.fromhex(entry["ss"])
    used = sntrup761.short_of(sntrup761.random_words(stream[6279:]))
    assert sntrup761.decode_rounded(ciphertext[: sntrup761.ROUNDED_SIZE]) == sntrup761.rounded(
        sntrup761.multiply(public, used, sntrup761.Q)
    )
    assert check_encapsulation(pair, ciphertext, secret) == sntrup761.encode_small(used)
    assert decapsulate(pair, ciphertext) == secret
    flipped = bytes([ciphertext[0] ^ 1]) + ciphertext[1:]
    assert decapsulate(pair, flipped).hex() == entry["ss for ct with bit 0 of byte 0 flipped"]


def check_pair(pair: KemKeyPair) -> None:
    """A secret key holds f and 1/g, the public key, rho and the hash of the public key; h is g / 3f."""
    secret_key = pair.secret_key
    assert secret_key[382:1540] == pair.public_key
    assert secret_key[1731:] == sntrup761.hashed(4, pair.public_key)
    short = sntrup761.decode_small(secret_key[:191])
    assert sum(c != 0 for c in short) == sntrup761.W
    public = sntrup761.decode_public_key(pair.public_key)
    small = sntrup761.multiply(public, [3 * c for c in short], sntrup761.Q)
    assert set(small) == {-1, 0, 1}
    inverse = sntrup761.decode_small(secret_key[191:382])
    assert sntrup761.multiply(small, inverse, 3) == [1] + [0] * 760


def check_encapsulation(pair: KemKeyPair, ciphertext: bytes, secret: bytes) -> bytes:
    """Open the ciphertext by hand; its content determines the confirmation and the secret."""
    short = sntrup761.decode_small(pair.secret_key[:191])
    inverse = sntrup761.decode_small(pair.secret_key[191:382])
    body = sntrup761.decode_rounded(ciphertext[: sntrup761.ROUNDED_SIZE])
    masked = sntrup761.multiply(body, [3 * c for c in short], sntrup761.Q)
    hidden = sntrup761.multiply([sntrup761.centred(c, 3) for c in masked], inverse, 3)
    encoded = sntrup761.encode_small(hidden)
    inner = sntrup761.hashed(3, encoded)
    assert ciphertext[sntrup761.ROUNDED_SIZE :] == sntrup761.hashed(2, inner + pair.secret_key[1731:])
    assert secret == sntrup761.hashed(1, inner + ciphertext)
    return encoded


def own_secret(pair: KemKeyPair, ciphertext: bytes) -> bytes:
    """What a ciphertext that was not made for the pair decapsulates to."""
    return sntrup761.hashed(0, sntrup761.hashed(3, pair.secret_key[1540:1731]) + ciphertext)


def test_fresh_pairs_and_ciphertexts() -> None:
    library = KemLibrary()
    pair, other = library.key_pair(), library.key_pair()
    assert pair.public_key != other.public_key
    check_pair(pair)
    first, second = library.encapsulate(pair.public_key), library.encapsulate(pair.public_key)
    assert first.ciphertext != second.ciphertext
    assert decapsulate(pair, first.ciphertext) == first.secret
    check_encapsulation(pair, first.ciphertext, first.secret)
    assert decapsulate(other, first.ciphertext) == own_secret(other, first.ciphertext)


def test_wrong_sizes_are_refused() -> None:
    pair = pair_of(PAIRS[0])
    for size in (0, 1, KEM_PUBLIC_KEY_SIZE - 1, KEM_PUBLIC_KEY_SIZE + 1):
        with pytest.raises(WireError):
            encapsulate(bytes(size))
        with pytest.raises(WireError):
            KemKeyPair(bytes(size), pair.secret_key)
    for size in (0, 1, KEM_CIPHERTEXT_SIZE - 1, KEM_CIPHERTEXT_SIZE + 1):
        with pytest.raises(WireError):
            decapsulate(pair, bytes(size))
        with pytest.raises(WireError):
            Encapsulated(bytes(size), bytes(32))
    for size in (0, SECRET_KEY_SIZE - 1, SECRET_KEY_SIZE + 1):
        with pytest.raises(WireError):
            KemKeyPair(pair.public_key, bytes(size))
    with pytest.raises(WireError):
        Encapsulated(bytes(KEM_CIPHERTEXT_SIZE), bytes(31))


def test_pairs_print_as_fingerprints() -> None:
    pair = pair_of(PAIRS[0])
    fingerprint = hashlib.sha256(pair.public_key).hexdigest()[:12]
    assert repr(pair) == f"sntrup761({fingerprint})"
    made = Encapsulated(bytes(KEM_CIPHERTEXT_SIZE), bytes(32))
    assert repr(made) == "Encapsulated(ciphertext=<1039 bytes>, secret=<32 bytes>)"


def test_a_fresh_pair_agrees_with_plain_arithmetic() -> None:
    check_pair(generate_key_pair())
