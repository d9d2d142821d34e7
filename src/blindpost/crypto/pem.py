"""A certificate chain and its key as operators bring them: in two files or in one, in any order."""

from __future__ import annotations

import re

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from blindpost.wire.frozen import dataclass

_KEY = re.compile(rb"-----BEGIN ((?:[A-Z0-9]+ )*PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)


class PemError(Exception):
    """The texts hold no usable pair: why, in a clause."""


@dataclass(frozen=True, slots=True, repr=False)
class Pair:
    """A chain and the key of its first certificate."""

    chain: tuple[x509.Certificate, ...]
    key: PrivateKeyTypes

    @property
    def chain_pem(self) -> bytes:
        return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in self.chain)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def read_pair(chain: bytes, key: bytes) -> Pair:
    """What is in these texts; other blocks and words between them do not matter."""
    try:
        certificates = tuple(x509.load_pem_x509_certificates(chain))
    except ValueError as error:
        raise PemError("there is no certificate") from error
    private = _read_key(key)
    try:
        fits = _public(certificates[0].public_key()) == _public(private.public_key())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PemError("the certificate's key is of an unknown kind") from error
    if not fits:
        raise PemError("the private key is not the first certificate's")
    return Pair(certificates, private)


def _read_key(text: bytes) -> PrivateKeyTypes:
    found = _KEY.search(text)
    if found is None:
        raise PemError("there is no private key")
    try:
        return load_pem_private_key(found[0], None)
    except TypeError as error:
        raise PemError("the private key needs a passphrase, and a server has nobody to ask") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PemError("the private key is damaged, or of an unknown kind") from error


def _public(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
