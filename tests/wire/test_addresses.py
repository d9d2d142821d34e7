"""Hosts, servers and router addresses: every vector, the rules in their order, and arbitrary text."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindpost.wire.addresses import (
    Host,
    HostKind,
    RouterAddress,
    Scheme,
    Server,
    hosts_from_text,
    read_host,
    read_legacy_server,
    read_password,
    read_server,
    write_host,
    write_legacy_server,
    write_password,
    write_server,
)
from blindpost.wire.errors import WireError
from blindpost.wire.primitives import Reader, decode_whole, encode
from tests.support.wire import agent_strategies as some
from tests.support.wire.hostile import calls_made, changed_everywhere, memory_peak, truncated_everywhere
from tests.support.wire.vectors import named, vectors

ADDRESSES = vectors("handshake.json", "address")
HOSTS = vectors("handshake.json", "host")
HOST_LISTS = vectors("handshake.json", "host_binary")
SHOWN_KINDS = {
    "THIPv4": HostKind.IPV4,
    "THIPv6": HostKind.IPV6,
    "THOnionHost": HostKind.ONION,
    "THDomainName": HostKind.DOMAIN,
}
KEY_HASH = bytes(range(32))


@pytest.mark.parametrize("vector", HOSTS, ids=named)
def test_hosts_are_read_as_by_the_reference(vector: dict[str, Any]) -> None:
    if "error" in vector["result"]:
        with pytest.raises(WireError):
            Host(vector["string"])
        return
    host = Host(vector["string"])
    assert host.text == vector["result"]["text"]
    assert host.kind is SHOWN_KINDS[vector["result"]["show"].split()[0]]
    assert encode(host, write_host).hex() == vector["result"]["binary"]


@pytest.mark.parametrize("vector", HOST_LISTS, ids=lambda vector: vector["bytes"])
def test_lists_of_hosts_in_commands(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    if isinstance(vector["result"], dict):
        with pytest.raises(WireError):
            decode_whole(data, read_hosts)
        return
    assert [host.text for host in decode_whole(data, read_hosts)] == vector["result"]


def read_hosts(reader: Reader) -> tuple[Host, ...]:
    return reader.list1(read_host)


@pytest.mark.parametrize("vector", ADDRESSES, ids=named)
def test_addresses_are_read_as_by_the_reference(vector: dict[str, Any]) -> None:
    expected = vector["with_password_allowed"]
    if "error" in expected:
        with pytest.raises(WireError):
            RouterAddress.from_text(vector["string"])
        return
    address = RouterAddress.from_text(vector["string"])
    password = expected["password"]
    assert address.scheme is Scheme(expected["scheme"])
    assert [host.text for host in address.server.hosts] == expected["hosts"]
    assert address.server.port == expected["port"]
    assert address.server.key_hash.hex() == expected["fingerprint"]
    assert address.password == (None if password is None else password.encode())
    assert address.written(bare_ipv6=True) == expected["encoded"]
    assert RouterAddress.from_text(address.text) == address
    binary = vector["without_password (SMP server)"].get("binary")
    if binary is not None:
        assert encode(address.server, write_server).hex() == binary
        assert decode_whole(bytes.fromhex(binary), read_server) == address.server


@pytest.mark.parametrize(
    ("text", "kind", "normal"),
    [
        ("255.255.255.255", HostKind.IPV4, "255.255.255.255"),
        ("1.2.3.256", HostKind.DOMAIN, "1.2.3.256"),
        ("1.2.3.0004", HostKind.IPV4, "1.2.3.4"),
        ("1.2.3.", HostKind.DOMAIN, "1.2.3."),
        ("2001:0DB8:0:0:1:0:0:0", HostKind.IPV6, "2001:db8:0:0:1::"),
        ("1:0:0:2:0:0:0:3", HostKind.IPV6, "1:0:0:2::3"),
        ("1:0:0:2:0:0:3:4", HostKind.IPV6, "1::2:0:0:3:4"),
        ("1:0:2:3:4:5:6:7", HostKind.IPV6, "1:0:2:3:4:5:6:7"),
        ("::", HostKind.IPV6, "::"),
        ("[::ffff:1.2.3.4]", HostKind.IPV6, "::ffff:102:304"),
        ("cafe", HostKind.DOMAIN, "cafe"),
        ("fade.example", HostKind.DOMAIN, "fade.example"),
        ("a2.onion", HostKind.ONION, "a2.onion"),
        ("!$%&'()*+-.<=>?@\\^_`{|}~", HostKind.DOMAIN, "!$%&'()*+-.<=>?@\\^_`{|}~"),
    ],
)
def test_kinds_of_hosts_and_their_normal_form(text: str, kind: HostKind, normal: str) -> None:
    host = Host(text)
    assert (host.kind, host.text) == (kind, normal)
    assert Host(normal) == host


@pytest.mark.parametrize(
    "text",
    [
        "1.2.3.4.5",
        "1.2.3.4x",
        "abc.onion.com",
        ".onion",
        "x-y.onion",
        "[::1",
        "[::1]x",
        "[fe80::1%eth0]",
        "fe80::1%eth0",
        "1:2:3",
        ":::",
        "a:b",
        "a\x7f",
        "a\x00",
        "a\r",
        "b\xe4r",
        "\u0661.2.3.4",
        *(f"a{character}b" for character in ":#,;/ \n\r\t[]"),
    ],
)
def test_invalid_hosts_are_refused(text: str) -> None:
    with pytest.raises(WireError):
        Host(text)


def test_hosts_and_servers_print_without_their_names() -> None:
    server = Server((Host("secret.example.com"),), "5223", KEY_HASH)
    assert repr(server) == (
        "Server(hosts=[Host(domain, 18 characters)], port=<4 characters>, key_hash=<32 bytes>)"
    )


def test_brackets_only_around_an_ipv6_host_that_a_port_follows() -> None:
    six, name = Host("2001:db8::1"), Host("a.b")

    def place(hosts: tuple[Host, ...], port: str, *, bare: bool = False) -> str:
        return RouterAddress(Scheme.SMP, Server(hosts, port, b"abc")).written(bare_ipv6=bare).split("@")[1]

    assert place((six,), "") == "2001:db8::1"
    assert place((six,), "443") == "[2001:db8::1]:443"
    assert place((six,), "443", bare=True) == "2001:db8::1:443"
    assert place((six, name), "443") == "2001:db8::1,a.b:443"
    assert place((name, six), "443") == "a.b,[2001:db8::1]:443"


def test_addresses_without_a_text_form() -> None:
    hosts = (Host("a.b"),)
    for address in (
        RouterAddress(Scheme.SMP, Server(hosts, "", b"")),
        RouterAddress(Scheme.SMP, Server(hosts, "abc", b"k")),
        RouterAddress(Scheme.SMP, Server(hosts, "", b"k"), b""),
        RouterAddress(Scheme.SMP, Server(hosts, "", b"k"), b"a@b"),
    ):
        with pytest.raises(WireError):
            _ = address.text
    with pytest.raises(WireError):
        Server((), "", b"k")


def test_a_port_may_be_any_text_in_binary() -> None:
    data = bytes.fromhex("01096c6f63616c686f7374036162630100")
    server = decode_whole(data, read_server)
    assert server.port == "abc"
    assert encode(server, write_server) == data


def test_ports_lose_leading_zeros_in_text() -> None:
    assert RouterAddress.from_text("smp://AAAA@a:000").server.port == "0"
    assert RouterAddress.from_text("smp://AAAA@a:0" + "1" * 30).server.port == "1" * 30


def test_text_holds_no_more_hosts_than_binary() -> None:
    assert len(hosts_from_text(",".join(["a"] * 255))) == 255
    with pytest.raises(WireError):
        hosts_from_text(",".join(["a"] * 256))


def test_same_address_ignores_the_fingerprint() -> None:
    one = Server((Host("a"), Host("b")), "1", b"k")
    assert one.same_address(Server((Host("a"), Host("b")), "1", b"other"))
    assert not one.same_address(Server((Host("b"), Host("a")), "1", b"k"))
    assert not one.same_address(Server((Host("a"),), "1", b"k"))
    assert not one.same_address(Server((Host("a"), Host("b")), "", b"k"))


def test_passwords() -> None:
    allowed = {*range(0x21, 0x7F), *range(0xA1, 0x100)} - {*b"@:/", 0xAD}
    for byte in range(256):
        data = bytes([1, byte])
        if byte in allowed:
            assert decode_whole(data, read_password) == data[1:]
            assert encode(data[1:], write_password) == data
        else:
            with pytest.raises(WireError):
                decode_whole(data, read_password)
            with pytest.raises(WireError):
                encode(data[1:], write_password)
    assert decode_whole(b"\0", read_password) == b""


def test_passwords_in_text_are_the_bytes_of_the_text() -> None:
    assert RouterAddress.from_text("smp://AAAA:\xe9\xa1@a").password == "\xe9\xa1".encode()
    with pytest.raises(WireError):
        RouterAddress.from_text("smp://AAAA:\xe0@a")
    with pytest.raises(WireError):
        RouterAddress.from_text("smp://AAAA:\ud800@a")
    raw = RouterAddress(Scheme.NTF, Server((Host("a"),), "", b"k"), b"\xe9")
    assert RouterAddress.from_text(raw.text) == raw


@given(some.router_addresses)
def test_addresses_round_trip(address: RouterAddress) -> None:
    assert RouterAddress.from_text(address.text) == address


@given(some.servers)
def test_servers_round_trip(server: Server) -> None:
    assert decode_whole(encode(server, write_server), read_server) == server
    legacy = Server(server.hosts[:1], server.port, server.key_hash)
    assert decode_whole(encode(server, write_legacy_server), read_legacy_server) == legacy


@given(st.one_of(st.text(max_size=60), st.text("abf01.:[],@/=-smp", max_size=60)))
def test_any_text_is_an_address_or_a_wire_error(text: str) -> None:
    for read in (RouterAddress.from_text, Host, hosts_from_text):
        with contextlib.suppress(WireError):
            read(text)
    with contextlib.suppress(WireError):
        RouterAddress.from_text("smp://AAAA@" + text)


@pytest.mark.parametrize("vector", ADDRESSES, ids=named)
def test_addresses_cut_and_changed(vector: dict[str, Any]) -> None:
    def decode(data: bytes) -> object:
        return RouterAddress.from_text(data.decode("latin-1"))

    good = vector["string"].encode("latin-1")
    truncated_everywhere(decode, good)
    changed_everywhere(decode, good, vector["name"])
    binary = vector["without_password (SMP server)"].get("binary")
    if binary is not None:
        data = bytes.fromhex(binary)
        assert truncated_everywhere(lambda cut: decode_whole(cut, read_server), data) == 0
        changed_everywhere(lambda changed: decode_whole(changed, read_server), data, vector["name"])


REPEATED = {
    "commas": ",",
    "hosts": "a1,",
    "digits and dots": "1.1.1,",
    "digits": "1",
    "zeros": "0",
    "colons": ":",
    "dots": "a.",
    "onions": "a.onion",
    "brackets": "[",
    "letters": "a",
}


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("start", ["smp://", "smp://AAAA:", "smp://AAAA@", "smp://AAAA@a:"])
def test_cost_of_long_texts_is_linear(name: str, start: str) -> None:
    def decode(data: bytes) -> object:
        return RouterAddress.from_text(data.decode())

    def text(count: int) -> bytes:
        return (start + REPEATED[name] * count).encode()

    assert calls_made(decode, text(4_000)) <= 2.2 * calls_made(decode, text(2_000)) + 50
    assert memory_peak(decode, text(4_000)) < 500 * 4_000
    with contextlib.suppress(WireError):
        decode(text(200_000))  # a backtracking expression would not come back from this one
