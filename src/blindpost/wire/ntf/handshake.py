"""The hellos of the notification protocol: like SMP's, without a certificate chain.

    serverHello = u16 low, u16 high, short(session id), [high >= 2] large(signed key)
    clientHello = u16 version, short(fingerprint that the client expects)

Each is the content of a padded block; what a later version may add behind the known fields is ignored.
"""

from __future__ import annotations

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.ntf.versions import AUTH_BATCH_VERSION
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.signed_key import SignedKey, read_signed_key, write_signed_key
from blindpost.wire.value import Value
from blindpost.wire.versions import VersionRange, read_version_range, write_version_range


@dataclass(frozen=True, slots=True, repr=False)
class ServerHello(Value):
    """What the router offers; its session key is signed by the key of its TLS certificate."""

    versions: VersionRange
    session_id: bytes
    signed_key: SignedKey | None

    def __post_init__(self) -> None:
        if (self.signed_key is not None) is not (self.versions.high >= AUTH_BATCH_VERSION):
            raise WireError("a signed key belongs to a hello that offers version 2 or later, and only to it")


@dataclass(frozen=True, slots=True, repr=False)
class ClientHello(Value):
    """The version the client chose and the router it wants to reach."""

    version: int
    key_hash: bytes


def read_server_hello(reader: Reader) -> ServerHello:
    versions = read_version_range(reader)
    session_id = reader.short()
    signed_key = read_signed_key(reader) if versions.high >= AUTH_BATCH_VERSION else None
    return ServerHello(versions, session_id, signed_key)


def write_server_hello(writer: Writer, hello: ServerHello) -> None:
    write_version_range(writer, hello.versions)
    writer.short(hello.session_id)
    if hello.signed_key is not None:
        write_signed_key(writer, hello.signed_key)


def read_client_hello(reader: Reader) -> ClientHello:
    return ClientHello(reader.u16(), reader.short())


def write_client_hello(writer: Writer, hello: ClientHello) -> None:
    writer.u16(hello.version).short(hello.key_hash)
