"""How much one address, and all of them together, may ask of a server.

An address is an IPv4 address or an IPv6 /64. What is counted here lives in memory, for as long as it
matters, and is never written anywhere.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass

AddressKey = bytes
"""What an address is counted under: 4 bytes of an IPv4 address, 8 of an IPv6 one."""

_SWEEP_MIN = 1024


@dataclass(frozen=True, slots=True)
class LimitSizes:
    """Every bound, in connections and in queues per second."""

    connections: int = 50_000
    connections_per_address: int = 1_000
    handshakes: int = 2_000
    new_per_second: float = 500.0
    new_burst: int = 5_000
    new_per_address_per_second: float = 10.0
    new_per_address_burst: int = 500


class AddressKeys:
    """From the text of a peer's address to what it is counted under; None for those that are exempt."""

    def __init__(self, exempt: Sequence[str] = ()) -> None:
        self._exempt = [ipaddress.ip_network(network) for network in exempt]

    def of(self, host: str | None) -> AddressKey | None:
        if host is None:
            return None
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return None
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        if any(address in network for network in self._exempt):
            return None
        return address.packed if address.version == 4 else address.packed[:8]


class Bucket:
    """Tokens that come back at a steady rate, up to a burst."""

    __slots__ = ("_at", "_tokens")

    def __init__(self, burst: float, now: float) -> None:
        self._tokens = float(burst)
        self._at = now

    def level(self, rate: float, burst: float, now: float) -> float:
        """How many tokens there are now."""
        self._tokens = min(burst, self._tokens + (now - self._at) * rate)
        self._at = now
        return self._tokens

    def take(self) -> None:
        self._tokens -= 1


class Limits:
    """Who may connect and who may create queues, now."""

    def __init__(self, sizes: LimitSizes, now: Callable[[], float]) -> None:
        self.sizes = sizes
        self._now = now
        self._connections: dict[AddressKey, int] = {}
        self._new_total = Bucket(sizes.new_burst, now())
        self._new: dict[AddressKey, Bucket] = {}
        self._sweep_at = _SWEEP_MIN

    @property
    def addresses(self) -> int:
        """How many addresses are connected or remembered."""
        return len(self._connections.keys() | self._new.keys())

    def connect(self, key: AddressKey | None) -> bool:
        """Count a connection of this address, if it may have one more."""
        if key is None:
            return True
        count = self._connections.get(key, 0)
        if count >= self.sizes.connections_per_address:
            return False
        self._connections[key] = count + 1
        return True

    def disconnect(self, key: AddressKey | None) -> None:
        """A connection that was counted is over."""
        if key is not None:
            left = self._connections[key] - 1
            if left:
                self._connections[key] = left
            else:
                del self._connections[key]

    def new_queue(self, key: AddressKey | None) -> bool:
        """Whether this address may create a queue now; if so, it is counted."""
        sizes, now = self.sizes, self._now()
        rate, burst = sizes.new_per_address_per_second, sizes.new_per_address_burst
        bucket = None if key is None else self._new.get(key)
        if bucket is not None and bucket.level(rate, burst, now) < 1:
            return False
        if self._new_total.level(sizes.new_per_second, sizes.new_burst, now) < 1:
            return False
        self._new_total.take()
        if key is not None:
            if bucket is None:
                bucket = self._remember(key, now)
            bucket.take()
        return True

    def _remember(self, key: AddressKey, now: float) -> Bucket:
        """A full bucket says nothing: those are dropped when many have come together."""
        sizes = self.sizes
        if len(self._new) >= self._sweep_at:
            rate, burst = sizes.new_per_address_per_second, sizes.new_per_address_burst
            self._new = {
                key: bucket for key, bucket in self._new.items() if bucket.level(rate, burst, now) < burst
            }
            self._sweep_at = max(_SWEEP_MIN, 2 * len(self._new))
        bucket = self._new[key] = Bucket(sizes.new_per_address_burst, now)
        return bucket
