"""The first message of a TLS client: which name it asks for and which protocols it offers.

A router that serves browsers and SMP clients on one port chooses by this message, before any key is used.
"""

from __future__ import annotations

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.primitives import Reader
from blindpost.wire.value import Buffer

HELLO_MAX = 16_384
"""A longer hello is refused; browsers with post-quantum keys send about 2,000 bytes."""

_HANDSHAKE_RECORD = 22
_CLIENT_HELLO = 1
_RECORD_HEADER = 5
_MESSAGE_HEADER = 4
_RECORD_MAX = 16_384
_SERVER_NAME = 0
_ALPN = 16
_HOST_NAME = 0


@dataclass(frozen=True, slots=True)
class ClientHello:
    """What a choice of protocol needs to know of a hello."""

    server_name: str
    """In lower case; empty when the client names no server."""
    protocols: tuple[bytes, ...]


def read_client_hello(data: Buffer) -> ClientHello | None:
    """The hello that `data` begins with, or None while more bytes are needed."""
    message = _handshake_bytes(data)
    if message and message[0] != _CLIENT_HELLO:
        raise WireError("a TLS client hello expected")
    if len(message) < _MESSAGE_HEADER:
        return None
    size = int.from_bytes(message[1:_MESSAGE_HEADER], "big")
    if size > HELLO_MAX:
        raise WireError(f"a client hello of at most {HELLO_MAX} bytes expected")
    if len(message) < _MESSAGE_HEADER + size:
        return None
    return _hello(Reader(message, _MESSAGE_HEADER, _MESSAGE_HEADER + size))


def _handshake_bytes(data: Buffer) -> bytes:
    """The content of the records at the start of `data`, the last one as far as it has come."""
    parts = []
    position = 0
    while position < len(data):
        header = bytes(data[position : position + _RECORD_HEADER])
        if header[0] != _HANDSHAKE_RECORD or (len(header) > 1 and header[1] != 3):
            raise WireError("a TLS handshake record expected")
        if len(header) < _RECORD_HEADER:
            break
        size = int.from_bytes(header[3:], "big")
        if not 0 < size <= _RECORD_MAX:
            raise WireError(f"a TLS record of 1 to {_RECORD_MAX} bytes expected")
        position += _RECORD_HEADER
        parts.append(bytes(data[position : position + size]))
        position += size
    return b"".join(parts)


def _hello(reader: Reader) -> ClientHello:
    reader.take(2 + 32)
    reader.take(reader.u8())
    reader.take(reader.u16())
    reader.take(reader.u8())
    name = ""
    protocols: tuple[bytes, ...] = ()
    extensions = reader.sub(reader.u16()) if reader.remaining else Reader(b"")
    while extensions.remaining:
        kind, body = extensions.u16(), extensions.sub(extensions.u16())
        if kind == _SERVER_NAME:
            name = _server_name(body)
        elif kind == _ALPN:
            protocols = _protocols(body)
    return ClientHello(name, protocols)


def _server_name(body: Reader) -> str:
    names = body.sub(body.u16())
    while names.remaining:
        kind, name = names.u8(), names.take(names.u16())
        if kind == _HOST_NAME:
            try:
                return name.decode("ascii").lower()
            except UnicodeDecodeError as error:
                raise WireError("a server name in ASCII expected") from error
    return ""


def _protocols(body: Reader) -> tuple[bytes, ...]:
    offered = body.sub(body.u16())
    found = []
    while offered.remaining:
        found.append(offered.short())
    return tuple(found)
