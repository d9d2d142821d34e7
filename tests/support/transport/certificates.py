"""Certificate chains of any length and any dates, good and bad."""

from __future__ import annotations

from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from blindpost.crypto.credentials import Credentials
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.keys import Algorithm
from tests.support.transport.sessions import NOW, seeded

YEAR_S = 31_536_000


def certificate(
    subject: str,
    key: PrivateKey,
    issuer: str,
    issuer_key: PrivateKey,
    *,
    authority: bool = False,
    start: int = NOW - YEAR_S,
    end: int = NOW + YEAR_S,
) -> bytes:
    builder = x509.CertificateBuilder(
        subject_name=_name(subject),
        issuer_name=_name(issuer),
        public_key=key.for_certificates().public_key(),
        serial_number=1,
        not_valid_before=datetime.fromtimestamp(start, UTC),
        not_valid_after=datetime.fromtimestamp(end, UTC),
    ).add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    return builder.sign(issuer_key.for_certificates(), None).public_bytes(Encoding.DER)


def chain_of(
    length: int,
    *,
    start: int = NOW - YEAR_S,
    end: int = NOW + YEAR_S,
    algorithm: Algorithm = Algorithm.ED25519,
) -> Credentials:
    """A valid chain of that many certificates; the dates are the leaf's."""
    entropy = seeded(f"chain of {length}")
    keys = [PrivateKey.generate(algorithm, entropy) for _ in range(length)]
    last = length - 1
    chain = tuple(
        certificate(
            f"level {place}",
            keys[place],
            f"level {min(place + 1, last)}",
            keys[min(place + 1, last)],
            authority=place > 0,
            **({"start": start, "end": end} if place == 0 else {}),
        )
        for place in range(length)
    )
    return Credentials(chain, keys[0])


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
