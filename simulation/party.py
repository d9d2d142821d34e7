"""What every party of a run is: a process that lives, dies and lives again over what it stored."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from blindpost.engine.loop import StoreFailedError
from blindpost.testing.agents import EPOCH
from simulation.faults import PLANNED, Point
from simulation.network import Ending, SimulatedNetwork
from simulation.processes import CrashedError, Process, SimulationLoop

if TYPE_CHECKING:
    from simulation.journals import Book


class Surroundings(Protocol):
    """What a party finds: the run it is part of."""

    seed: int | str
    folder: Path
    loop: SimulationLoop
    network: SimulatedNetwork

    def note(self, what: str) -> None: ...

    def violated(self, what: str) -> None: ...

    def forgotten(self, router: str) -> None: ...


class Party(ABC):
    """One program of the network."""

    kind: ClassVar[str]
    service = False
    """Whether its queues are subscribed all at once."""
    book: Book | None = None
    """Of a server that writes a journal."""

    def __init__(self, run: Surroundings, name: str) -> None:
        self.run = run
        self.name = name
        self.counts: Counter[str] = Counter()
        """What went wrong here, by kind."""
        self.lives = 0
        self.clock_off_s = 0.0
        """How far the clock of its machine is off."""
        self.process: Process | None = None
        self._ending = Ending.RESET
        self._dies_at: Point | None = None
        self._commits_left = 0
        """At which of its next commits it dies."""
        self._fitting_writes = self._failing_writes = 0
        self._full_until_s = self._full_for_s = 0.0
        """How many of its next commits still fit on the disk; then how many do not, and for how long none."""
        self._main: asyncio.Task[None] | None = None

    # Life and death

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """Begin a life with what is stored."""
        assert not self.alive, f"{self.name} lives"
        self.lives += 1
        self._dies_at = None
        process = self.process = Process(self.run.loop, self.name)
        process.at_death.append(lambda: self.run.network.owner_dies(process, self._ending))
        process.at_death.append(self.files_closed)
        process.at_death.append(self._journal_ends)
        process.at_death.append(lambda: self.run.note(f"{self.name} is dead"))
        self.run.note(f"{self.name} begins life {self.lives}")
        main = self._main = process.spawn(self.live())
        main.add_done_callback(lambda done: self._ended(process, done))

    def _journal_ends(self) -> None:
        if self.book is not None:
            self.book.ends()

    def _ended(self, process: Process, main: asyncio.Task[None]) -> None:
        if process.alive and not main.cancelled() and (error := main.exception()) is not None:
            self.run.violated(f"{self.name} ended by itself: {error!r}")

    def die(self, point: Point, ending: Ending, steps: int) -> None:
        """Now, after so many steps, or at that one of its next commits."""
        process = self.process
        if process is None or not process.alive:
            return
        self._ending = ending
        if point is Point.NOW:
            process.die()
        elif point is Point.LATER:
            process.die_after(steps)
        else:
            self._dies_at, self._commits_left = point, steps

    async def stop(self) -> None:
        """End as a program does that is asked to."""
        process, main = self.process, self._main
        if process is None or main is None or not process.alive:
            return
        for work in (process.spawn(self.end()), main):
            await asyncio.wait([work, process.buried], return_when=asyncio.FIRST_COMPLETED)
        process.die()

    def dies_here(self, point: Point) -> bool:
        """The store is about to commit, or has just done so: whether the process dies here."""
        if self._dies_at is not point:
            return False
        self._commits_left -= 1
        if self._commits_left > 0:
            return False
        self.killed_here(point)
        return True

    def commit_point(self, point: Point) -> None:
        if self.dies_here(point):
            raise CrashedError

    def committing(self, rollback: Callable[[], None], commit: Callable[[], None]) -> None:
        """Commit to SQLite, unless the disk is full or the process dies at it."""
        if self._has_no_room():
            rollback()
            raise StoreFailedError(f"a {PLANNED} failure: the disk is full")
        self.commit_point(Point.BEFORE_COMMIT)
        commit()
        self.commit_point(Point.AFTER_COMMIT)

    def _has_no_room(self) -> bool:
        now = self.run.loop.time()
        if self._fitting_writes:
            self._fitting_writes -= 1
            return False
        if self._failing_writes:
            self._failing_writes -= 1
            self._full_until_s, self._full_for_s = now + self._full_for_s, 0.0
            return True
        return now < self._full_until_s

    def fill_disk(self, count: int, lasts_s: float, after: int) -> None:
        """Its disk has no room for so many commits, and for so long, after some that still fit."""
        self._fitting_writes, self._failing_writes = after, count
        self._full_until_s, self._full_for_s = 0.0, lasts_s

    def empty_disk(self) -> None:
        self.fill_disk(0, 0.0, 0)

    def spare(self) -> None:
        """It is not to die any more."""
        assert self.process is not None
        self._dies_at = None
        self.process.spare()

    def killed_here(self, point: Point) -> None:
        self._dies_at = None
        self.run.note(f"{self.name} dies {point.value}")
        assert self.process is not None
        self.process.die()

    @property
    def ready(self) -> bool:
        """Whether it can be asked for something."""
        return self.alive

    # What rooms take from outside

    def now(self) -> float:
        """The time of day, by this party's clock."""
        return EPOCH + self.run.loop.time() + self.clock_off_s

    def entropy(self) -> Callable[[int], bytes]:
        """Bytes of this life."""
        return random.Random(f"{self.run.seed}/{self.name}/{self.lives}").randbytes

    def chance(self) -> random.Random:
        return random.Random(f"{self.run.seed}/{self.name}/{self.lives}/chance")

    # What it looks like from outside

    def unsettled(self) -> str | None:
        """What is still under way, if anything."""
        return None

    async def wrong(self) -> str | None:
        """What is wrong with what it keeps, now that nothing is under way."""
        return None

    def receives_from(self) -> list[tuple[str, bytes]]:
        """Host and recipient id of each queue."""
        return []

    # What a kind of party is

    @abstractmethod
    async def live(self) -> None:
        """Run until the end of this life."""

    @abstractmethod
    async def end(self) -> None:
        """Let `live` return."""

    @abstractmethod
    def files_closed(self) -> None:
        """The process is dead: what was not committed is lost."""

    @abstractmethod
    def mended(self) -> None:
        """No fault of its store is left."""
