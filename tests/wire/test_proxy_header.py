"""The PROXY protocol, both versions, as specified by HAProxy."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindpost.wire.errors import WireError
from blindpost.wire.proxy_header import HEADER_MAX, ProxyHeader, read_proxy_header
from tests.support.wire.hostile import survives

V2 = b"\r\n\r\n\x00\r\nQUIT\n"


def second(source: str, port: int, more: bytes = b"") -> bytes:
    address = ipaddress.ip_address(source)
    target = bytes(len(address.packed))
    body = address.packed + target + port.to_bytes(2, "big") + b"\x01\xbb" + more
    family = 0x11 if address.version == 4 else 0x21
    return V2 + bytes([0x21, family]) + len(body).to_bytes(2, "big") + body


@pytest.mark.parametrize(
    ("data", "address"),
    [
        (b"PROXY TCP4 192.0.2.7 192.0.2.1 51234 443\r\n", ("192.0.2.7", 51_234)),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 1 443\r\n", ("2001:db8::7", 1)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN what ever it says\r\n", None),
        (second("192.0.2.7", 51_234), ("192.0.2.7", 51_234)),
        (second("2001:db8::7", 9, b"\x04\x00\x01x"), ("2001:db8::7", 9)),
        (V2 + b"\x20\x00\x00\x00", None),
        (V2 + b"\x21\x00\x00\x00", None),
        (V2 + b"\x21\x31\x00\xd8" + bytes(216), None),
    ],
)
def test_the_address_is_found_and_what_follows_is_left_alone(
    data: bytes, address: tuple[str, int] | None
) -> None:
    assert read_proxy_header(data + b"\x16\x03\x01") == ProxyHeader(address, len(data))
    assert [read_proxy_header(data[:count]) for count in range(len(data))] == [None] * len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\x05",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 51234\r\n",
        b"PROXY TCP4 2001:db8::7 192.0.2.1 1 2\r\n",
        b"PROXY TCP4 one 192.0.2.1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 99999 2\r\n",
        b"PROXY TCP9 192.0.2.7 192.0.2.1 1 2\r\n",
        b"PROXY " + b"a" * 200,
        V2 + b"\x31\x11\x00\x0c" + bytes(12),
        V2 + b"\x21\x11\x00\x04" + bytes(4),
        V2 + b"\x21\x11" + HEADER_MAX.to_bytes(2, "big"),
    ],
)
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        read_proxy_header(data)


@given(st.binary(max_size=300), st.sampled_from([b"", V2, b"PROXY ", b"PROXY TCP4 "]))
def test_any_bytes_are_a_value_or_the_one_error(data: bytes, start: bytes) -> None:
    survives(read_proxy_header, start + data)
