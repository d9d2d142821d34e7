"""The web certificate: files that another program renews, taken up without a restart."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from cryptography import x509

from blindpost.crypto.pem import PemError, read_pair

log = logging.getLogger("blindpost.web")

_ALPN = ["h2", "http/1.1"]


class CertificateError(Exception):
    """The files do not hold a certificate with its key; the text says which and why."""


class WebCertificate:
    """One certificate chain and its key; `renew` loads the files as they are now."""

    def __init__(self, chain: Path, key: Path) -> None:
        self._chain, self._key = chain, key
        self._seen = self._look()
        self.context, self.names = _loaded(chain, key)

    def covers(self, name: str) -> bool:
        """Whether a browser that asks for this name would accept the certificate."""
        parent = name.partition(".")[2]
        return name in self.names or (bool(parent) and f"*.{parent}" in self.names)

    def renew(self) -> bool:
        """Load changed files; returns whether there were any. Unusable files change nothing."""
        now = self._look()
        if now == self._seen:
            return False
        self._seen = now
        try:
            self.context, self.names = _loaded(self._chain, self._key)
        except CertificateError as error:
            log.error("%s The site keeps its present certificate.", error)
            return False
        log.info("a new web certificate is in use for new connections")
        return True

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(file) for file in (self._chain, self._key))


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _loaded(chain: Path, key: Path) -> tuple[ssl.SSLContext, frozenset[str]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    try:
        leaf = read_pair(chain.read_bytes(), key.read_bytes()).chain[0]
        context.load_cert_chain(chain, key)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, PemError, ValueError, x509.DuplicateExtension, x509.ExtensionNotFound) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CertificateError(
            f"{chain}, {key}: a certificate chain with a server name and its private key in PEM form "
            f"expected ({why})."
        ) from error
    return context, frozenset(name.lower() for name in names.get_values_for_type(x509.DNSName))
