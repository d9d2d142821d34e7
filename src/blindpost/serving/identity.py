"""A server's keys on disk: its authority, whose key may be kept elsewhere, and its online key.

`ca.crt` is the identity that the address names. `ca.key` signs new online certificates and is needed for
nothing else. `router.pem` or `ntf.pem`, named for the kind of server, holds the online key and its
certificate in one file, so that both are replaced at once.
"""

from __future__ import annotations

import hmac
import time
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from blindpost.crypto.chains import ChainError, fingerprint, leaf_key, validate_router_chain
from blindpost.crypto.credentials import Authority, Credentials, issue_router, make_authority
from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import PUBLIC, make_folder, read_file, sync_folder, telling, write_file
from blindpost.wire.keys import Algorithm
from blindpost.wire.text import b64

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
ADOPTED_CERTIFICATE, ADOPTED_KEY = "server.crt", "server.key"

_KEY_START = b"-----BEGIN PRIVATE KEY-----"


class Identity:
    """The folder with the keys of one server; its kind is the word after `blindpost`."""

    def __init__(self, folder: Path, kind: str = "router") -> None:
        self.folder = folder
        self._rotate = f"`blindpost {kind} rotate-cert`"
        self.ca_certificate = folder / CA_CERTIFICATE
        self.ca_key = folder / CA_KEY
        self.online = folder / f"{kind}.pem"

    @property
    def files(self) -> tuple[Path, ...]:
        return self.ca_certificate, self.ca_key, self.online

    def create(self, host: str, algorithm: Algorithm, entropy: Entropy = system_entropy) -> Credentials:
        """A new identity and its first online certificate."""
        make_folder(self.folder)
        now = int(time.time())
        authority = make_authority(now, entropy, algorithm)
        credentials = issue_router(authority, host, now, entropy, algorithm)
        write_file(self.ca_certificate, _certificate_pem(authority.certificate), PUBLIC)
        write_file(self.ca_key, _key_pem(authority.key))
        self._write_online(credentials)
        return credentials

    def adopt(self, source: Path) -> Credentials:
        """The identity of another server, from the files that smp-server keeps: the address stays the same.

        Its CA key is taken over too if present; everything is checked before anything is written.
        """
        (authority,) = _certificates(source / CA_CERTIFICATE, 1)
        (leaf,) = _certificates(source / ADOPTED_CERTIFICATE, 1)
        credentials = Credentials((leaf, authority), _read_key(source / ADOPTED_KEY))
        self._check(credentials, int(time.time()))
        key_file = source / CA_KEY
        ca_key = _read_key(key_file) if key_file.exists() else None
        if ca_key is not None and ca_key.public != leaf_key((authority,)):
            raise OperatorError(
                f"fingerprint mismatch: {key_file} is not the key of {source / CA_CERTIFICATE}. "
                "Find the key that was made together with the certificate, or move this one away."
            )
        make_folder(self.folder)
        write_file(self.ca_certificate, _certificate_pem(authority), PUBLIC)
        if ca_key is not None:
            write_file(self.ca_key, _key_pem(ca_key))
        self._write_online(credentials)
        return credentials

    def authority(self) -> bytes:
        """The identity certificate."""
        if not self.ca_certificate.exists():
            raise OperatorError(
                f"{self.ca_certificate}: the server's identity certificate is missing. "
                "Restore it from a backup: a new one would have another address."
            )
        (certificate,) = _certificates(self.ca_certificate, 1)
        return certificate

    def load(self, expected: bytes | None, now: int | None = None) -> Credentials:
        """What a server runs with, after checking that all files belong together."""
        authority = self.authority()
        if expected is not None and not hmac.compare_digest(expected, fingerprint(authority)):
            raise OperatorError(
                f"fingerprint mismatch: {self.ca_certificate} is the identity {b64(fingerprint(authority))}, "
                f"the configuration names {b64(expected)}. Put the right file back, or correct "
                "identity.fingerprint if the address is meant to change."
            )
        if not self.online.exists():
            raise OperatorError(
                f"{self.online}: the server's key is missing. "
                f"Make a new one with {self._rotate}, or restore a backup."
            )
        (leaf,) = _certificates(self.online, 1)
        credentials = Credentials((leaf, authority), _read_key(self.online))
        self._check(credentials, int(time.time()) if now is None else now)
        return credentials

    def rotate(self, host: str, ca_key: Path | None = None, entropy: Entropy = system_entropy) -> Credentials:
        """A new online key and certificate, signed with the authority's key."""
        certificate = self.authority()
        key_file = ca_key or self.ca_key
        if not key_file.exists():
            raise OperatorError(
                f"{key_file}: the CA key is not here (kept offline?). Bring it back for this command, "
                "or name its place with --ca-key; move it away again afterwards."
            )
        key = _read_key(key_file)
        if key.public != leaf_key((certificate,)):
            raise OperatorError(
                f"fingerprint mismatch: {key_file} is not the key of {self.ca_certificate}. "
                "Find the key that was made together with the certificate."
            )
        authority = Authority(certificate, key)
        credentials = issue_router(authority, host, int(time.time()), entropy, key.algorithm)
        self._write_online(credentials)
        return credentials

    def move_ca_key(self, target: Path) -> Path:
        """Move the authority's key out of the server's folder; returns where it is now.

        It is removed here once safely stored there. A copy already there must be the same key.
        """
        if target.is_dir():
            target = target / f"{b64(fingerprint(self.authority()))[:8]}-{CA_KEY}"
        if not self.ca_key.exists():
            raise OperatorError(f"{self.ca_key}: the CA key is not here; it was moved away before.")
        if _read_key(self.ca_key).public != leaf_key((self.authority(),)):
            raise OperatorError(
                f"fingerprint mismatch: {self.ca_key} is not the key of {self.ca_certificate}."
            )
        if self.folder.resolve() in target.resolve().parents:
            raise OperatorError(f"{target}: this is in the folder of the keys. Name a place outside of it.")
        content = read_file(self.ca_key)
        if not target.exists():
            write_file(target, content)
        if read_file(target) != content:
            raise OperatorError(f"{target}: another file is here already. Name a new one.")
        with telling(self.ca_key):
            self.ca_key.unlink()
            sync_folder(self.folder)
        return target

    def _write_online(self, credentials: Credentials) -> None:
        write_file(self.online, _key_pem(credentials.key) + _certificate_pem(credentials.chain[0]))

    def _check(self, credentials: Credentials, now: int) -> None:
        if credentials.key.public != leaf_key(credentials.chain):
            raise OperatorError(
                f"{self.online}: the key in this file is not the key of the certificate in it. "
                f"Make a new pair with {self._rotate}, or restore a backup."
            )
        try:
            validate_router_chain(credentials.chain, credentials.fingerprint, now)
        except ChainError as error:
            raise OperatorError(
                f"fingerprint mismatch: the certificate in {self.online} was not issued by "
                f"{self.ca_certificate} ({error}). "
                f"Make a new one with {self._rotate}, or restore a backup."
            ) from error


def _certificates(path: Path, count: int) -> tuple[bytes, ...]:
    content = read_file(path)
    try:
        found = tuple(
            certificate.public_bytes(Encoding.DER) for certificate in x509.load_pem_x509_certificates(content)
        )
    except ValueError as error:
        raise OperatorError(
            f"{path}: a certificate in PEM form expected. Restore it from a backup."
        ) from error
    if len(found) != count:
        raise OperatorError(f"{path}: {count} certificate expected, {len(found)} found.")
    return found


def _read_key(path: Path) -> PrivateKey:
    content = read_file(path)
    try:
        key = load_pem_private_key(content[content.index(_KEY_START) :], None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if isinstance(key, Ed25519PrivateKey):
        return PrivateKey(Algorithm.ED25519, key.private_bytes_raw())
    if isinstance(key, Ed448PrivateKey):
        return PrivateKey(Algorithm.ED448, key.private_bytes_raw())
    raise OperatorError(
        f"{path}: a private Ed25519 or Ed448 key in PEM form (PKCS#8) expected. Restore it from a backup."
    )


def _key_pem(key: PrivateKey) -> bytes:
    return key.for_certificates().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _certificate_pem(der: bytes) -> bytes:
    return x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)
