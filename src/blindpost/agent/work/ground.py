"""What every part of an agent builds on: store, clock, events, locks and tasks. It depends on no part.

One lock for each connection spans what needs the network; a transaction needs none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

from blindpost.agent.config import AgentConfig
from blindpost.agent.connection import Connection
from blindpost.agent.errors import AgentError, CriticalError, InactiveError, InternalError, prohibited
from blindpost.agent.events import AgentFailed
from blindpost.agent.model import ConnId
from blindpost.agent.store import events as event_rows
from blindpost.agent.store.database import AgentStore
from blindpost.agent.store.grouping import Group
from blindpost.agent.work.keeping import load_event
from blindpost.agent.work.key_pairs import KemKeyPool
from blindpost.agent.work.retries import MESSAGE_FAST, Retry
from blindpost.agent.work.stream import EventStream
from blindpost.agent.work.suspension import Operations
from blindpost.agent.work.transactions import ID_SIZE, Tx, Work
from blindpost.crypto.kem import KemLibrary, KemSource
from blindpost.engine.loop import StoreFailedError
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.errors import WireError
from blindpost.wire.text import ub64

log = logging.getLogger(__name__)


class Ground:
    """Complete when it is made; parts of the agent are given to each other by name."""

    def __init__(
        self,
        store: AgentStore,
        config: AgentConfig,
        servers: tuple[RouterAddress, ...],
        pool: KemKeyPool,
        handle: Callable[[ConnId], Connection],
    ) -> None:
        self.store = store
        store.on_break = self._broke
        self.config = config
        self.servers = servers
        self.pool = pool
        self.handle = handle
        """A connection as the application knows it."""
        self.stream = EventStream(config.events_max)
        self.operations = Operations()
        self.work = Work()
        self.work.events.listen(lambda told: self.stream.put(*told))
        self.work.acknowledged.listen(lambda told: self.stream.acknowledged(*told))
        self.stream.settled.listen(self._settle)
        self.home: asyncio.AbstractEventLoop | None = None
        """The event loop that runs all of this, once it is known."""
        self._locks: dict[object, _Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends = False

    def tell_again(self) -> None:
        """Repeat the events that the program had not taken, or not finished with, when it ended."""
        for stored in event_rows.waiting(self.store.reading):
            try:
                if stored.content is None:
                    raise WireError("it cannot be opened")
                event = load_event(stored.name, stored.content, self.handle)
            except (WireError, ValueError):
                log.exception("a stored event cannot be read")
                self._settle(stored.event_id)
            else:
                self.stream.put(event, stored.event_id)

    def _settle(self, event_id: int) -> None:
        """The program is done with an event."""
        try:
            with self.store.transaction() as db:
                event_rows.delete(db, event_id)
        except StoreFailedError:
            log.exception("an event that was taken will come again")

    def now(self) -> float:
        return self.config.now()

    def at_home(self) -> None:
        """For what the application asks: in another event loop it would wait for what nobody runs there."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return  # it waits for nothing
        if self.home not in (None, here):
            raise prohibited(
                "an agent belongs to the event loop that opened it: open it where it is used, "
                "and call it from other threads with asyncio.run_coroutine_threadsafe"
            )

    @property
    def is_homeless(self) -> bool:
        """Whether that event loop has ended, and nothing runs any more."""
        return self.home is not None and self.home.is_closed()

    def awake(self) -> None:
        """The same; nothing of it is done while the agent is suspended."""
        self.at_home()
        if self.operations.suspended:
            raise InactiveError("the agent is suspended: resume it first")

    def new_id(self) -> str:
        """A new id of a connection."""
        return ub64(self.config.entropy(ID_SIZE))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Something in the background, which ends with the agent; while that ends it is not begun."""
        task = asyncio.get_running_loop().create_task(work)
        if self._ends:
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """The same for what a full disk must only delay."""
        return self.spawn(self.lasting(work))

    async def lasting(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Work that begins again when the store has failed, since nobody else would take it up; one that is
        broken takes nothing until the next start."""
        retry = Retry.first(MESSAGE_FAST)
        while True:
            try:
                return await work()
            except StoreFailedError as error:
                if self.store.is_broken:
                    return None
                self.stream.put(AgentFailed(CriticalError(str(error), temporary=True)))
            await asyncio.sleep(retry.delay_s)
            retry = retry.next()

    def _broke(self, error: StoreFailedError) -> None:
        self.stream.put(AgentFailed(CriticalError(str(error))))

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Background failures are reported, not lost."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, AgentError):
            self.stream.put(AgentFailed(error))
        elif error is not None:
            log.error("work in the background failed", exc_info=error)
            self.stream.put(AgentFailed(InternalError(repr(error))))

    async def stop(self) -> None:
        """End background work; all of it is stored and continues after the next start."""
        self._ends = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    @contextmanager
    def transaction(self, kem: KemSource | None = None) -> Iterator[Tx]:
        """Changes that happen together, durable when the block ends, and then what follows from them."""
        with self.joined(kem) as tx:
            yield tx
        self.store.commit()

    @contextmanager
    def joined(
        self, kem: KemSource | None = None, *, sure: bool = False, spare: bool = False, seldom: bool = False
    ) -> Iterator[Tx]:
        """The same, durable together with what else happens in this moment: see `Tx.durable`. `sure`: it
        raises before it changes anything, or never; `seldom`: or almost never. `spare`: it may be taken
        back, since it would only be done again."""
        source = kem if kem is not None else KemLibrary()
        with self.store.part(sure=sure, spare=spare, seldom=seldom) as group:
            tx = self._tx(group, source)
            yield tx
        group.follow(tx.release)

    @contextmanager
    def untold(self) -> Iterator[Tx]:
        """The same, and nothing follows from it."""
        with self.store.part() as group:
            yield self._tx(group, KemLibrary())

    def _tx(self, group: Group, kem: KemSource) -> Tx:
        return Tx(self.store.reading, group, self.config, self.servers, self.work, self.handle, kem)

    @asynccontextmanager
    async def kem_source(self, wanted: bool = True) -> AsyncIterator[KemSource]:
        """A source with a key pair in hand; without one when none can be needed."""
        if not wanted:
            yield KemLibrary()
            return
        async with self.pool.source() as source:
            yield source

    def locked(self, key: object) -> AbstractAsyncContextManager[None]:
        """Alone with a connection (its id), or with the text of a link."""
        entry = self._locks.get(key)
        return _Lock(self._locks, key) if entry is None else entry


class _Lock(AbstractAsyncContextManager[None]):
    """In its table as long as somebody has it or waits for it."""

    def __init__(self, table: dict[object, _Lock], key: object) -> None:
        self._table = table
        self._key = key
        self._lock = asyncio.Lock()
        self._users = 0

    async def __aenter__(self) -> None:
        self._table[self._key] = self
        self._users += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self._leave()

    def _leave(self) -> None:
        self._users -= 1
        if not self._users:
            del self._table[self._key]
