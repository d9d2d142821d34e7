"""Journals that the servers of a run write, as real ones do; and books of what they must come to.

A book is kept of what a server's store took, so that it does not depend on what the server itself counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from blindpost.ds.view import AddEntry, DeleteEntry
from blindpost.ds.view import Change as DsChange
from blindpost.journal.folder import SEGMENTS
from blindpost.journal.keeping import JournalKeeper, Keeping, Read
from blindpost.journal.minutes import MINUTE_S
from blindpost.ntf.model import LedgerState
from blindpost.router.changes import AddMessage, Change, DeleteMessage, DeleteQueue, PutQueue
from simulation.party import Party

EVERY, OFFSET = 10, 3
"""Which short runs write journals; those with real keys are others."""
FOLDER, TRUTH = "journal", "truth"
LATE_S = 2.0
"""How much later than the end of its minute a record may be: it waits for the store, but not for ever."""


def is_journaled(seed: int | str) -> bool:
    """Whether the servers of this short run write journals."""
    return isinstance(seed, int) and seed % EVERY == OFFSET


LEDGER = {
    "stored": tuple(LedgerState),
    "accepted": (LedgerState.ACCEPTED,),
    "replaced": (LedgerState.SUPERSEDED,),
    "expired": (LedgerState.EXPIRED,),
    "refused": (LedgerState.REJECTED,),
}
"""What the funnel calls the states of the ledger. What ends without being stored is in no ledger."""


class Keeper(JournalKeeper):
    """The real one in virtual time; what it wrote is sealed after the run."""

    def __init__(self, book: Book, read: Read) -> None:
        super().__init__(Keeping(book.folder, book.name), book.role, read, book.party.now)
        self._book = book

    async def record(self, minute_s: int | None = None) -> None:
        await super().record(minute_s)
        self._book.recorded()

    async def seal_soon(self) -> None:
        """No other process belongs to a run."""

    def killed(self) -> None:
        """Its process is dead: the system closes the file, and nothing more is written."""
        segment = None if self._journal is None else self._journal._records._segment
        if segment is not None:
            os.close(segment._descriptor)


class Book:
    """What one server's store took, by the names of counters, and what of it the journal must have."""

    def __init__(self, party: Party, role: str) -> None:
        self.party = party
        self.role = role
        self.folder = party.run.folder / FOLDER
        self.name = f"seed-{party.run.seed}-{party.name}".replace(" ", "-")
        self.taken: Counter[str] = Counter()
        """In all lives."""
        self.low: Counter[str] = Counter()
        self.high: Counter[str] = Counter()
        """What all lives recorded: more if a commit was under way at their last record."""
        self.wrote = False
        """Whether anything was recorded at all."""
        self._life: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()
        self._recorded: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        self._recorded_at = 0.0
        self._keeper: Keeper | None = None

    # What the store is given

    def committing(self, counted: Counter[str]) -> None:
        self._under_way = counted

    def committed(self) -> None:
        self._life += self._under_way
        self._under_way = Counter()

    def refused(self) -> None:
        self._under_way = Counter()

    def known(self, outcome: asyncio.Future[bool]) -> None:
        """Nobody could tell at first whether it was taken."""
        if outcome.result():
            self.committed()
        else:
            self.refused()

    def holds(self, totals: Counter[str]) -> None:
        """For a store that counts by itself: what it took in this life."""
        self._life = totals

    # What the journal is given

    def begins(self, read: Read) -> Keeper:
        """A life begins."""
        self._life, self._under_way, self._recorded = Counter(), Counter(), (Counter(), Counter())
        self._recorded_at = self.party.run.loop.time()
        self._keeper = keeper = Keeper(self, read)
        return keeper

    def recorded(self) -> None:
        """Whatever was taken until now is in the journal."""
        self.wrote = True
        self._recorded = self._life.copy(), self._under_way
        self._recorded_at = self.party.run.loop.time()

    def so_far(self) -> Counter[str]:
        """What the store took, whether the journal has it or not."""
        return self.taken + self._life

    def unrecorded(self) -> Counter[str]:
        """What of this life the journal does not have yet."""
        return self._life - self._recorded[0]

    @property
    def silent_s(self) -> float:
        """How long nothing was recorded."""
        return self.party.run.loop.time() - self._recorded_at

    def overdue(self) -> Counter[str]:
        """What it should have by now: a record is due each minute."""
        return self.unrecorded() if self.silent_s > MINUTE_S + LATE_S else Counter()

    def ends(self) -> None:
        """The process is dead: a journal may lose what came after its last record, which was a minute ago at
        most."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        keeper.killed()
        recorded, perhaps = self._recorded
        self.taken += self._life
        self.low += recorded
        self.high += recorded + perhaps
        if self.overdue():
            self.party.run.violated(f"the journal of {self.party.name} lost {self.silent_s:.0f} seconds")

    def closed(self) -> None:
        """The process was told to stop, and has written all."""
        if lost := self.unrecorded():
            self.party.run.violated(f"the journal of {self.party.name} ends without {dict(lost)}")


@asynccontextmanager
async def journaled(book: Book | None, read: Read | None) -> AsyncIterator[None]:
    """A journal for one life, if this run has journals: begun before anybody is served, closed after."""
    if book is None or read is None:
        yield
        return
    keeper = book.begins(read)
    await keeper.begin()
    task = asyncio.create_task(keeper.run())
    yield
    task.cancel()
    await keeper.close()
    book.closed()


class QueueCounts:
    """What changes of a router's store mean to its counters."""

    def __init__(self) -> None:
        self._markers: set[tuple[bytes, int]] = set()

    def of(self, changes: Iterable[Change]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for change in changes:
            match change:
                case PutQueue(record, None):
                    counts["qCreated"] += 1
                case PutQueue(record, before) if before is not None and record.notifier != before.notifier:
                    if (ours := record.notifier) is None:
                        counts["ntfDeleted"] += 1
                    elif before.notifier is None or ours.notifier_id != before.notifier.notifier_id:
                        counts["ntfCreated"] += 1
                case DeleteQueue(record):
                    counts["qDeletedAll"] += 1
                    counts["qDeletedNew" if record.sender_key is None else "qDeletedSecured"] += 1
                case AddMessage(queue, number, message) if message.is_marker:
                    self._markers.add((queue, number))
                case AddMessage(queue, number):
                    self._markers.discard((queue, number))
                    counts["msgSent"] += 1
                case DeleteMessage(queue, number) if (queue, number) not in self._markers:
                    counts["msgRecv"] += 1
        return counts


def payload_counts(changes: Iterable[DsChange]) -> Counter[str]:
    """The same of a delivery service's store."""
    counts: Counter[str] = Counter()
    for change in changes:
        match change:
            case AddEntry():
                counts["enqueued"] += 1
            case DeleteEntry():
                counts["removed"] += 1
    return counts


def ledger_counts(totals: Mapping[LedgerState, int], tokens: int) -> Counter[str]:
    """The same of a notification router's ledger."""
    found = {name: sum(totals[state] for state in states) for name, states in LEDGER.items()}
    return Counter({**found, "tokens": tokens})


def keep(books: Iterable[Book], run_folder: Path, seed: int | str, target: Path) -> None:
    """Add the journals of a run, and what they must come to, to those of other runs."""
    segments = target / SEGMENTS
    segments.mkdir(parents=True, exist_ok=True)
    (target / TRUTH).mkdir(exist_ok=True)
    for segment in (run_folder / FOLDER / SEGMENTS).glob("*"):
        shutil.move(segment, segments / segment.name)
    truth = {
        book.name: {"role": book.role, "low": book.low, "high": book.high} for book in books if book.wrote
    }
    (target / TRUTH / f"{seed}.json").write_text(json.dumps(truth))
