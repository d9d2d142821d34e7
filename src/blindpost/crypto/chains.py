"""Certificate chains of peers: which certificate plays which part, and whether the chain is valid.

A chain comes leaf first. Its last certificate is trusted because the caller compares the fingerprint of
the identity certificate with the address (routers) or with its own records (services).
"""

from __future__ import annotations

import hashlib
import hmac
from enum import Enum

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from blindpost.crypto.errors import CryptoError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.value import Value

CHAIN_LENGTH_MAX = 4


class ChainFailure(Enum):
    """Why a chain is not valid."""

    EMPTY = "the chain has too few certificates"
    TOO_LONG = "the chain has more than four certificates"
    MALFORMED = "a certificate cannot be read"
    UNKNOWN_CA = "the chain does not lead to the expected authority"
    SELF_SIGNED = "the certificate is signed by itself"
    INVALID_SIGNATURE = "a signature in the chain is wrong"
    EXPIRED = "a certificate has expired"
    IN_FUTURE = "a certificate is not valid yet"
    NOT_V3 = "the leaf is not an X.509 version 3 certificate"
    NOT_AN_AUTHORITY = "a certificate was issued by one that may not issue any"


class ChainError(CryptoError):
    """A chain that is not valid, and why."""

    def __init__(self, failure: ChainFailure) -> None:
        super().__init__(failure.value)
        self.failure = failure


@dataclass(frozen=True, slots=True, repr=False)
class Roles(Value):
    """The parts that certificates of a chain play, as DER."""

    leaf: bytes
    identity: bytes
    anchor: bytes


def chain_roles(chain: tuple[bytes, ...]) -> Roles:
    """One certificate plays all parts (services only); of two to four the second is the identity."""
    if not chain:
        raise ChainError(ChainFailure.EMPTY)
    if len(chain) > CHAIN_LENGTH_MAX:
        raise ChainError(ChainFailure.TOO_LONG)
    return Roles(leaf=chain[0], identity=chain[min(1, len(chain) - 1)], anchor=chain[-1])


def fingerprint(certificate: bytes) -> bytes:
    """SHA-256 of a whole certificate, not of its key."""
    return hashlib.sha256(certificate).digest()


def identity_fingerprint(chain: tuple[bytes, ...]) -> bytes:
    """What names a router in its address, and a service at a router."""
    return fingerprint(chain_roles(chain).identity)


def leaf_key(chain: tuple[bytes, ...]) -> PublicKey:
    """The key that signs for the owner of the chain: Ed25519 or Ed448."""
    leaf = _load(chain_roles(chain).leaf)
    try:
        key = leaf.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ChainError(ChainFailure.MALFORMED) from error
    if isinstance(key, Ed25519PublicKey):
        return PublicKey(Algorithm.ED25519, key.public_bytes_raw())
    if isinstance(key, Ed448PublicKey):
        return PublicKey(Algorithm.ED448, key.public_bytes_raw())
    raise CryptoError("a certificate with an Ed25519 or Ed448 key expected")


def validate_router_chain(chain: tuple[bytes, ...], address_fingerprint: bytes, now: int) -> None:
    """What a client demands of a router's chain; `now` is in Unix seconds. Names of hosts do not matter."""
    roles = chain_roles(chain)
    if len(chain) < 2:
        raise ChainError(ChainFailure.EMPTY)
    if not hmac.compare_digest(fingerprint(roles.identity), address_fingerprint):
        raise ChainError(ChainFailure.UNKNOWN_CA)
    _validate(chain, now)


def validate_service_chain(chain: tuple[bytes, ...], now: int) -> None:
    """What a router demands of a client's chain; a certificate alone is its own anchor."""
    chain_roles(chain)
    _validate(chain, now)


def _load(der: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(der)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise ChainError(ChainFailure.MALFORMED) from error


def _validate(chain: tuple[bytes, ...], now: int) -> None:
    certificates = [_load(der) for der in chain]
    try:
        passed = _walk(certificates, now)
    except ChainError:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise ChainError(ChainFailure.MALFORMED) from error
    if chain_roles(chain).identity not in {chain[place] for place in passed}:
        raise ChainError(ChainFailure.UNKNOWN_CA)


def _walk(certificates: list[x509.Certificate], now: int) -> list[int]:
    """Follow issuers from the leaf to the anchor, the last certificate; the places passed on the way.

    The anchor's own dates and constraints are not checked. The caller must see that the identity
    certificate was passed: otherwise anybody could put a stranger's identity, which is public, between
    a leaf and an anchor of their own.
    """
    if certificates[0].version is not x509.Version.v3:
        raise ChainError(ChainFailure.NOT_V3)
    subjects = [certificate.subject.public_bytes() for certificate in certificates]
    passed = [0]
    while True:
        current = certificates[passed[-1]]
        _check_dates(current, now)
        issuer_name = current.issuer.public_bytes()
        if issuer_name == subjects[-1]:
            _check_signature(current, certificates[-1])
            return [*passed, len(certificates) - 1]
        if issuer_name == subjects[passed[-1]]:
            raise ChainError(ChainFailure.SELF_SIGNED)
        places = (place for place in range(len(subjects)) if place not in passed)
        issuer = next((place for place in places if subjects[place] == issuer_name), None)
        if issuer is None:
            raise ChainError(ChainFailure.UNKNOWN_CA)
        _check_authority(certificates[issuer], len(passed) - 1)
        _check_signature(current, certificates[issuer])
        passed.append(issuer)


def _check_dates(certificate: x509.Certificate, now: int) -> None:
    if now < certificate.not_valid_before_utc.timestamp():
        raise ChainError(ChainFailure.IN_FUTURE)
    if now > certificate.not_valid_after_utc.timestamp():
        raise ChainError(ChainFailure.EXPIRED)


def _check_authority(issuer: x509.Certificate, level: int) -> None:
    """A certificate between leaf and anchor must be an authority, `level` more of them below it."""
    extensions = issuer.extensions
    try:
        constraints = extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound as error:
        raise ChainError(ChainFailure.NOT_AN_AUTHORITY) from error
    may_sign = all(
        extension.value.key_cert_sign
        for extension in extensions
        if isinstance(extension.value, x509.KeyUsage)
    )
    depth = constraints.path_length
    if not constraints.ca or not may_sign or (depth is not None and depth < level):
        raise ChainError(ChainFailure.NOT_AN_AUTHORITY)


def _check_signature(certificate: x509.Certificate, issuer: x509.Certificate) -> None:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ChainError(ChainFailure.INVALID_SIGNATURE) from error
