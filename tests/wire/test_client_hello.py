"""The first message of TLS, as OpenSSL really sends it."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindpost.wire.client_hello import HELLO_MAX, ClientHello, read_client_hello
from blindpost.wire.errors import WireError
from tests.support.wire.hostile import changed_everywhere, survives


def hello(name: str | None, protocols: list[str]) -> bytes:
    """What OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(protocols)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("name", [None, "smp.example.org", "SMP.Example.ORG"])
@pytest.mark.parametrize("protocols", [[], ["smp/1"], ["h2", "http/1.1"]])
def test_the_name_and_the_protocols_are_found(name: str | None, protocols: list[str]) -> None:
    found = read_client_hello(hello(name, protocols))
    assert found == ClientHello((name or "").lower(), tuple(one.encode() for one in protocols))


def test_a_hello_is_read_when_its_last_byte_arrives() -> None:
    whole = hello("a.example", ["h2"])
    assert [read_client_hello(whole[:count]) for count in range(len(whole))] == [None] * len(whole)


def test_a_hello_split_over_many_records_is_joined() -> None:
    message = hello("a.example", ["h2"])[5:]
    records = b"".join(b"\x16\x03\x01\x00\x01" + message[place : place + 1] for place in range(len(message)))
    assert read_client_hello(records) == ClientHello("a.example", (b"h2",))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x17\x03\x03\x00\x01a",
        b"\x16\x02",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x40\x01",
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01" + (HELLO_MAX + 1).to_bytes(3, "big"),
    ],
)
def test_bytes_that_are_not_a_hello_are_refused_at_once(data: bytes) -> None:
    with pytest.raises(WireError):
        read_client_hello(data)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_value_or_the_one_error(data: bytes) -> None:
    survives(read_client_hello, data)
    survives(read_client_hello, b"\x16\x03\x01" + len(data).to_bytes(2, "big") + b"\x01" + data)


def test_changed_hellos_do_no_harm() -> None:
    changed_everywhere(read_client_hello, hello("smp.example.org", ["h2", "http/1.1"]), "hello")
