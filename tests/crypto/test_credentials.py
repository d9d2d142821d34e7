"""Our own certificates: their shape, and the session keys they sign."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from blindpost.crypto.chains import (
    fingerprint,
    leaf_key,
    validate_router_chain,
    validate_service_chain,
)
from blindpost.crypto.credentials import (
    Authority,
    Credentials,
    issue_router,
    make_authority,
    make_service,
    sign_session_key,
    verify_session_key,
)
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import decode_whole, encode
from blindpost.wire.signed_key import SignedKey, read_cert_key, write_cert_key
from tests.support.wire.long_values import ramp

NOW = 1_700_000_000
START = datetime.fromtimestamp(NOW, UTC)
SIGNING = (Algorithm.ED25519, Algorithm.ED448)
SESSION_KEY = PrivateKey(Algorithm.X25519, ramp(0x40, 32)).public


def entropy_from(first: int) -> Entropy:
    """Different bytes for each request, the same in every run."""
    requests = iter(range(first, 1000))
    return lambda count: ramp(next(requests), count)


def router(algorithm: Algorithm = Algorithm.ED25519) -> tuple[Authority, Credentials]:
    entropy = entropy_from(1)
    authority = make_authority(NOW, entropy, algorithm)
    return authority, issue_router(authority, "smp.example.org", NOW, entropy, algorithm)


def loaded(der: bytes) -> x509.Certificate:
    return x509.load_der_x509_certificate(der)


def dates(certificate: x509.Certificate) -> tuple[datetime, datetime]:
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


@pytest.mark.parametrize("algorithm", SIGNING)
def test_shape_of_an_authority(algorithm: Algorithm) -> None:
    authority, _ = router(algorithm)
    certificate = loaded(authority.certificate)
    assert certificate.version is x509.Version.v3
    assert certificate.subject.rfc4514_string() == "O=SimpleX,CN=SMP server CA"
    assert certificate.issuer == certificate.subject
    assert dates(certificate) == (START, START + timedelta(days=999_999))
    assert dates(certificate)[1].year > 4700
    spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert spki == authority.key.public.spki
    assert authority.key.algorithm is algorithm
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca) == (True, True)
    subject_id = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    authority_id = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert authority_id.key_identifier == subject_id.digest
    certificate.verify_directly_issued_by(certificate)


@pytest.mark.parametrize("algorithm", SIGNING)
def test_shape_of_a_router_leaf(algorithm: Algorithm) -> None:
    authority, credentials = router(algorithm)
    leaf = loaded(credentials.chain[0])
    assert credentials.chain[1:] == (authority.certificate,)
    assert credentials.fingerprint == fingerprint(authority.certificate)
    assert credentials.key.public == leaf_key(credentials.chain)
    assert credentials.key != authority.key
    assert leaf.subject.rfc4514_string() == "CN=smp.example.org"
    assert dates(leaf) == (START, START + timedelta(days=999_999))
    extensions = leaf.extensions
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.digital_signature, usage.content_commitment, usage.key_agreement) == (True, True, True)
    assert not any((usage.key_encipherment, usage.data_encipherment, usage.key_cert_sign, usage.crl_sign))
    purposes = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.SERVER_AUTH]
    leaf.verify_directly_issued_by(loaded(authority.certificate))
    validate_router_chain(credentials.chain, credentials.fingerprint, NOW)


def test_two_leaves_of_one_authority_keep_the_identity() -> None:
    authority, first = router()
    second = issue_router(authority, "smp.example.org", NOW, entropy_from(50), Algorithm.ED448)
    assert first.fingerprint == second.fingerprint
    assert first.key != second.key
    assert loaded(first.chain[0]).serial_number != loaded(second.chain[0]).serial_number
    validate_router_chain(second.chain, first.fingerprint, NOW)


@pytest.mark.parametrize("byte", [0x00, 0xFF])
def test_serial_numbers_are_positive_and_short_for_any_entropy(byte: int) -> None:
    authority = make_authority(NOW, lambda count: bytes([byte]) * count)
    assert 0 < loaded(authority.certificate).serial_number < 2**159


@pytest.mark.claim("SVC-06")
def test_shape_of_a_service_certificate() -> None:
    service = make_service(NOW, entropy_from(5))
    assert len(service.chain) == 1
    certificate = loaded(service.chain[0])
    assert certificate.version is x509.Version.v3
    assert certificate.serial_number == 1
    assert certificate.subject.public_bytes().hex() == "30123110300e06035504030c07" + b"simplex".hex()
    assert certificate.issuer == certificate.subject
    assert len(certificate.extensions) == 0
    assert dates(certificate) == (START - timedelta(hours=25), START + timedelta(hours=24 * 999_999))
    assert service.key.algorithm is Algorithm.ED25519
    assert leaf_key(service.chain) == service.key.public
    assert service.fingerprint == fingerprint(service.chain[0])
    validate_service_chain(service.chain, NOW)


def test_credentials_are_made_from_the_given_entropy() -> None:
    assert make_service(NOW, entropy_from(5)) == make_service(NOW, entropy_from(5))
    assert make_service(NOW, entropy_from(5)).fingerprint != make_service(NOW, entropy_from(6)).fingerprint


@pytest.mark.parametrize("algorithm", SIGNING)
def test_a_session_key_is_signed_by_the_leaf(algorithm: Algorithm) -> None:
    authority, credentials = router(algorithm)
    cert_key = sign_session_key(credentials, SESSION_KEY)
    assert cert_key.chain == credentials.chain
    received = decode_whole(encode(cert_key, write_cert_key), read_cert_key)
    assert received == cert_key
    assert received.signed_key.key == SESSION_KEY
    assert verify_session_key(leaf_key(received.chain), received.signed_key)
    assert not verify_session_key(authority.key.public, received.signed_key)


def test_a_changed_session_key_does_not_verify() -> None:
    _, credentials = router()
    signed = sign_session_key(credentials, SESSION_KEY).signed_key
    leaf = credentials.key.public
    other = PrivateKey(Algorithm.X25519, ramp(0x41, 32)).public
    assert verify_session_key(leaf, signed)
    assert not verify_session_key(leaf, SignedKey(other, signed.signer, signed.signature))
    for place in range(len(signed.signature)):
        changed = bytearray(signed.signature)
        changed[place] ^= 1
        assert not verify_session_key(leaf, SignedKey(SESSION_KEY, signed.signer, bytes(changed)))
    bare = SignedKey(SESSION_KEY, signed.signer, credentials.key.sign(SESSION_KEY.spki))
    assert not verify_session_key(leaf, bare), "the signature covers the wrapper, not the bare key"


def test_the_signature_algorithm_must_be_that_of_the_leaf() -> None:
    _, credentials = router()
    signed = sign_session_key(credentials, SESSION_KEY).signed_key
    assert not verify_session_key(
        credentials.key.public, SignedKey(SESSION_KEY, Algorithm.ED448, signed.signature)
    )


def test_an_authority_cannot_have_a_key_that_does_not_sign() -> None:
    with pytest.raises(CryptoError, match="Ed25519 or Ed448"):
        make_authority(NOW, entropy_from(1), Algorithm.X25519)


def test_credentials_print_fingerprints_and_lengths() -> None:
    authority, credentials = router()
    shown = repr(credentials)
    sizes = ", ".join(f"<{len(der)} bytes>" for der in credentials.chain)
    assert shown == f"Credentials(chain=[{sizes}], key=private {credentials.key.public!r})"
    assert repr(authority).endswith(f"key=private {authority.key.public!r})")
