"""Where a server may connect to when a stranger names the host.

Addresses that are not those of the public internet lead into the operator's own machine and networks. They
are refused unless the operator allows them. A name is looked up once, and what was found is what is checked
and what is connected to: a name server that answers otherwise the second time is not asked twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from blindpost.client.gate import Gate
from blindpost.client.lookup import Lookups, literal
from blindpost.client.options import HostChoice, SmpOptions
from blindpost.client.socks import SocksNetwork
from blindpost.transport.network import TCP, HostRefusedError, Listener, Network

P = TypeVar("P", bound=asyncio.BaseProtocol)
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
AnyNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

ADDRESSES_MAX = 4
"""How many addresses of one name are tried."""

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC = [
    ipaddress.ip_network(text)
    for text in (
        "192.0.0.0/24",  # protocol assignments
        "192.88.99.0/24",  # 6to4 relays
        "2001::/23",  # Teredo and other special uses, which carry IPv4 addresses among others
        "2002::/16",  # 6to4, with an IPv4 address inside
        "3fff::/20",  # documentation
    )
]


def is_public(address: Address) -> bool:
    """Whether it is an address of the public internet, as one host."""
    if address.is_multicast or not address.is_global:
        return False
    if address.version == 6 and address not in _GLOBAL_UNICAST:
        # Among the others: mapped IPv4, NAT64, unique local and site-local addresses.
        return False
    return not any(address.version == one.version and address in one for one in _NOT_PUBLIC)


class Allowed:
    """Public addresses, and the networks that the operator names."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks: list[AnyNetwork] = [ipaddress.ip_network(text) for text in networks]

    def has(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False
        return is_public(address) or any(
            address.version == network.version and address in network for network in self._networks
        )


class GuardedNetwork:
    """TCP to allowed addresses only."""

    def __init__(
        self,
        allowed: Allowed,
        lookups: Lookups,
        is_known: Callable[[str], bool] = lambda _: False,
        through: Network = TCP,
    ) -> None:
        self._allowed = allowed
        self._lookups = lookups
        self._is_known = is_known
        self._through = through

    async def addresses(self, host: str) -> list[str]:
        """Where this host may be connected to, at least one address, or `OSError`."""
        found = await self._lookups.find(host, is_known=self._is_known(host))
        allowed = [address for address in found if self._allowed.has(address)]
        if not allowed:
            raise HostRefusedError
        return allowed[:ADDRESSES_MAX]

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        *others, last = await self.addresses(host)
        for address in others:
            with contextlib.suppress(OSError):
                return await self._through.connect(factory, address, port)
        return await self._through.connect(factory, last, port)

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> Listener:
        raise OSError("this network is for outgoing connections only")


class ProxiedNetwork:
    """Through the operator's proxy, which looks names up; addresses that are written out are checked here."""

    def __init__(self, allowed: Allowed, proxy: SocksNetwork) -> None:
        self._allowed = allowed
        self._proxy = proxy

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        written = literal(host)
        if written is not None and not self._allowed.has(written):
            raise HostRefusedError
        return await self._proxy.connect(factory, host, port)

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> Listener:
        raise OSError("this network is for outgoing connections only")


class Outbound:
    """All that goes out of one server: the ways, who may be reached by them, and how often it is tried."""

    def __init__(
        self,
        allow: Sequence[str] = (),
        socks: str = "",
        socks_mode: Literal["onion", "always"] = "onion",
        host_mode: Literal["public", "onion"] = "public",
        required_host_mode: bool = False,
        *,
        lookups: Lookups | None = None,
        gate: Gate | None = None,
    ) -> None:
        allowed = Allowed(allow)
        self.gate = gate or Gate()
        self.direct = GuardedNetwork(allowed, lookups or Lookups(), self.gate.is_known)
        proxy = None
        if socks:
            host, _, port = socks.rpartition(":")
            proxy = ProxiedNetwork(allowed, SocksNetwork(host.strip("[]"), int(port)))
        self.network: Network = proxy if proxy is not None and socks_mode == "always" else self.direct
        self.onion_network: Network | None = proxy
        self.hosts = _CHOICES[host_mode, required_host_mode]

    def applied(self, options: SmpOptions) -> SmpOptions:
        """These options for connections that obey the policy."""
        return replace(
            options,
            network=self.network,
            onion_network=self.onion_network,
            hosts=self.hosts,
            gate=self.gate,
        )


_CHOICES = {
    ("public", False): HostChoice.PUBLIC_FIRST,
    ("public", True): HostChoice.PUBLIC_ONLY,
    ("onion", False): HostChoice.ONION_FIRST,
    ("onion", True): HostChoice.ONION_ONLY,
}
