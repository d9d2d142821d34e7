"""Tier L of a running server: whole events, of the operator's own canaries and load tests only.

The server decides which things are the operator's own; nothing else gets here.
Their names become numbers that are valid for one day.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from blindpost.journal.author import Author
from blindpost.journal.blinding import Blinding
from blindpost.journal.folder import reason_of
from blindpost.journal.frames import EventWriter
from blindpost.journal.schema import Table

log = logging.getLogger("blindpost.journal")


class LabJournal:
    """The events of one table. Those that cannot be written are lost, logged once; the server continues."""

    def __init__(self, root: Path, table: Table, author: Author) -> None:
        self._events = EventWriter(root, table, author)
        self._failed = False
        self.code, self.word = self._events.code, self._events.word
        self.number = Blinding().number

    def add(self, *fields: float) -> None:
        self._guarded(lambda: self._events.add(*fields))

    def flush(self) -> None:
        """What was added survives `kill -9` from now on."""
        self._guarded(self._events.flush)

    def cut(self) -> Callable[[], None] | None:
        """End the segment: what this returns, if anything, lets it be sealed, in any thread."""
        try:
            return self._events.cut()
        except OSError as error:
            self._lost(error)
            return None

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        if not self._failed:
            log.error("events of canaries and load tests are lost: %s", reason_of(error))
        self._failed = True
