"""What became of every message: pure bookkeeping, no clock and no network of its own."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass
from enum import Enum

LATENCIES_KEPT = 10_000
DELIVERED_KEPT = 100_000


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


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of one message."""

    way: Way
    number: int
    became: Became
    at_us: int
    integrity: str = ""


class Book:
    """Messages under way, sums, and the latencies of the last ones that arrived."""

    def __init__(self, lost_after_us: int) -> None:
        self._lost_after_us = lost_after_us
        self._under_way: dict[tuple[Way, int], int] = {}
        self._arrived: dict[tuple[Way, int], None] = {}
        self._latencies: deque[int] = deque()
        self._sorted: list[int] = []
        self.counts = dict.fromkeys(Became, 0)
        self.broken = 0
        """Messages whose number or hash did not follow the one before."""

    def sent(self, way: Way, number: int, at_us: int) -> Entry:
        self._under_way[way, number] = at_us
        return self._entry(way, number, Became.SENT, at_us)

    def accepted(self, way: Way, number: int, at_us: int) -> Entry:
        return self._entry(way, number, Became.ACCEPTED, at_us)

    def refused(self, way: Way, number: int, at_us: int) -> Entry:
        """It will not be sent: no router has it, so it is not lost either."""
        self._under_way.pop((way, number), None)
        return self._entry(way, number, Became.REFUSED, at_us)

    def delivered(self, way: Way, number: int, sent_us: int, at_us: int, integrity: str) -> Entry:
        """It arrived; `sent_us` is what the message itself says, which a new process does not know."""
        key = way, number
        if key in self._arrived:
            return self._entry(way, number, Became.DUPLICATE, at_us, integrity)
        self._arrived[key] = None
        if len(self._arrived) > DELIVERED_KEPT:
            del self._arrived[next(iter(self._arrived))]
        self._under_way.pop(key, None)
        self._note(max(0, at_us - sent_us))
        if integrity != "ok":
            self.broken += 1
        return self._entry(way, number, Became.DELIVERED, at_us, integrity)

    def acked(self, way: Way, number: int, at_us: int) -> Entry:
        return self._entry(way, number, Became.ACKED, at_us)

    def overdue(self, at_us: int) -> list[Entry]:
        """Messages whose time is over."""
        late = [key for key, sent in self._under_way.items() if at_us - sent > self._lost_after_us]
        for key in late:
            del self._under_way[key]
        return [self._entry(way, number, Became.LOST, at_us) for way, number in late]

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def latency_ms(self, share: float) -> float | None:
        """This quantile of the last latencies; None before the first."""
        if not self._sorted:
            return None
        return self._sorted[min(len(self._sorted) - 1, int(share * len(self._sorted)))] / 1000

    def _note(self, latency_us: int) -> None:
        self._latencies.append(latency_us)
        insort(self._sorted, latency_us)
        if len(self._latencies) > LATENCIES_KEPT:
            self._sorted.remove(self._latencies.popleft())

    def _entry(self, way: Way, number: int, became: Became, at_us: int, integrity: str = "") -> Entry:
        self.counts[became] += 1
        return Entry(way, number, became, at_us, integrity)
