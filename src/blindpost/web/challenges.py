"""Answers an ACME authority that asks whether a name is ours: TLS-ALPN-01 (RFC 8737) on the site's port."""

from __future__ import annotations

import datetime
import hashlib
import ssl
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PROTOCOL = b"acme-tls/1"
ACME_IDENTIFIER = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.31")
_OCTETS = b"\x04\x20"
"""DER of an octet string of 32 bytes, before its content."""
_VALID = datetime.timedelta(days=1)


class IssueError(Exception):
    """An authority gave no certificate: why, in a clause that a sentence can end with."""


class Challenges:
    """The questions that are open now, by name. Set by the thread that asks for a certificate."""

    def __init__(self) -> None:
        self._contexts: dict[str, ssl.SSLContext] = {}

    def open(self, name: str, key_authorization: str) -> None:
        """Prove from now on that `name` is ours."""
        self._contexts[name.lower()] = _proof(name, key_authorization)

    def close(self) -> None:
        self._contexts = {}

    def context(self, name: str) -> ssl.SSLContext | None:
        """The TLS that proves it; None if nobody is to ask for this name."""
        return self._contexts.get(name)


def _proof(name: str, key_authorization: str) -> ssl.SSLContext:
    """TLS for one name, with a certificate that is good for nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    value = _OCTETS + hashlib.sha256(key_authorization.encode()).digest()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
        .add_extension(x509.UnrecognizedExtension(ACME_IDENTIFIER, value), critical=True)
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([PROTOCOL.decode()])
    with tempfile.TemporaryDirectory() as folder:  # Python loads keys from files only
        file = Path(folder) / "proof.pem"
        file.write_bytes(_key_text(key) + certificate.public_bytes(serialization.Encoding.PEM))
        context.load_cert_chain(file)
    return context


def new_key() -> bytes:
    """A private key for an account or a certificate, in PEM form."""
    return _key_text(ec.generate_private_key(ec.SECP256R1()))


def _key_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
