"""Certificates and keys that operators bring, in the forms that other programs write."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from blindpost.crypto.pem import PemError, read_pair

KEY, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65_537, 2048)


def certificate_of(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ds.example")])
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )


def written(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
    form: PrivateFormat = PrivateFormat.PKCS8,
    passphrase: bytes = b"",
) -> bytes:
    sealed = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, form, sealed)


CHAIN = certificate_of(KEY)
PARAMETERS = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
GOOD = {
    "two files": (CHAIN, written(KEY)),
    "one file, key first": (written(KEY) + CHAIN, written(KEY) + CHAIN),
    "one file, certificate first": (CHAIN + written(KEY), CHAIN + written(KEY)),
    "OpenSSL's older form": (CHAIN, PARAMETERS + written(KEY, PrivateFormat.TraditionalOpenSSL)),
    "words around": (b"subject=ds\n" + CHAIN, b"Bag Attributes\n  friendlyName: ds\n" + written(KEY)),
    "ends of lines of Windows": (CHAIN.replace(b"\n", b"\r\n"), written(KEY).replace(b"\n", b"\r\n")),
    "an older form of RSA": (certificate_of(RSA), written(RSA, PrivateFormat.TraditionalOpenSSL)),
}
BAD = {
    "a passphrase": (CHAIN, written(KEY, passphrase=b"hello"), "nobody to ask"),
    "a passphrase in the older form": (
        CHAIN,
        written(KEY, PrivateFormat.TraditionalOpenSSL, b"hello"),
        "nobody to ask",
    ),
    "another key": (CHAIN, written(OTHER), "not the first certificate's"),
    "a key of another kind": (CHAIN, written(RSA), "not the first certificate's"),
    "another certificate first": (certificate_of(OTHER) + CHAIN, written(KEY), "not the first certificate's"),
    "no certificate": (written(KEY), written(KEY), "no certificate"),
    "no key": (CHAIN, CHAIN, "no private key"),
    "nothing": (b"", b"", "no certificate"),
    "a damaged certificate": (CHAIN[:80] + b"\n" + CHAIN[120:], written(KEY), "no certificate"),
    "a damaged key": (CHAIN, written(KEY).replace(b"M", b"N", 1), "damaged"),
    "half a key": (CHAIN, written(KEY)[:60], "no private key"),
}


@pytest.mark.parametrize("how", GOOD)
def test_pairs_that_other_programs_write_are_read(how: str) -> None:
    pair = read_pair(*GOOD[how])
    assert x509.load_pem_x509_certificates(pair.chain_pem) == list(pair.chain)
    assert pair.key_pem.startswith(b"-----BEGIN PRIVATE KEY-----")
    assert load_pem_private_key(pair.key_pem, None).public_key() == pair.chain[0].public_key()


@pytest.mark.parametrize("how", BAD)
def test_what_is_wrong_with_a_pair_is_told(how: str) -> None:
    chain, key, why = BAD[how]
    with pytest.raises(PemError, match=why):
        read_pair(chain, key)


def test_a_whole_chain_is_kept() -> None:
    chain = CHAIN + certificate_of(OTHER)
    assert read_pair(chain, written(KEY)).chain_pem == chain
