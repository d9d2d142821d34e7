"""From the address of a router to the places where it may be reached, in the order to try them."""

from __future__ import annotations

from blindpost.client.errors import NoHostError
from blindpost.client.lookup import is_name
from blindpost.client.options import HostChoice, Options
from blindpost.transport.network import Network
from blindpost.wire.addresses import Host, HostKind, Server
from blindpost.wire.frozen import dataclass

SMP_PORT = 5223
NTF_PORT = 443
WEB_PORT = 443
WEB_ALPN = b"http/1.1"
_PORT_MAX = 0xFFFF
PLACES_MAX = 4
"""How many hosts of one address are tried: an address may name 255, and strangers make them up."""


@dataclass(frozen=True, slots=True)
class HostPlace:
    """Where to connect, through what, and with which protocol name."""

    host: str
    port: int
    network: Network
    alpn: bytes


def places(server: Server, options: Options, default_port: int, alpn: bytes) -> list[HostPlace]:
    """Where to try, at least one place, or `NoHostError`."""
    found = []
    for host in _chosen(server.hosts, options.hosts):
        network = options.onion_network if host.kind is HostKind.ONION else options.network
        if network is None or (host.kind is HostKind.DOMAIN and not is_name(host.text)):
            continue
        if not server.port and host.text in options.web_port_hosts:
            found.append(HostPlace(host.text, WEB_PORT, network, WEB_ALPN))
        else:
            found.append(HostPlace(host.text, _port(server.port, default_port), network, alpn))
    if not found:
        raise NoHostError
    return found[:PLACES_MAX]


def _chosen(hosts: tuple[Host, ...], choice: HostChoice) -> list[Host]:
    onion = [host for host in hosts if host.kind is HostKind.ONION]
    public = [host for host in hosts if host.kind is not HostKind.ONION]
    match choice:
        case HostChoice.IN_ORDER:
            return list(hosts)
        case HostChoice.PUBLIC_FIRST:
            return public + onion
        case HostChoice.ONION_FIRST:
            return onion + public
        case HostChoice.ONION_ONLY:
            return onion
        case HostChoice.PUBLIC_ONLY:
            return public


def _port(text: str, default: int) -> int:
    """An address may name a port that no host has, since its grammar does not bound it."""
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) <= _PORT_MAX):
        raise NoHostError("the address names a port that does not exist")
    return int(text)
