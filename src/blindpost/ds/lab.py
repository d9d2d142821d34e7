"""Tier L of the delivery service: every event in the queues of the operator's own recipients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from blindpost.ds.turn import Happened
from blindpost.journal.lab import LabJournal


class DsLab:
    """Writes what happened in the queues of these recipients, blinded; the plan passes on no others.

    A payload's arrival time is known from its own event; one from before this process counts from the
    first event seen of it.
    """

    def __init__(
        self, journal: LabJournal, keys: Iterable[bytes], clock: Callable[[], float] = time.time
    ) -> None:
        self.keys = frozenset(keys)
        self._journal = journal
        self._clock = clock
        self._came: dict[tuple[bytes, bytes], float] = {}

    def note(self, now: float, happened: Iterable[Happened]) -> None:
        journal, wall = self._journal, self._clock()
        for event in happened:
            name = event.queue, event.payload
            waited_s = event.waited_s
            if event.payload:
                waited_s = now - self._came.setdefault(name, now)
            if event.event == "acked":
                del self._came[name]
            journal.add(
                int(wall * 1_000_000),
                journal.number(event.queue, wall),
                journal.number(b"".join(name), wall) if event.payload else 0,
                journal.code("event", event.event),
                event.depth,
                int(waited_s * 1_000_000),
            )
