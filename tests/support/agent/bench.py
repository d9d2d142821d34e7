"""A store of an agent whose disk does what a test tells it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from blindpost.agent.store.database import AgentStore
from blindpost.agent.store.grouping import TURNS_MAX, Group
from blindpost.engine.loop import StoreFailedError
from blindpost.testing.clock import run_virtual

INSERT = "INSERT INTO settings (name, value) VALUES (?, x'01')"
FULL, LOST = "the disk is full", "the log cannot be synced"


class Bench:
    """A store whose disk does what it is told: commits fail, and syncs wait until they are let go."""

    def __init__(self, store: AgentStore) -> None:
        self.store = store
        self.full = self.lost = False
        self.commits = self.syncs = 0
        self.stored = 0
        """How many changes are committed."""
        self._file = store._file
        self._commit, self._sync = self._file.commit, self._file.sync
        self._file.commit = self.commit  # type: ignore[method-assign]
        self._file.sync = self.sync  # type: ignore[method-assign]
        self._waiting: deque[tuple[Callable[[], None], asyncio.Future[None]]] = deque()
        self._names = 0

    def commit(self) -> None:
        if self.full:
            self._file.rollback()
            raise StoreFailedError(FULL)
        self.commits += 1
        self._commit()
        query = "SELECT count(*) FROM settings WHERE name LIKE 'change %'"
        (self.stored,) = self.store.reading.sql.execute(query).fetchone()

    def sync(self) -> None:
        self.syncs += 1
        if self.lost:
            raise StoreFailedError(LOST)
        self._sync()

    # The thread

    def later(self, _: object, work: Callable[[], None]) -> asyncio.Future[None]:
        self._waiting.append((work, asyncio.get_running_loop().create_future()))
        return self._waiting[-1][1]

    @property
    def busy(self) -> int:
        """How many syncs the thread was given and has not done."""
        return len(self._waiting)

    async def let_go(self) -> None:
        """The thread does what it was given first."""
        work, done = self._waiting.popleft()
        try:
            work()
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        await settled()

    # Changes

    def change(self, *, lazily: bool = False, **how: bool) -> Group:
        """One part; it waits for no other if it is not told to."""
        self._names += 1
        with self.store.part(**how) as group:
            self.store.reading.sql.execute(INSERT, (f"change {self._names}",))
        if lazily:
            group.lazily()
        return group

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        async def on_our_thread() -> None:
            asyncio.get_running_loop().run_in_executor = self.later  # type: ignore[assignment]
            await main

        run_virtual(on_our_thread())


async def settled() -> None:
    """Nothing is ready any more; time stands still."""
    for _ in range(3 * TURNS_MAX):
        await asyncio.sleep(0)


def started(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)


async def told(task: asyncio.Task[None]) -> str:
    with pytest.raises(StoreFailedError) as failure:
        await task
    return str(failure.value)


def stumble(bench: Bench, *, changed: bool = True, **how: bool) -> None:
    def part() -> None:
        with bench.store.part(**how):
            if changed:
                bench.store.reading.sql.execute(INSERT, ("change back",))
            raise LookupError

    with pytest.raises(LookupError):
        part()
