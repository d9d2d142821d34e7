"""The service's own certificate, for clients that compare its fingerprint."""

from __future__ import annotations

import hashlib
import ipaddress
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALIDITY = timedelta(days=3650)
BACKDATED = timedelta(hours=25)


def make_certificate(host: str, now: int) -> tuple[bytes, bytes]:
    """Certificate and private key in PEM, for this host; ECDSA, because QUIC libraries offer no EdDSA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    start = datetime.fromtimestamp(now, UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - BACKDATED)
        .not_valid_after(start + VALIDITY)
        .add_extension(x509.SubjectAlternativeName([_named(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem), private


def fingerprint(certificate_pem: bytes) -> bytes:
    """The SHA-256 of the first certificate in a PEM text."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).digest()


class ForeignCertificateError(Exception):
    """A certificate that `make_certificate` did not make: how it differs, in a clause."""


def host_of(text: bytes) -> str:
    """The host that `make_certificate` made this for."""
    try:
        certificate = x509.load_pem_x509_certificate(text)
        (named,) = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.DuplicateExtension, x509.ExtensionNotFound) as error:
        raise ForeignCertificateError("a certificate for one host expected") from error
    if certificate.issuer != certificate.subject or b"PRIVATE KEY" in text:
        raise ForeignCertificateError("this certificate was not made by `blindpost ds`")
    return str(named.value)


def _named(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
