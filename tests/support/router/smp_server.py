"""What smp-server leaves behind."""

from __future__ import annotations

import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from blindpost.crypto.credentials import issue_router, make_authority
from blindpost.crypto.entropy import system_entropy
from blindpost.wire.keys import Algorithm


def smp_server_keys(folder: Path) -> bytes:
    """The files that smp-server keeps of its identity; its fingerprint."""
    now = int(time.time())
    authority = make_authority(now, system_entropy, Algorithm.ED448)
    online = issue_router(authority, "localhost", now, system_entropy, Algorithm.ED448)
    folder.mkdir()
    for name, key in (("ca.key", authority.key), ("server.key", online.key)):
        pem = key.for_certificates().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / name).write_bytes(pem)
    for name, der in (("ca.crt", authority.certificate), ("server.crt", online.chain[0])):
        (folder / name).write_bytes(x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM))
    return online.fingerprint
