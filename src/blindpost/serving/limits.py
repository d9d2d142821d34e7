"""How much one address, and all of them together, may ask of a server.

An address is an IPv4 address or an IPv6 /64; the /56 and the /48 around it are counted too, and may have two
and four times as much. What is counted here lives in memory, for as long as it matters, and is never written
anywhere. When a total is reached, the largest holders make room for small ones.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from blindpost.serving.stored import STORED_MAX

if TYPE_CHECKING:
    from blindpost.serving.sections import Taking

AddressKey = tuple[bytes, ...]
"""What an address is counted under, the narrowest first: 4 bytes of IPv4; 8, 7 and 6 bytes of IPv6."""

_SWEEP_MIN = 1024
TIGHT_SHARE = 16
"""While memory is short, an address may have this fraction of its connections."""
PER_ADDRESS = frozenset({"listen.connections_per_address", "listen.handshakes"})
"""The settings of `Taking` that can change while a server runs: the others are the sizes it was made with."""
HANDSHAKES_SHARE = 8
"""One address may have this fraction of all handshakes in progress."""


@dataclass(frozen=True, slots=True)
class LimitSizes:
    """Every bound, in connections, in queues per second and in bytes."""

    connections: int = 50_000
    connections_per_address: int = 1_000
    handshakes: int = 2_000
    new_per_second: float = 500.0
    new_burst: int = 5_000
    new_per_address_per_second: float = 10.0
    new_per_address_burst: int = 500
    memory: int = 2 << 30
    """What the process may use, not counting its store's mapped files."""
    stored: int = STORED_MAX
    """The limit on the total size of a router's store."""

    @classmethod
    def of(cls, taking: Taking, connections: int) -> LimitSizes:
        """What a configuration says; the system may allow fewer connections."""
        return cls(
            connections=connections,
            connections_per_address=taking.connections_per_address,
            handshakes=taking.handshakes,
            memory=taking.memory_mib << 20,
        )

    @property
    def handshakes_per_address(self) -> int:
        return max(1, self.handshakes // HANDSHAKES_SHARE)

    @property
    def buffers(self) -> int:
        """What may wait in memory for all peers together: answers not read, messages not finished."""
        return self.memory // 4


class AddressKeys:
    """From a peer's address as text to what it is counted under; None if exempt."""

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
        packed = address.packed
        return (packed,) if address.version == 4 else (packed[:8], packed[:7], packed[:6])


def account_of(key: AddressKey | None) -> bytes | None:
    """What shares one turn: an IPv4 address, or the IPv6 /56 of one customer."""
    return None if key is None else key[min(1, len(key) - 1)]


class Bucket:
    """A token bucket: tokens return at a steady rate, up to a burst."""

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


class Holders:
    """The connections of each account, and which account has the most, without a search."""

    def __init__(self) -> None:
        self.total = 0
        self._held: dict[bytes, dict[object, None]] = {}
        self._ranks: dict[int, dict[bytes, None]] = {}
        self._top = 0

    def of(self, account: bytes | None) -> dict[object, None]:
        """The connections of an account, oldest first."""
        return {} if account is None else self._held.get(account, {})

    def sizes(self) -> dict[bytes, int]:
        return {account: len(held) for account, held in self._held.items()}

    @property
    def largest(self) -> dict[object, None]:
        """The connections of the largest account."""
        return self._held[next(iter(self._ranks[self._top]))] if self._held else {}

    def add(self, account: bytes | None, who: object) -> None:
        self.total += 1
        if account is not None:
            held = self._held.setdefault(account, {})
            held[who] = None
            self._rank(account, len(held) - 1, len(held))

    def remove(self, account: bytes | None, who: object) -> None:
        self.total -= 1
        if account is not None:
            held = self._held[account]
            del held[who]
            self._rank(account, len(held) + 1, len(held))
            if not held:
                del self._held[account]

    def _rank(self, account: bytes, before: int, after: int) -> None:
        if before:
            rank = self._ranks[before]
            del rank[account]
            if not rank:
                del self._ranks[before]
        if after:
            self._ranks.setdefault(after, {})[account] = None
        self._top = max(self._top, after)
        while self._top and self._top not in self._ranks:
            self._top -= 1


@dataclass(slots=True)
class Sockets:
    """How many were accepted, and how many of them closed."""

    accepted: int = 0
    closed: int = 0


@dataclass(slots=True)
class LimitMeters:
    """What was accepted and what was refused, since the start of the process."""

    sockets: dict[int, Sockets] = field(default_factory=dict)
    """By the port at which they came in."""
    refused_total: int = 0
    refused_address: int = 0
    refused_handshakes: int = 0
    handshakes_failed: int = 0
    new_refused: int = 0
    closed: int = 0
    """Connections that were counted and have ended."""
    made_room: int = 0
    """Closed because they or their address held the most when a total was reached."""


@dataclass(slots=True, eq=False)
class _Admitted:
    key: AddressKey | None
    close: Callable[[str], None]
    is_shaking: bool = True


class Limits:
    """Who may connect and who may create queues, now."""

    def __init__(self, sizes: LimitSizes, now: Callable[[], float], exempt: Sequence[str] = ()) -> None:
        self.sizes = sizes
        self.keys = AddressKeys(exempt)
        self.meters = LimitMeters()
        self.is_tight = False
        """Memory is short: nobody gets more than a small fraction of an address's limit."""
        self._now = now
        self._admitted: dict[object, _Admitted] = {}
        self._all = Holders()
        self._shaking = Holders()
        self._counts: Counter[bytes] = Counter()
        self._new_total = Bucket(sizes.new_burst, now())
        self._new: dict[bytes, Bucket] = {}
        self._sweep_at = _SWEEP_MIN

    @property
    def addresses(self) -> int:
        """How many addresses are connected or remembered."""
        connected = {admitted.key[0] for admitted in self._admitted.values() if admitted.key is not None}
        return len(connected | self._new.keys())

    @property
    def handshakes(self) -> int:
        """How many connections have not completed their handshake."""
        return self._shaking.total

    def top(self, count: int = 5) -> list[dict[str, int]]:
        """What the largest accounts hold, without saying who they are."""
        shaking = self._shaking.sizes()
        held = sorted(((size, shaking.get(who, 0)) for who, size in self._all.sizes().items()), reverse=True)
        return [{"connections": size, "handshakes": begun} for size, begun in held[:count]]

    @property
    def limited(self) -> dict[str, int]:
        """How often each limit applied."""
        meters = self.meters
        return {
            "refused_total": meters.refused_total,
            "refused_address": meters.refused_address,
            "refused_handshakes": meters.refused_handshakes,
            "new_refused": meters.new_refused,
            "made_room": meters.made_room,
        }

    def key_of(self, who: object) -> AddressKey | None:
        """What a connection is counted under."""
        admitted = self._admitted.get(who)
        return None if admitted is None else admitted.key

    def account(self, who: object) -> bytes | None:
        """The account whose turns a connection shares."""
        return account_of(self.key_of(who))

    def admit_host(self, who: object, host: str | None, close: Callable[[str], None]) -> bool:
        """`admit` a connection that comes from this address."""
        return self.admit(who, self.keys.of(host), close)

    def admit(self, who: object, key: AddressKey | None, close: Callable[[str], None]) -> bool:
        """Count a connection that begins its handshake, if there may be one more.

        `close` ends it, and says why, if it must make room later.
        """
        sizes, meters = self.sizes, self.meters
        limit = sizes.connections_per_address
        if self.is_tight:
            limit = max(1, limit // TIGHT_SHARE)
        if any(self._counts[prefix] >= limit * _times(prefix) for prefix in key or ()):
            meters.refused_address += 1
            return False
        account = account_of(key)
        if self._all.total >= sizes.connections and not self._make_room(account):
            meters.refused_total += 1
            return False
        if not self._room_for_handshake(account):
            meters.refused_handshakes += 1
            return False
        self._admitted[who] = _Admitted(key, close)
        self._all.add(account, who)
        self._shaking.add(account, who)
        self._counts.update(key or ())
        return True

    def established(self, who: object) -> None:
        """A connection that was counted has completed its handshake."""
        admitted = self._admitted.get(who)
        if admitted is not None and admitted.is_shaking:
            admitted.is_shaking = False
            self._shaking.remove(account_of(admitted.key), who)

    def gone(self, who: object, *, is_failure: bool = True) -> None:
        """A connection has ended. An unfinished handshake has failed, unless the connection was diverted."""
        admitted = self._admitted.pop(who, None)
        if admitted is None:
            return
        self.meters.closed += 1
        account = account_of(admitted.key)
        self._all.remove(account, who)
        if admitted.is_shaking:
            self._shaking.remove(account, who)
            self.meters.handshakes_failed += is_failure
        for prefix in admitted.key or ():
            self._counts[prefix] -= 1
            if not self._counts[prefix]:
                del self._counts[prefix]

    def _room_for_handshake(self, account: bytes | None) -> bool:
        """An account with many unfinished handshakes makes room by losing the oldest."""
        own = self._shaking.of(account)
        if len(own) >= self.sizes.handshakes_per_address:
            return self._close(next(iter(own)), "too many handshakes of one address")
        if self._shaking.total < self.sizes.handshakes:
            return True
        most = self._shaking.largest
        return len(most) > len(own) + 1 and self._close(next(iter(most)), "too many handshakes at once")

    def _make_room(self, account: bytes | None) -> bool:
        """An account holding more than twice what the newcomer would loses its newest connection."""
        most = self._all.largest
        return len(most) > 2 * (len(self._all.of(account)) + 1) and self.close_largest(
            "others need the connections that this address holds"
        )

    def close_largest(self, why: str) -> bool:
        """Close the newest connection of the largest account; False if none has more than one."""
        most = self._all.largest
        return len(most) > 1 and self._close(next(reversed(most)), why)

    def _close(self, who: object, why: str) -> bool:
        self.meters.made_room += 1
        admitted = self._admitted[who]
        self.gone(who)
        admitted.close(why)
        return True

    def new_queue(self, key: AddressKey | None) -> bool:
        """Whether this address may create a queue now; if so, it is counted."""
        sizes, now = self.sizes, self._now()
        rate, burst = sizes.new_per_address_per_second, sizes.new_per_address_burst
        for width, prefix in enumerate(key or ()):
            bucket = self._new.get(prefix)
            if bucket is not None and bucket.level(rate * 2**width, burst * 2**width, now) < 1:
                return False
        if self._new_total.level(sizes.new_per_second, sizes.new_burst, now) < 1:
            return False
        self._new_total.take()
        for width, prefix in enumerate(key or ()):
            bucket = self._new.get(prefix) or self._remember(prefix, burst * 2**width, now)
            bucket.take()
        return True

    def _remember(self, prefix: bytes, burst: int, now: float) -> Bucket:
        """A full bucket holds no information: drop such buckets once there are many."""
        sizes = self.sizes
        if len(self._new) >= self._sweep_at:
            rate = sizes.new_per_address_per_second
            self._new = {
                prefix: bucket
                for prefix, bucket in self._new.items()
                if bucket.level(rate * _times(prefix), sizes.new_per_address_burst * _times(prefix), now)
                < sizes.new_per_address_burst * _times(prefix)
            }
            self._sweep_at = max(_SWEEP_MIN, 2 * len(self._new))
        bucket = self._new[prefix] = Bucket(burst, now)
        return bucket


def _times(prefix: bytes) -> int:
    """How many times the limit of one address its surrounding networks have."""
    return {7: 2, 6: 4}.get(len(prefix), 1)
