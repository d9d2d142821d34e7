"""What all parts of an agent share: the store, locks, events, workers; and transactions with consequences.

A transaction is synchronous: nothing else of the agent runs inside one. What follows from it, events for
the application and work for the workers, is collected and happens when it is durable, or not at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from blindpost.agent.config import AgentConfig
from blindpost.agent.errors import AgentError, InactiveError, InternalError
from blindpost.agent.events import AgentFailed, Event, Failed
from blindpost.agent.model import ConnId, SndQueue
from blindpost.agent.store import commands as command_rows
from blindpost.agent.store.database import AgentStore, Db
from blindpost.agent.work.key_pairs import KemKeyPool
from blindpost.agent.work.stream import EventStream
from blindpost.agent.work.suspension import Operations
from blindpost.crypto.kem import KemLibrary, KemSource
from blindpost.wire.addresses import RouterAddress, Server
from blindpost.wire.text import ub64

if TYPE_CHECKING:
    from blindpost.agent.connection import Connection
    from blindpost.agent.handlers import Handlers
    from blindpost.agent.messages.delivery import DeliveryWorkers
    from blindpost.agent.notifications.push import PushNotifications
    from blindpost.agent.queues.deletion import Deletion
    from blindpost.agent.rotation.rotation import Rotation
    from blindpost.agent.routers.proxying import QueueSender
    from blindpost.agent.routers.sessions import Sessions
    from blindpost.agent.subscriptions.engine import Subscriptions
    from blindpost.agent.sync.synchronisation import Synchronisation
    from blindpost.agent.work.commands import CommandWorkers

ID_SIZE = 12

log = logging.getLogger(__name__)


class Tx(Db):
    """A transaction under way."""

    __slots__ = ("_commands", "_deliveries", "events", "kem", "now", "runtime")

    def __init__(self, db: Db, runtime: Runtime, kem: KemSource) -> None:
        super().__init__(db.sql, db.vault, db.memo)
        self.runtime = runtime
        self.kem = kem
        self.now = int(runtime.now())
        self.events: list[Event] = []
        self._deliveries: list[tuple[ConnId, int]] = []
        self._commands: list[tuple[ConnId, Server | None]] = []

    def handle(self, conn_id: ConnId) -> Connection:
        """The connection as the application knows it."""
        return self.runtime.handle(conn_id)

    def emit(self, event: Event) -> None:
        """Tell the application, once this is durable."""
        self.events.append(event)

    def failed(self, conn_id: ConnId, error: AgentError) -> None:
        self.emit(Failed(self.handle(conn_id), error))

    def wake_delivery(self, queue: SndQueue) -> None:
        """Something waits to be delivered to this queue."""
        self._deliveries.append((queue.conn_id, queue.number))

    def wake_commands(self, conn_id: ConnId, server: Server | None) -> None:
        """A command waits for the worker of this connection and router."""
        self._commands.append((conn_id, server))

    def command(
        self, conn_id: ConnId, server: Server | None, tag: str, content: bytes = b"", corr_id: str = ""
    ) -> None:
        """Store a command; its worker runs it after those before it."""
        command_rows.insert(self, conn_id, server, tag, content, self.now, corr_id)
        self.wake_commands(conn_id, server)

    @contextmanager
    def attempt(self, conn_id: ConnId) -> Iterator[None]:
        """A part that may fail for good: then all it did is taken back, and only its error remains."""
        marks = len(self.events), len(self._deliveries), len(self._commands)
        self.sql.execute("SAVEPOINT attempt")
        try:
            yield
        except AgentError as error:
            self.sql.execute("ROLLBACK TO attempt")
            self.sql.execute("RELEASE attempt")
            del self.events[marks[0] :], self._deliveries[marks[1] :], self._commands[marks[2] :]
            self.failed(conn_id, error)
        else:
            self.sql.execute("RELEASE attempt")

    def release(self) -> None:
        """It is durable: let happen what follows."""
        for event in self.events:
            self.runtime.stream.put(event)
        for conn_id, number in self._deliveries:
            self.runtime.delivery.wake(conn_id, number)
        for conn_id, server in self._commands:
            self.runtime.commands.wake(conn_id, server)


class Runtime:
    """One agent's parts. Those that need each other are set by `Agent` after they are made."""

    sender: QueueSender
    subscriptions: Subscriptions
    delivery: DeliveryWorkers
    commands: CommandWorkers
    handlers: Handlers
    rotation: Rotation
    sync: Synchronisation
    deletion: Deletion
    push: PushNotifications

    def __init__(
        self,
        store: AgentStore,
        config: AgentConfig,
        servers: tuple[RouterAddress, ...],
        pool: KemKeyPool,
        handle: Callable[[Runtime, ConnId], Connection],
    ) -> None:
        self._handle = handle
        self.store = store
        self.config = config
        self.servers = servers
        self.pool = pool
        self.stream = EventStream(config.events_max)
        self.operations = Operations()
        self.tried: dict[ConnId, set[Server]] = {}
        """Routers that were away when a queue of a connection was to be made."""
        self._locks: dict[object, _Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def sessions(self) -> Sessions:
        return self.subscriptions.sessions

    def now(self) -> float:
        return self.config.now()

    def awake(self) -> None:
        """For what the application asks: nothing of it is done while the agent is suspended."""
        if self.operations.suspended:
            raise InactiveError("the agent is suspended: resume it first")

    def new_id(self) -> str:
        """A new id of a connection, confirmation or request."""
        return ub64(self.config.entropy(ID_SIZE))

    def handle(self, conn_id: ConnId) -> Connection:
        return self._handle(self, conn_id)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Something in the background, which ends with the agent."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Whatever goes wrong in the background is told, not lost."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, AgentError):
            self.stream.put(AgentFailed(error))
        elif error is not None:
            log.error("work in the background failed", exc_info=error)
            self.stream.put(AgentFailed(InternalError(repr(error))))

    async def stop(self) -> None:
        """End what runs in the background; all of it is stored and goes on another time."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    @contextmanager
    def transaction(self, kem: KemSource | None = None) -> Iterator[Tx]:
        """Changes that happen together, and then what follows from them."""
        with self.store.transaction() as db:
            tx = Tx(db, self, kem if kem is not None else KemLibrary())
            yield tx
        tx.release()

    @asynccontextmanager
    async def kem_source(self, wanted: bool = True) -> AsyncIterator[KemSource]:
        """A source with a key pair in hand; without one when none can be needed."""
        if not wanted:
            yield KemLibrary()
            return
        async with self.pool.source() as source:
            yield source

    @asynccontextmanager
    async def locked(self, key: object) -> AsyncIterator[None]:
        """Alone with a connection (its id), or with the text of a link."""
        entry = self._locks.get(key)
        if entry is None:
            entry = self._locks[key] = _Lock()
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._locks[key]


class _Lock:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
