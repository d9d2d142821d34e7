"""Provider tokens: the bytes that Apple expects, reused for half an hour and never for a whole one."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from blindpost.ntf.push.provider_tokens import ProviderTokens, SigningKey, SigningKeyError, provider_token
from blindpost.wire.text import unb64

NOW = 1_700_000_000


def signing_key() -> SigningKey:
    return SigningKey(ec.generate_private_key(ec.SECP256R1()), "ABCDE12345", "5NN7GUYB6T")


def pem_of(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_the_signed_part_is_that_of_the_golden_vector() -> None:
    content, _, _ = provider_token(signing_key(), NOW).rpartition(".")
    assert content == (
        "eyJhbGciOiJFUzI1NiIsImtpZCI6IkFCQ0RFMTIzNDUifQ.eyJpc3MiOiI1Tk43R1VZQjZUIiwiaWF0IjoxNzAwMDAwMDAwfQ"
    )


def test_the_signature_is_r_and_s_of_32_bytes_each() -> None:
    signing = signing_key()
    for issued_at in range(NOW, NOW + 20):
        content, _, written = provider_token(signing, issued_at).rpartition(".")
        signature = unb64(written)
        assert len(signature) == 64
        r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
        public = signing.key.public_key()
        public.verify(encode_dss_signature(r, s), content.encode(), ec.ECDSA(hashes.SHA256()))


def test_a_token_is_used_again_and_renewed_before_apple_refuses_it() -> None:
    now = float(NOW)
    tokens = ProviderTokens(signing_key(), lambda: now)
    first = tokens.current()
    now = NOW + 1799.0
    assert tokens.current() == first
    now = NOW + 1800.0
    second = tokens.current()
    assert second != first
    assert tokens.current() == second


def test_a_clock_set_back_makes_a_new_token() -> None:
    now = float(NOW)
    tokens = ProviderTokens(signing_key(), lambda: now)
    first = tokens.current()
    now = NOW - 10.0
    assert tokens.current() != first


def test_a_refused_token_is_not_used_again_and_an_older_refusal_changes_nothing() -> None:
    now = float(NOW)
    tokens = ProviderTokens(signing_key(), lambda: now)
    first = tokens.current()
    tokens.refused(first)
    now += 1
    second = tokens.current()
    assert second != first
    tokens.refused(first)
    assert tokens.current() == second


def test_the_token_that_apple_took_last_is_used_again_if_others_came_too_soon() -> None:
    now = float(NOW)
    tokens = ProviderTokens(signing_key(), lambda: now)
    first = tokens.current()
    tokens.changed_too_often(first)
    assert tokens.current() == first, "there is no other one"
    tokens.accepted(first)
    now -= 100
    second = tokens.current()
    tokens.changed_too_often(first)
    assert tokens.current() == second, "that was said of another one"
    tokens.changed_too_often(second)
    assert tokens.current() == first
    tokens.refused(first)
    now += 1
    third = tokens.current()
    tokens.changed_too_often(third)
    assert tokens.current() == third, "Apple does not take the first one any more"


def test_a_key_is_read_from_the_file_that_apple_issues(tmp_path: Path) -> None:
    file = tmp_path / "AuthKey.p8"
    key = ec.generate_private_key(ec.SECP256R1())
    file.write_bytes(pem_of(key))
    read = SigningKey.from_file(file, "KID", "TEAM")
    assert read.key.private_numbers() == key.private_numbers()
    assert (read.key_id, read.team_id) == ("KID", "TEAM")
    assert str(key.private_numbers().private_value) not in repr(read)


@pytest.mark.parametrize(
    ("pem", "told"),
    [
        (b"not a key", "PKCS#8"),
        (pem_of(ec.generate_private_key(ec.SECP384R1())), "P-256"),
        (pem_of(rsa.generate_private_key(65537, 2048)), "P-256"),
    ],
)
def test_other_keys_are_refused_with_an_explanation(pem: bytes, told: str) -> None:
    with pytest.raises(SigningKeyError, match=told):
        SigningKey.from_pem(pem, "KID", "TEAM")


def test_a_missing_file_is_refused_with_an_explanation(tmp_path: Path) -> None:
    with pytest.raises(SigningKeyError, match="cannot be read"):
        SigningKey.from_file(tmp_path / "absent", "KID", "TEAM")
