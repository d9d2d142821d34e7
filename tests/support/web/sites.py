"""A site on a shared port beside a router's sessions, with a certificate for `localhost`."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from blindpost.web.certificates import WebCertificate
from blindpost.web.connection import Visitor, Visitors
from blindpost.web.doorman import SharedNetwork
from blindpost.web.information import Facts, Information
from blindpost.web.site import Site
from blindpost.wire.client_hello import ClientHello
from tests.support.transport.sessions import Recorder, serving, smp_router

FACTS = Facts(
    "localhost",
    "smp://AAAA@localhost",
    "1.2.3",
    (("Messages", "kept for 21 days"), ("New queues", "everybody may create them")),
    Information(operator="Jane <Doe>", website="https://example.org", admin_email="jane@example.org"),
)


def write_certificate(folder: Path, *names: str) -> tuple[Path, Path]:
    """A self-signed certificate and its key, as another program would renew them."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    chain, secret = folder / "web.crt", folder / "web.key"
    chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return chain, secret


class SharedPort:
    """A port that serves the site and the router's sessions."""

    def __init__(self, port: int, certificate: WebCertificate, visitors: Visitors, router: Recorder) -> None:
        self.port = port
        self.certificate = certificate
        self.visitors = visitors
        self.router = router


@contextlib.asynccontextmanager
async def shared_port(
    folder: Path,
    site: Site | None = None,
    proxies: tuple[ipaddress.IPv4Network, ...] = (),
) -> AsyncIterator[SharedPort]:
    certificate = WebCertificate(*write_certificate(folder, "localhost"))
    visitors = Visitors()
    shown = site or Site(lambda: FACTS)

    def guest(hello: ClientHello) -> Visitor | None:
        known = certificate.covers(hello.server_name)
        return Visitor(shown.answer, visitors, certificate.context) if known else None

    network = SharedNetwork(guest, proxies)
    router = Recorder(echo=True)
    async with serving(smp_router(), router, network) as port:
        try:
            yield SharedPort(port, certificate, visitors, router)
        finally:
            visitors.close()


async def browse(
    port: int, request: bytes, *, name: str = "localhost", protocols: tuple[str, ...] = ("http/1.1",)
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A TLS connection that has sent `request`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(list(protocols))
    reader, writer = await asyncio.open_connection("localhost", port, ssl=context, server_hostname=name)
    writer.write(request)
    return reader, writer
