"""Certificates of our own: a router's authority and leaf, a service's one; and signed session keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from blindpost.crypto.chains import identity_fingerprint
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.keys import PrivateKey, verify
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.signed_key import CertKey, SignedKey, signed_key_content
from blindpost.wire.value import Value

VALIDITY = timedelta(days=999_999)
SERVICE_BACKDATED = timedelta(hours=25)

_AUTHORITY_NAME = x509.Name(
    [
        x509.NameAttribute(NameOID.COMMON_NAME, "SMP server CA"),
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "SimpleX"),
    ]
)
_NAME_MAX = 64
"""How much of a host a certificate's name has room for; nobody compares it."""
_SERVICE_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "simplex")])
_ONLINE_USAGE = x509.KeyUsage(
    digital_signature=True,
    content_commitment=True,
    key_agreement=True,
    key_encipherment=False,
    data_encipherment=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True, repr=False)
class Credentials(Value):
    """A certificate chain, leaf first, each as DER, and the private key of the leaf."""

    chain: tuple[bytes, ...]
    key: PrivateKey

    @property
    def fingerprint(self) -> bytes:
        """Of the identity certificate."""
        return identity_fingerprint(self.chain)


@dataclass(frozen=True, slots=True, repr=False)
class Authority(Value):
    """A router's identity: the certificate in its address and the key that is kept offline."""

    certificate: bytes
    key: PrivateKey


def make_authority(now: int, entropy: Entropy, algorithm: Algorithm = Algorithm.ED25519) -> Authority:
    """A new router identity, valid from `now` (Unix seconds) for longer than anybody will need it."""
    key = PrivateKey.generate(algorithm, entropy)
    signing = key.for_certificates()
    identifier = x509.SubjectKeyIdentifier.from_public_key(signing.public_key())
    builder = (
        _builder(_AUTHORITY_NAME, _AUTHORITY_NAME, _serial(entropy), _instant(now), _instant(now) + VALIDITY)
        .public_key(signing.public_key())
        .add_extension(identifier, critical=False)
        .add_extension(_issued_by(identifier), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    return Authority(_signed(builder, key), key)


def issue_router(
    authority: Authority, host: str, now: int, entropy: Entropy, algorithm: Algorithm = Algorithm.ED25519
) -> Credentials:
    """Credentials that a running router uses: a new leaf for `host`, signed by its authority."""
    key = PrivateKey.generate(algorithm, entropy)
    issuer = x509.load_der_x509_certificate(authority.certificate)
    issuer_identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    public = key.for_certificates().public_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:_NAME_MAX])])
    builder = (
        _builder(issuer.subject, name, _serial(entropy), _instant(now), _instant(now) + VALIDITY)
        .public_key(public)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=False)
        .add_extension(_ONLINE_USAGE, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(_issued_by(issuer_identifier), critical=False)
    )
    return Credentials((_signed(builder, authority.key), authority.certificate), key)


def make_service(now: int, entropy: Entropy) -> Credentials:
    """The self-signed certificate of one service client at one router."""
    key = PrivateKey.generate(Algorithm.ED25519, entropy)
    start = _instant(now)
    builder = _builder(_SERVICE_NAME, _SERVICE_NAME, 1, start - SERVICE_BACKDATED, start + VALIDITY)
    return Credentials((_signed(builder.public_key(key.for_certificates().public_key()), key),), key)


def sign_session_key(credentials: Credentials, session_key: PublicKey) -> CertKey:
    """The chain and a fresh session key signed by its leaf, as a hello carries them."""
    signature = credentials.key.sign(signed_key_content(session_key))
    return CertKey(credentials.chain, SignedKey(session_key, credentials.key.algorithm, signature))


def verify_session_key(leaf: PublicKey, signed_key: SignedKey) -> bool:
    """Whether the owner of `leaf` signed the session key."""
    return leaf.algorithm is signed_key.signer and verify(leaf, signed_key.signed, signed_key.signature)


def _builder(
    issuer: x509.Name, subject: x509.Name, serial: int, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        serial_number=serial,
        not_valid_before=start,
        not_valid_after=end,
    )


def _signed(builder: x509.CertificateBuilder, key: PrivateKey) -> bytes:
    return builder.sign(key.for_certificates(), None).public_bytes(serialization.Encoding.DER)


def _issued_by(identifier: x509.SubjectKeyIdentifier) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _instant(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _serial(entropy: Entropy) -> int:
    """20 bytes at most, positive."""
    return int.from_bytes(entropy(19), "big") | 1
