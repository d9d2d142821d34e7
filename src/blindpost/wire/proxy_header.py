"""The PROXY protocol, versions 1 and 2: how a proxy in front reports its client's address."""

from __future__ import annotations

import ipaddress

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Buffer

HEADER_MAX = 536
"""A longer header is refused: 16 bytes, two Unix addresses, room for what a proxy may add."""

_V1 = b"PROXY "
_V1_MAX = 107
_V2 = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_HEADER = 16
_ADDRESS_SIZES = {1: 4, 2: 16}
_STREAM = 1


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """Where a proxied connection comes from, and the size of the header."""

    address: tuple[str, int] | None
    """None when the proxy speaks for itself, such as in a health check."""
    size: int


def read_proxy_header(data: Buffer) -> ProxyHeader | None:
    """The header that `data` begins with, or None while more bytes are needed."""
    start = bytes(data[:HEADER_MAX])
    if start[: len(_V2)] == _V2[: len(start)]:
        return _second(start)
    if start[: len(_V1)] == _V1[: len(start)]:
        return _first(start)
    raise WireError("a PROXY header expected")


def _first(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _V1_MAX)
    if end < 0:
        if len(data) >= _V1_MAX:
            raise WireError(f"a PROXY line of at most {_V1_MAX} bytes expected")
        return None
    words = data[:end].decode("latin-1").split(" ")
    if words[1:2] == ["UNKNOWN"]:
        return ProxyHeader(None, end + 2)
    if len(words) != 6 or words[1] not in {"TCP4", "TCP6"}:
        raise WireError("PROXY TCP4 or TCP6 with two addresses and two ports expected")
    return ProxyHeader((_address(words[2], 4 if words[1] == "TCP4" else 6), _port(words[4])), end + 2)


def _second(data: bytes) -> ProxyHeader | None:
    if len(data) < _V2_HEADER:
        return None
    version, command = data[12] >> 4, data[12] & 15
    family, transport = data[13] >> 4, data[13] & 15
    size = _V2_HEADER + int.from_bytes(data[14:16], "big")
    if version != 2 or command > 1:
        raise WireError("version 2 of the PROXY protocol expected")
    if size > HEADER_MAX:
        raise WireError(f"a PROXY header of at most {HEADER_MAX} bytes expected")
    if len(data) < size:
        return None
    width = _ADDRESS_SIZES.get(family)
    if command == 0 or width is None or transport != _STREAM:
        return ProxyHeader(None, size)
    if size < _V2_HEADER + 2 * width + 4:
        raise WireError("a PROXY header with two addresses and two ports expected")
    host = ipaddress.ip_address(data[_V2_HEADER : _V2_HEADER + width])
    ports = _V2_HEADER + 2 * width
    return ProxyHeader((str(host), int.from_bytes(data[ports : ports + 2], "big")), size)


def _address(text: str, version: int) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise WireError("an IP address expected in the PROXY line") from error
    if address.version != version:
        raise WireError("addresses of one family expected in the PROXY line")
    return str(address)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65_535):
        raise WireError("a port expected in the PROXY line")
    return int(text)
