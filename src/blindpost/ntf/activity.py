"""How many tokens and queues were active today, this week and this month, without their names.

Only short hashes are kept, under a key that exists only in this process; a restart starts from zero.
"""

from __future__ import annotations

import datetime
import hashlib
from enum import Enum

from blindpost.crypto.entropy import Entropy

_KEY_SIZE, _HASH_SIZE = 32, 8


class Period(Enum):
    """As the reference names them. Weeks start on Monday; all periods are of UTC."""

    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"

    def start(self, day: datetime.date) -> datetime.date:
        match self:
            case Period.DAILY:
                return day
            case Period.WEEKLY:
                return day - datetime.timedelta(days=day.weekday())
            case Period.MONTHLY:
                return day.replace(day=1)


class Activity:
    """The activity of one kind of thing."""

    def __init__(self, entropy: Entropy) -> None:
        self._key = entropy(_KEY_SIZE)
        self._seen: dict[Period, tuple[datetime.date, set[bytes]]] = {}

    def note(self, name: bytes, now: float) -> None:
        digest = hashlib.blake2b(name, digest_size=_HASH_SIZE, key=self._key).digest()
        for period in Period:
            self._current(period, now).add(digest)

    def count(self, period: Period, now: float) -> int:
        return len(self._current(period, now))

    def _current(self, period: Period, now: float) -> set[bytes]:
        start = period.start(datetime.datetime.fromtimestamp(now, datetime.UTC).date())
        found = self._seen.get(period)
        if found is None or found[0] != start:
            found = self._seen[period] = (start, set())
        return found[1]
