"""Where an address leads: hosts, ports, networks and protocol names."""

from __future__ import annotations

import pytest

from blindpost.client.errors import NoHostError
from blindpost.client.hosts import NTF_PORT, SMP_PORT, places
from blindpost.client.options import HostChoice, Options
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Host, Server

PUBLIC, ONION_WAY = MemoryNetwork(), MemoryNetwork()
HOSTS = ("smp.example", "abc234.onion", "192.0.2.7", "2001:db8::1")


def server(port: str = "", *hosts: str) -> Server:
    return Server(tuple(map(Host, hosts or HOSTS)), port, bytes(32))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (HostChoice.IN_ORDER, [0, 1, 2, 3]),
        (HostChoice.ONION_FIRST, [1, 0, 2, 3]),
        (HostChoice.ONION_ONLY, [1]),
        (HostChoice.PUBLIC_ONLY, [0, 2, 3]),
    ],
)
def test_hosts_are_chosen(choice: HostChoice, expected: list[int]) -> None:
    options = Options(network=PUBLIC, onion_network=ONION_WAY, hosts=choice)
    found = places(server(), options, SMP_PORT, b"smp/1")
    assert [place.host for place in found] == [HOSTS[index] for index in expected]
    for place in found:
        assert place.network is (ONION_WAY if place.host.endswith(".onion") else PUBLIC)


def test_onion_hosts_are_skipped_without_a_route_to_them() -> None:
    found = places(server(), Options(network=PUBLIC), SMP_PORT, b"smp/1")
    assert [place.host for place in found] == ["smp.example", "192.0.2.7", "2001:db8::1"]
    only_onion = Options(network=PUBLIC, hosts=HostChoice.ONION_ONLY)
    with pytest.raises(NoHostError):
        places(server(), only_onion, SMP_PORT, b"smp/1")


@pytest.mark.parametrize(
    ("port", "default", "expected"),
    [
        ("", SMP_PORT, 5223),
        ("", NTF_PORT, 443),
        ("7", SMP_PORT, 7),
        ("443", SMP_PORT, 443),
        ("65535", SMP_PORT, 65535),
    ],
)
def test_an_explicit_port_overrides_the_default(port: str, default: int, expected: int) -> None:
    (place,) = places(server(port, "smp.example"), Options(), default, b"smp/1")
    assert (place.port, place.alpn) == (expected, b"smp/1")


@pytest.mark.parametrize("port", ["0", "65536", "9" * 5000, "-1", "x", "²", "٥٢٢٣"])
def test_a_port_that_does_not_exist_is_refused(port: str) -> None:
    with pytest.raises(NoHostError):
        places(server(port, "smp.example"), Options(), SMP_PORT, b"smp/1")


def test_hosts_on_the_web_port_list_are_reached_there_unless_a_port_is_named() -> None:
    options = Options(web_port_hosts=frozenset({"web.example"}))
    found = places(server("", "web.example", "smp.example"), options, SMP_PORT, b"smp/1")
    assert [(place.port, place.alpn) for place in found] == [(443, b"http/1.1"), (5223, b"smp/1")]
    (named,) = places(server("5223", "web.example"), options, SMP_PORT, b"smp/1")
    assert (named.port, named.alpn) == (5223, b"smp/1")
