"""Push services that fail are not contacted for a while, longer each time.

The outgoing policy counts connections that cannot be made. A service that accepts one and then breaks
it, floods it or does not answer would be connected to again for every push to every one of its devices.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

Destination = tuple[str, int]

FIRST_S, FACTOR, LONGEST_S = 0.5, 2.0, 30.0
REMEMBERED_MAX = 10_000


class Rests:
    """By host and port; the one that failed longest ago is forgotten first."""

    def __init__(self) -> None:
        self._failures: OrderedDict[Destination, tuple[int, float]] = OrderedDict()

    def is_resting(self, place: Destination) -> bool:
        return _now() < self._failures.get(place, (0, 0.0))[1]

    def failed(self, place: Destination) -> None:
        """Requests that fail together, with one connection, are one failure."""
        if self.is_resting(place):
            return
        count, _ = self._failures.pop(place, (0, 0.0))
        pause_s = min(LONGEST_S, FIRST_S * FACTOR ** min(count, 32))
        self._failures[place] = (count + 1, _now() + pause_s)
        while len(self._failures) > REMEMBERED_MAX:
            self._failures.popitem(last=False)

    def answered(self, place: Destination) -> None:
        self._failures.pop(place, None)


def _now() -> float:
    return asyncio.get_running_loop().time()
