"""How much is stored, in total and newly by whom: the fuller the store, the less one address may add.

An address may recently have stored a fraction of the free room. So whoever adds most is refused first,
and room stays for others however many fill it. Nothing is counted while half of the total is free. The counts
live in memory only, and what leaves the store again leaves them too.
"""

from __future__ import annotations

from collections import OrderedDict

from blindpost.engine.undo import Undo

STORED_MAX = 256 << 30
"""The default limit on what is stored."""
NEAR = 1 / 2
"""Above this fraction of the limit, additions are counted by account."""
CALM = 3 / 8
"""Below this fraction the counts are dropped."""
SHARE = 256
"""One address may have added this fraction of the free room, an IPv6 /48 twice as much."""
TRACKED_MAX = 50_000
"""For how many stored things, the newest, it is known who added them."""

Place = tuple[bytes, int]
"""What is stored: its queue, and its number there."""
_Added = tuple[tuple[bytes, ...], int]


def around(account: object) -> tuple[bytes, ...]:
    """An account and the network around it: an IPv6 /56 is in a /48; an exempt one is in none."""
    if not isinstance(account, bytes):
        return ()
    return (account, account[:6]) if len(account) == 7 else (account,)


class Stored:
    """What may be added to a store, and by whom."""

    def __init__(self, limit: int, undo: Undo) -> None:
        self.limit = limit
        self.total = 0
        """Bytes in the store, as last seen, and those added since then."""
        self.is_near = False
        self.refused = 0
        self._undo = undo
        self._added: OrderedDict[Place, _Added] = OrderedDict()
        self._held: dict[bytes, int] = {}

    def look(self, total: int) -> None:
        """This much is stored now."""
        self.total = total
        if total > self.limit * NEAR:
            self.is_near = True
        elif total <= self.limit * CALM:
            self.is_near = False
            self._added.clear()
            self._held.clear()

    def largest(self, count: int = 5) -> list[int]:
        """What the largest accounts have stored, in bytes."""
        return sorted(self._held.values(), reverse=True)[:count]

    def allows(self, account: object, size: int) -> bool:
        """Whether an account may add this much now; one that added nothing yet may, while there is room."""
        if not self.is_near:
            return True
        room = self.limit - self.total
        fits = size <= room and all(
            prefix not in self._held or self._held[prefix] + size <= room // SHARE * 2**width
            for width, prefix in enumerate(around(account))
        )
        self.refused += not fits
        return fits

    def add(self, account: object, place: Place, size: int) -> None:
        """An account adds something; rolled back with its turn."""
        self.total += size
        if not self.is_near:
            self.is_near = self.total > self.limit * NEAR
            return
        self._undo.add((self._take_back, place, size))
        prefixes = around(account)
        if prefixes:
            self._count(place, (prefixes, size))

    def remove(self, place: Place, size: int) -> None:
        """Something leaves the store; rolled back with its turn."""
        if self.is_near:
            self._undo.add((self._put_back, place, size, self._added.get(place)))
            self.gone(place, size)

    def gone(self, place: Place, size: int) -> None:
        """Something has left the store, permanently."""
        self.total = max(0, self.total - size)
        self._leave(place)

    def _put_back(self, place: Place, size: int, added: _Added | None) -> None:
        self.total += size
        if added is not None:
            self._count(place, added)

    def _take_back(self, place: Place, size: int) -> None:
        self.total -= size
        self._leave(place)

    def _count(self, place: Place, added: _Added) -> None:
        self._leave(place)
        self._added[place] = added
        prefixes, size = added
        for prefix in prefixes:
            self._held[prefix] = self._held.get(prefix, 0) + size
        if len(self._added) > TRACKED_MAX:
            self._leave(next(iter(self._added)))

    def _leave(self, place: Place) -> None:
        prefixes, size = self._added.pop(place, ((), 0))
        for prefix in prefixes:
            left = self._held.get(prefix, 0) - size
            if left > 0:
                self._held[prefix] = left
            else:
                self._held.pop(prefix, None)
