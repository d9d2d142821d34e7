"""The two or three messages before the first batch: hellos, and the answer to a service.

    router -> client   ServerHello
    client -> router   ClientHello
    router -> client   ServiceResponse     only if the client hello had a service part

Bytes after the last known field are ignored, so that later versions may add some.
"""

from __future__ import annotations

from enum import Enum

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import Algorithm, PublicKey, read_x25519, write_key
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.signed_key import CertKey, read_cert_key, write_cert_key
from blindpost.wire.smp.error_codec import read_transport_error, write_transport_error
from blindpost.wire.smp.errors import TransportCode
from blindpost.wire.smp.versions import (
    AUTH_KEYS_VERSION,
    BLOCK_ENCRYPTION_VERSION,
    PROXY_FLAG_VERSION,
    SERVICE_CERTS_VERSION,
    SERVICE_HASH_VERSION,
)
from blindpost.wire.value import Value
from blindpost.wire.versions import VersionRange, read_version_range, write_version_range


class ServiceRole(Enum):
    """The role of a client with a certificate."""

    MESSAGING = b"M"
    NOTIFIER = b"N"
    PROXY = b"P"


SERVICE_VERSIONS = {
    ServiceRole.MESSAGING: SERVICE_HASH_VERSION,
    ServiceRole.NOTIFIER: SERVICE_CERTS_VERSION,
    ServiceRole.PROXY: SERVICE_CERTS_VERSION,
}
"""The version from which a client presents itself as a service of this role; routers do not check it."""

_ROLES = {role.value[0]: role for role in ServiceRole}


@dataclass(frozen=True, slots=True, repr=False)
class ServerHello(Value):
    """What a router offers. Its signed key is there exactly when it offers a version that has keys."""

    versions: VersionRange
    session_id: bytes
    cert_key: CertKey | None

    def __post_init__(self) -> None:
        if (self.cert_key is None) is (self.versions.high >= AUTH_KEYS_VERSION):
            raise WireError("a signed key exactly from version 7 expected")


@dataclass(frozen=True, slots=True, repr=False)
class ClientService(Value):
    """A client shows the chain it used in TLS and the session key that its commands are signed with."""

    role: ServiceRole
    cert_key: CertKey


@dataclass(frozen=True, slots=True, repr=False)
class ClientHello(Value):
    """The agreed version, which router the client believes it talks to, and what it brings along."""

    version: int
    key_hash: bytes
    client_key: PublicKey | None = None
    proxy_server: bool = False
    service: ClientService | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ServiceAccepted(Value):
    """The service is known by this id."""

    service_id: bytes


@dataclass(frozen=True, slots=True, repr=False)
class ServiceRefused(Value):
    """The service part was wrong; the router closes the connection."""

    error: TransportCode


ServiceResponse = ServiceAccepted | ServiceRefused


def encrypts_blocks(server: ServerHello, client: ClientHello) -> bool:
    """Whether blocks are encrypted inside TLS once these two hellos were exchanged."""
    return (
        client.version >= BLOCK_ENCRYPTION_VERSION
        and not client.proxy_server
        and server.cert_key is not None
        and client.client_key is not None
    )


def read_server_hello(reader: Reader) -> ServerHello:
    versions = read_version_range(reader)
    session_id = reader.short()
    cert_key = read_cert_key(reader) if versions.high >= AUTH_KEYS_VERSION else None
    return ServerHello(versions, session_id, cert_key)


def write_server_hello(writer: Writer, hello: ServerHello) -> None:
    write_version_range(writer, hello.versions)
    writer.short(hello.session_id)
    if hello.cert_key is not None:
        write_cert_key(writer, hello.cert_key)


def read_client_hello(reader: Reader) -> ClientHello:
    version = reader.u16()
    key_hash = reader.short()
    client_key = _read_client_key(reader) if version >= AUTH_KEYS_VERSION else None
    proxy_server = reader.flag() if version >= PROXY_FLAG_VERSION else False
    service = reader.opt(_read_service) if version >= SERVICE_CERTS_VERSION else None
    return ClientHello(version, key_hash, client_key, proxy_server, service)


def write_client_hello(writer: Writer, hello: ClientHello) -> None:
    """What the version of the hello does not support is left out."""
    writer.u16(hello.version).short(hello.key_hash)
    if hello.version >= AUTH_KEYS_VERSION and hello.client_key is not None:
        write_key(writer, hello.client_key)
    if hello.version >= PROXY_FLAG_VERSION:
        writer.flag(hello.proxy_server)
    if hello.version >= SERVICE_CERTS_VERSION:
        writer.opt(hello.service, _write_service)


def read_service_response(reader: Reader) -> ServiceResponse:
    if reader.skip(b"R"):
        return ServiceAccepted(reader.short())
    reader.expect(b"E")
    return ServiceRefused(read_transport_error(reader))


def write_service_response(writer: Writer, response: ServiceResponse) -> None:
    match response:
        case ServiceAccepted(service_id):
            writer.raw(b"R").short(service_id)
        case ServiceRefused(error):
            write_transport_error(writer.raw(b"E"), error)


def _read_client_key(reader: Reader) -> PublicKey | None:
    """The key may be missing without a mark: no other field can begin with its length."""
    return read_x25519(reader) if reader.peek() == Algorithm.X25519.spki_size else None


def _read_service(reader: Reader) -> ClientService:
    role = _ROLES.get(reader.u8())
    if role is None:
        raise WireError("a service role M, N or P expected")
    return ClientService(role, read_cert_key(reader))


def _write_service(writer: Writer, service: ClientService) -> None:
    write_cert_key(writer.raw(service.role.value), service.cert_key)
