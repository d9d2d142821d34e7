"""Which entries at the head of a queue a turn loads, and which of them with their payloads."""

from __future__ import annotations

from dataclasses import replace

from blindpost.ds.model import Entry
from blindpost.ds.state import Reach
from blindpost.ds.view import View

SCAN_MAX = 8192
"""How many entries of one queue a turn looks at: if that many are handed out, the rest are hidden."""


class Head:
    """The head of one queue, entry by entry, until an answer or the turn is full."""

    def __init__(
        self, queue: bytes, reach: Reach, payloads: int, response_bytes: int, turn_bytes: int
    ) -> None:
        self.queue = queue
        self._reach = reach
        self.size = 0
        """Bytes of the payloads that are to be loaded in the turn: of all but the large ones."""
        self.wanted: list[int] = []
        """The numbers of those payloads."""
        self._given = self._given_bytes = 0
        self.is_cut = False
        self._entries: list[Entry] = []
        self._payloads = payloads
        self._response_bytes = response_bytes
        self._turn_bytes = turn_bytes

    @property
    def is_scanned(self) -> bool:
        """Whether to stop looking at entries."""
        return self.is_cut or len(self._entries) >= SCAN_MAX

    def offer(self, entry: Entry) -> None:
        """The next entry of the queue. Those that nobody comes to are not looked at."""
        if self.is_scanned:
            return
        if self._reach.is_over:
            self.is_cut = True
            return
        if self._reach.may_take(entry.number):
            given, size = self._given_bytes + entry.size, self.size + (0 if entry.is_large else entry.size)
            is_full = self._given == self._payloads or (self._given and given > self._response_bytes)
            if is_full or size > self._turn_bytes:
                self.is_cut = True
                return
            if not entry.is_large:
                self.wanted.append(entry.number)
            self._given, self._given_bytes, self.size = self._given + 1, given, size
        self._entries.append(entry)

    def fill(self, view: View, payloads: dict[int, bytes], *, is_all: bool) -> None:
        """Hand over what was found; `is_all` if the queue has no more entries than were offered."""
        entries = [
            replace(entry, payload=payloads[entry.number]) if entry.number in payloads else entry
            for entry in self._entries
        ]
        assert all(number in payloads for number in self.wanted), "an entry without its payload"
        view.fill_head(self.queue, entries, cut=self.is_cut, whole=is_all and not self.is_scanned)
