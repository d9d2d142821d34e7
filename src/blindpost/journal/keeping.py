"""The journal of a running server: a record each minute, and periodically a process that seals."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from blindpost.journal.author import Author
from blindpost.journal.folder import reason_of
from blindpost.journal.lab import LabJournal
from blindpost.journal.minutes import MINUTE_S, MinuteJournal, Reading, minute_of
from blindpost.journal.schema import DAYS_LAB, DAYS_MINUTES, Table

log = logging.getLogger("blindpost.journal")

SEALER = "blindpost.journal.seal"
HOUR_S = 3_600
SEAL_S_MAX = 300.0
"""A sealing process that takes longer is ended; the next one continues its work."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where a journal is, how often it is sealed and how long it is kept."""

    folder: Path
    router: str
    seal_minutes: int = 10
    minute_days: int = DAYS_MINUTES
    lab_days: int = DAYS_LAB


def can_seal() -> bool:
    """Whether the library that writes sealed files is installed."""
    return importlib.util.find_spec("pyarrow") is not None


Read = Callable[[int, bool], Awaitable[Reading]]
"""The meters, as of a minute; True if sketches are due: once an hour and at the end."""


class JournalKeeper:
    """Asks `read` for the meters at the end of each minute and records what changed.

    A journal that cannot be written must not disturb the server: the failure is logged once, and writing is
    retried.
    """

    def __init__(
        self,
        keeping: Keeping,
        role: str,
        read: Read,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.author = Author.started(keeping.router, role)
        self._keeping = keeping
        self._read = read
        self._now = now
        self._journal: MinuteJournal | None = None
        self._sealing: asyncio.Task[None] | None = None
        self._failed = False
        self._since_sealed = 0
        self._said = ""
        self._labs: list[LabJournal] = []

    def lab(self, table: Table) -> LabJournal:
        """A journal for the events of this table; they are sealed with the records."""
        journal = LabJournal(self._keeping.folder, table, self.author)
        self._labs.append(journal)
        return journal

    async def begin(self) -> None:
        """Before anything is served: what is counted from now on is in the journal."""
        await self._guarded(self._begin)

    async def run(self) -> None:
        """Run until cancelled; `close` writes the last record."""
        if self._journal is None:
            await self.begin()
        await self._guarded(self.seal_soon)  # what an earlier process left
        while True:
            now = self._now()
            end = minute_of(now) + MINUTE_S
            await asyncio.sleep(end - now)
            await self._guarded(functools.partial(self.record, end - MINUTE_S))
            self._since_sealed += 1
            if self._since_sealed >= self._keeping.seal_minutes:
                await self._guarded(self.seal_soon)

    async def record(self, minute_s: int | None = None) -> None:
        """What changed since the last record: for a minute that has ended, or at shutdown."""
        for lab in self._labs:
            lab.flush()
        if self._journal is None:
            await self._begin()
        assert self._journal is not None
        is_last = minute_s is None
        about_s = minute_of(self._now()) if minute_s is None else minute_s
        reading = await self._read(about_s, is_last or (about_s + MINUTE_S) % HOUR_S == 0)
        self._journal.record(reading, about_s)
        self._failed = False

    async def seal_soon(self) -> None:
        """Close the segments and start a process that seals, unless one is running."""
        self._since_sealed = 0
        for lab in self._labs:
            finish = lab.cut()
            if finish is not None:
                await asyncio.to_thread(finish)
        if self._journal is not None:
            await asyncio.to_thread(self._journal.close)
        if self._sealing is None or self._sealing.done():
            self._sealing = asyncio.create_task(self._try_sealing())

    async def close(self) -> None:
        """Write the last record; what is not sealed yet is sealed after the next start."""
        await self._guarded(self.record)
        for lab in self._labs:
            finish = lab.cut()
            if finish is not None:
                with contextlib.suppress(OSError):
                    finish()
        if self._journal is not None:
            with contextlib.suppress(OSError):
                self._journal.close()
        if self._sealing is not None and not self._sealing.done():
            self._sealing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sealing

    async def _begin(self) -> None:
        now = self._now()
        first = await self._read(minute_of(now), False)
        self._journal = MinuteJournal(self._keeping.folder, self.author, first, now)
        self._journal.begin()

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:
            # A full disk, an unreachable database or a bug: a journal must not end its server.
            if not self._failed:
                log.error("the journal cannot be written: %s", reason_of(error))
            self._failed = True

    async def _try_sealing(self) -> None:
        try:
            await self._seal()
        except TimeoutError:
            log.error("sealing the journal took longer than %.0f s; it goes on later", SEAL_S_MAX)
        except OSError as error:
            log.error("the journal cannot be sealed: %s", reason_of(error))

    async def _seal(self) -> None:
        keeping = self._keeping
        days = ("--minute-days", str(keeping.minute_days), "--lab-days", str(keeping.lab_days))
        sealer = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", SEALER, str(keeping.folder), *days),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(SEAL_S_MAX):
                _, told = await sealer.communicate()
        except (TimeoutError, asyncio.CancelledError):
            # Killed at any moment, it leaves only complete files.
            sealer.kill()
            await sealer.wait()
            raise
        said = told.decode(errors="replace").strip().rpartition("\n")[2]
        if not said and sealer.returncode:
            said = f"it ended with {sealer.returncode}"
        if said and said != self._said:  # a damaged file is met again each time
            log.error("sealing the journal: %s", said)
        self._said = said
