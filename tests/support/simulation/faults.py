"""A store that takes its time, fails when it is told to, and dies before or after a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum

from blindpost.engine.loop import OutcomeUnknownError, StoreFailedError
from blindpost.router.changes import Change, Needed, Wanted
from blindpost.router.model import Domain
from blindpost.router.tables import LmdbTables
from blindpost.router.view import View

DOUBT_S = 0.5
"""How long nobody can tell whether a commit is there."""


class CrashedError(BaseException):
    """The router's process is gone, here and now: nothing in it may catch this."""


class CrashPoint(Enum):
    """Where in a turn the process dies."""

    BEFORE_COMMIT = "before the commit"
    AFTER_COMMIT = "after the commit"
    IN_RELEASE = "while answers leave"


class FaultyStore:
    """The embedded store behind faults. What it says is committed is committed."""

    def __init__(self, tables: LmdbTables) -> None:
        self.tables = tables
        self.commit_s = 0.0
        self.load_s = 0.0
        self.failures = 0
        """How many of the next commits fail."""
        self.load_failures = 0
        self.doubts: list[bool] = []
        """Of the next commits, whether they are there although nobody can tell at first."""
        self.crash: CrashPoint | None = None
        self.durable = False
        """Whether the turn that is under way has been committed."""
        self.broken: set[bytes] = set()
        """Queues whose messages cannot be read."""

    async def load(self, wanted: Wanted, view: View) -> None:
        if self.load_s:
            await asyncio.sleep(self.load_s)
        if self.load_failures:
            self.load_failures -= 1
            raise StoreFailedError("a planned failure to read")
        await self.tables.load(wanted, view)

    async def load_needed(self, needed: Needed, view: View) -> None:
        for recipient_id in self.broken & needed.messages.keys():
            del needed.messages[recipient_id]
        await self.tables.load_needed(needed, view)

    async def commit(self, changes: Sequence[Change]) -> None:
        await asyncio.sleep(self.commit_s)
        if self.crash is CrashPoint.BEFORE_COMMIT:
            raise CrashedError
        if self.failures:
            self.failures -= 1
            raise StoreFailedError("a planned failure to commit")
        doubt = self.doubts.pop() if self.doubts else None
        if doubt is not False:
            await self.tables.commit(changes)
            self.durable = True
        if doubt is not None:
            loop = asyncio.get_running_loop()
            outcome: asyncio.Future[bool] = loop.create_future()
            loop.call_later(DOUBT_S, outcome.set_result, doubt)
            raise OutcomeUnknownError("a planned doubt", outcome)
        await asyncio.sleep(self.commit_s)
        if self.crash is CrashPoint.AFTER_COMMIT:
            raise CrashedError

    async def waiting(
        self, domain: Domain, service_id: bytes, start: bytes, limit: int
    ) -> tuple[tuple[bytes, ...], bytes | None]:
        return await self.tables.waiting(domain, service_id, start, limit)

    async def expired(
        self, before: int, start: bytes, limit: int
    ) -> tuple[list[tuple[bytes, int]], bytes | None]:
        return await self.tables.expired(before, start, limit)

    async def notified(self, start: bytes, limit: int) -> tuple[tuple[bytes, ...], bytes | None]:
        return await self.tables.notified(start, limit)

    @property
    def loaded(self) -> int:
        return self.tables.loaded

    def counts(self) -> dict[str, int]:
        return self.tables.counts()

    async def probe(self) -> None:
        await self.tables.probe()

    def close(self) -> None:
        self.tables.close()
