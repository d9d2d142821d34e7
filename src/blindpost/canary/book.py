"""What happened to every message: pure bookkeeping, without clock or network.

A message is known by one blinded number of its connection for its whole life. Times are the sending time plus
what a monotonic clock measured since, so setting the system clock neither delays nor loses a message.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

MIRROR = "'"
"""A fleet of one router has two agents on it; the suffix of the second one's name."""
LATENCIES_KEPT = 10_000
MESSAGES_KEPT = 100_000
MINUTE_US = 60_000_000


class Became(Enum):
    """What happened to a message, in the journal's words."""

    SENT = "sent"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    DELIVERED = "delivered"
    ACKED = "acked"
    DUPLICATE = "duplicate"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Way:
    """One direction of one pair of routers."""

    sender: str
    recipient: str

    @property
    def routers(self) -> tuple[str, str]:
        """The names of both routers: the second agent on a single router is recognised by its suffix."""
        return self.sender.rstrip(MIRROR), self.recipient.rstrip(MIRROR)


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of one message."""

    way: Way
    number: int
    became: Became
    at_us: int
    connection: int = 0
    """Which connection, blinded by the day of its sending."""
    integrity: str = ""


@dataclass(slots=True)
class _Message:
    """What is remembered of a message after it was sent or arrived."""

    connection: int
    sent_us: int = 0
    steady_us: int | None = None
    """The monotonic clock at sending; None if another process sent it."""
    came: bool = False
    paused: bool = False
    """The canary itself paused while it was under way: its latency says nothing about routers."""


class Book:
    """Messages under way, sums, and the latest latencies."""

    def __init__(
        self, lost_after_us: int, steady_us: Callable[[], int] | None = None, since_us: int | None = None
    ) -> None:
        """Messages sent before `since_us` are another process's: its downtime is not latency."""
        self._since_us = since_us
        self._lost_after_us = lost_after_us
        self._steady_us = steady_us
        self._messages: dict[tuple[Way, int], _Message] = {}
        self._under_way: set[tuple[Way, int]] = set()
        self._latencies: deque[int] = deque()
        self._sorted: list[int] = []
        self._recent: deque[tuple[int, int]] = deque(maxlen=LATENCIES_KEPT)
        """When the last ones arrived, and their latencies."""
        self.counts = dict.fromkeys(Became, 0)
        self.broken = 0
        """Messages whose number or hash did not follow the one before."""

    def lost_after(self, after_us: int) -> None:
        """From now on a message is lost after this time."""
        self._lost_after_us = after_us

    def sent(self, way: Way, number: int, at_us: int, connection: int = 0) -> Entry:
        steady_us = self._steady(at_us)
        if (way, number) not in self._messages:  # it may have come before the call that sent it returned
            self._remember((way, number), _Message(connection, at_us, steady_us))
            self._under_way.add((way, number))
        return self._entry(way, number, Became.SENT, at_us)

    def accepted(self, way: Way, number: int, at_us: int) -> Entry:
        return self._entry(way, number, Became.ACCEPTED, at_us)

    def refused(self, way: Way, number: int, at_us: int) -> Entry:
        """It will not be sent: no router has it, so it is not lost either."""
        self._under_way.discard((way, number))
        return self._entry(way, number, Became.REFUSED, at_us)

    def delivered(
        self, way: Way, number: int, sent_us: int, at_us: int, integrity: str, connection: int = 0
    ) -> Entry:
        """It arrived; `sent_us` and `connection` are in the message itself: a new process knows neither."""
        key = way, number
        message = self._messages.get(key)
        if message is None:
            message = self._remember(key, _Message(connection, sent_us))
        if message.came:
            return self._entry(way, number, Became.DUPLICATE, at_us, integrity)
        message.came = True
        self._under_way.discard(key)
        entry = self._entry(way, number, Became.DELIVERED, at_us, integrity)
        if not message.paused and (self._since_us is None or sent_us >= self._since_us):
            self._note(max(0, entry.at_us - sent_us), self._steady(at_us))
        if integrity != "ok":
            self.broken += 1
        return entry

    def acked(self, way: Way, number: int, at_us: int) -> Entry:
        return self._entry(way, number, Became.ACKED, at_us)

    def paused(self) -> int:
        """The canary paused: that makes messages under way neither lost nor late; returns their number."""
        for key in self._under_way:
            self._messages[key].paused = True
        count = len(self._under_way)
        self._under_way.clear()
        return count

    def overdue(self, at_us: int) -> list[Entry]:
        """Messages whose deadline has passed."""
        late = [
            key
            for key in self._under_way
            if self._time(key, at_us) - self._messages[key].sent_us > self._lost_after_us
        ]
        self._under_way.difference_update(late)
        return [self._entry(way, number, Became.LOST, at_us) for way, number in sorted(late, key=_by_number)]

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def latency_ms(self, share: float) -> float | None:
        """This quantile of the last latencies; None before the first."""
        if not self._sorted:
            return None
        return self._sorted[min(len(self._sorted) - 1, int(share * len(self._sorted)))] / 1000

    def last_minute_ms(self, at_us: int) -> tuple[float, float] | None:
        """Median and greatest latency of what arrived in the last minute; None if nothing did."""
        now_us = self._steady(at_us)
        while self._recent and self._recent[0][0] <= now_us - MINUTE_US:
            self._recent.popleft()
        if not self._recent:
            return None
        found = sorted(latency for _, latency in self._recent)
        return found[len(found) // 2] / 1000, found[-1] / 1000

    def _steady(self, at_us: int) -> int:
        return at_us if self._steady_us is None else self._steady_us()

    def _note(self, latency_us: int, now_us: int) -> None:
        self._recent.append((now_us, latency_us))
        self._latencies.append(latency_us)
        insort(self._sorted, latency_us)
        if len(self._latencies) > LATENCIES_KEPT:
            self._sorted.remove(self._latencies.popleft())

    def _remember(self, key: tuple[Way, int], message: _Message) -> _Message:
        self._messages[key] = message
        if len(self._messages) > MESSAGES_KEPT:
            oldest = next(iter(self._messages))
            del self._messages[oldest]
            self._under_way.discard(oldest)
        return message

    def _time(self, key: tuple[Way, int], at_us: int) -> int:
        """The time of an event now, unaffected by setting the clock since the message was sent."""
        message = self._messages.get(key)
        if message is None or message.steady_us is None or self._steady_us is None:
            return at_us
        return message.sent_us + self._steady_us() - message.steady_us

    def _entry(self, way: Way, number: int, became: Became, at_us: int, integrity: str = "") -> Entry:
        self.counts[became] += 1
        message = self._messages.get((way, number))
        connection = 0 if message is None else message.connection
        return Entry(way, number, became, self._time((way, number), at_us), connection, integrity)


def _by_number(key: tuple[Way, int]) -> int:
    return key[1]
