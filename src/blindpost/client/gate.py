"""How often a destination is tried, whichever caller asks for it.

A destination is a host and a port: if it cannot be reached, that holds for every identity. An identity that
is not proven there is different, since anybody can name a wrong one: only that identity waits. Those that
were proven once never wait for attempts at others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TypeVar

from blindpost.transport import errors
from blindpost.wire.frozen import dataclass

K = TypeVar("K")
Destination = tuple[str, int]


class CrowdedError(errors.ConnectError):
    default = "too many connections are being opened"


@dataclass(frozen=True, slots=True)
class GateSizes:
    """All limits on attempts."""

    strangers: int = 64
    """Attempts at once at destinations that never succeeded."""
    strangers_there: int = 4
    """Such attempts at one destination."""
    first_s: float = 0.5
    factor: float = 2.0
    longest_s: float = 30.0
    """After a failure a destination, or an identity, is left alone for so long; each time longer."""
    remembered: int = 10_000
    """Destinations, and identities, of which failures are remembered."""
    proven: int = 10_000


@dataclass(slots=True)
class _Failures:
    error: errors.TransportError
    count: int = 0
    until: float = 0.0


@dataclass(slots=True)
class _Remembered:
    """What failed lately; the oldest go first."""

    most: int
    entries: OrderedDict[object, _Failures] = field(default_factory=OrderedDict)

    def check(self, key: object, now: float) -> None:
        """Fail as it did the last time, if that was just now."""
        found = self.entries.get(key)
        if found is not None and now < found.until:
            raise found.error.again()

    def failed(self, key: object, error: errors.TransportError, now: float, sizes: GateSizes) -> None:
        found = self.entries.setdefault(key, _Failures(error))
        pause = min(sizes.longest_s, sizes.first_s * sizes.factor ** min(found.count, 32))
        found.error, found.count, found.until = error.again(), found.count + 1, now + pause
        self.entries.move_to_end(key)
        while len(self.entries) > self.most:
            self.entries.popitem(last=False)

    def forget(self, key: object) -> None:
        self.entries.pop(key, None)


class Gate:
    """Lets attempts through, or refuses them at once."""

    def __init__(self, sizes: GateSizes | None = None, clock: Callable[[], float] | None = None) -> None:
        self.sizes = sizes or GateSizes()
        self._clock = clock or _loop_time
        self._unreached = _Remembered(self.sizes.remembered)
        self._unproven = _Remembered(self.sizes.remembered)
        self._left = _Remembered(self.sizes.remembered)
        self._proven: OrderedDict[tuple[Destination, bytes], None] = OrderedDict()
        self._known_hosts: OrderedDict[str, None] = OrderedDict()
        self._opening: dict[Destination, int] = {}
        self._strangers = 0

    def is_known(self, host: str) -> bool:
        """Whether a host was reached before and proved what it was asked to."""
        return host in self._known_hosts

    def know(self, host: str, port: int, identity: bytes) -> None:
        """This identity was proven there, in this run of the program or an earlier one."""
        _keep(self._proven, ((host, port), identity), self.sizes.proven)
        _keep(self._known_hosts, host, self.sizes.proven)

    def leave_alone(self, host: str, port: int, identity: bytes, because: errors.TransportError) -> None:
        """It was reached and misbehaved: each time it is left alone for longer."""
        self._left.failed(((host, port), identity), because, self._clock(), self.sizes)

    @contextlib.contextmanager
    def attempt(self, host: str, port: int, identity: bytes) -> Iterator[None]:
        """Wraps one attempt to connect and shake hands; raises `TransportError` if it is not allowed."""
        place, who = (host, port), ((host, port), identity)
        now = self._clock()
        self._unreached.check(place, now)
        self._unproven.check(who, now)
        self._left.check(who, now)
        is_stranger = who not in self._proven
        if is_stranger:
            self._enter(place)
        try:
            yield
        except errors.HandshakeBadServiceError:
            raise
        except (errors.ConnectError, errors.ConnectTimeoutError) as error:
            self._unreached.failed(place, error, self._clock(), self.sizes)
            raise
        except errors.TransportError as error:
            self._unreached.forget(place)
            self._unproven.failed(who, error, self._clock(), self.sizes)
            raise
        else:
            self._unreached.forget(place)
            self._unproven.forget(who)
            self.know(host, port, identity)
        finally:
            if is_stranger:
                self._leave(place)

    def _enter(self, place: Destination) -> None:
        there = self._opening.get(place, 0)
        # Destinations that never answer, tried again and again, must leave room for those not tried yet.
        most = self.sizes.strangers // (2 if place in self._unreached.entries else 1)
        if self._strangers >= most or there >= self.sizes.strangers_there:
            raise CrowdedError
        self._strangers += 1
        self._opening[place] = there + 1

    def _leave(self, place: Destination) -> None:
        self._strangers -= 1
        left = self._opening[place] - 1
        if left:
            self._opening[place] = left
        else:
            del self._opening[place]


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _keep(kept: OrderedDict[K, None], key: K, most: int) -> None:
    kept[key] = None
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)
