"""Transactions with consequences: nothing else of the agent runs during one, since it never waits.

What follows from a transaction, events for the application and work for the workers, is collected in it and
happens when it is committed, or not at all. What goes to a router or is returned to the program waits until
it is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import TypeVar

from blindpost.agent.config import AgentConfig
from blindpost.agent.connection import Connection
from blindpost.agent.errors import AgentError
from blindpost.agent.events import ConnEvent, Event, Failed
from blindpost.agent.model import ConnId, SndQueue
from blindpost.agent.notifications.model import NtfSubscription
from blindpost.agent.store import commands as command_rows
from blindpost.agent.store import deletion as deletion_rows
from blindpost.agent.store import events as event_rows
from blindpost.agent.store.database import Db
from blindpost.agent.store.grouping import Group
from blindpost.agent.work.keeping import dump_event
from blindpost.agent.work.signals import Signal
from blindpost.crypto.kem import KemSource
from blindpost.wire.addresses import RouterAddress, Server
from blindpost.wire.frozen import dataclass
from blindpost.wire.text import ub64

ID_SIZE = 12

DeliveryKey = tuple[ConnId, int]
"""A connection and the number of one of its send queues."""
Waiting = tuple[DeliveryKey, Server]
"""A send queue that messages wait for, and the router that has it."""
CommandKey = tuple[ConnId, Server | None]

K = TypeVar("K")


Told = tuple[Event, int | None]
"""An event, and its row if it is kept until the program has taken the next one."""


@dataclass(frozen=True, slots=True)
class Work:
    """What transactions hand out when they are committed."""

    events: Signal[Told] = field(default_factory=Signal)
    deliveries: Signal[Waiting] = field(default_factory=Signal)
    """Something waits for this send queue."""
    hurry: Signal[DeliveryKey] = field(default_factory=Signal)
    """What waits for this send queue is to be tried at once, or the queue is gone."""
    room: Signal[DeliveryKey] = field(default_factory=Signal)
    """The peer says that this send queue has room again."""
    commands: Signal[CommandKey] = field(default_factory=Signal)
    notifications: Signal[NtfSubscription] = field(default_factory=Signal)
    acknowledged: Signal[tuple[ConnId, int]] = field(default_factory=Signal)
    """The application is done with this message."""
    deletions: Signal[ConnId] = field(default_factory=Signal)
    """This connection is marked as deleted: its queues and rows are to go."""


class Tx(Db):
    """A transaction under way, and what decisions inside it need: configuration, time, new ids, handles."""

    __slots__ = ("_after", "_handle", "_work", "config", "group", "kem", "now", "servers")

    def __init__(
        self,
        db: Db,
        group: Group,
        config: AgentConfig,
        servers: tuple[RouterAddress, ...],
        work: Work,
        handle: Callable[[ConnId], Connection],
        kem: KemSource,
    ) -> None:
        super().__init__(db.sql, db.vault, db.memo)
        self.group = group
        self.config = config
        self.servers = servers
        self.kem = kem
        self.now = int(config.now())
        self._work = work
        self._handle = handle
        self._after: list[Callable[[], None]] = []

    def handle(self, conn_id: ConnId) -> Connection:
        """The connection as the application knows it."""
        return self._handle(conn_id)

    def new_id(self) -> str:
        """A new id of a connection, confirmation or request."""
        return ub64(self.config.entropy(ID_SIZE))

    def _later(self, signal: Signal[K], what: K) -> None:
        self._after.append(lambda: signal.tell(what))

    def emit(self, event: Event) -> None:
        """Tell the application, once this is committed. What it must act on is kept until it has done so."""
        content, row = dump_event(event), None
        if content is not None:
            lasting = isinstance(event, ConnEvent) and not isinstance(event, Failed)
            conn_id = event.conn.id if lasting and isinstance(event, ConnEvent) else None
            row = event_rows.insert(self, conn_id, event.name, content)
        self._later(self._work.events, (event, row))

    def failed(self, conn_id: ConnId, error: AgentError) -> None:
        self.emit(Failed(self.handle(conn_id), error))

    def acknowledged(self, conn_id: ConnId, msg_id: int) -> None:
        """The application is done with a message: copies of it that wait for the application go."""
        self._later(self._work.acknowledged, (conn_id, msg_id))

    def wake_delivery(self, queue: SndQueue) -> None:
        """Something waits to be delivered to this queue."""
        self._later(self._work.deliveries, ((queue.conn_id, queue.number), queue.server))

    def hurry_delivery(self, queue: SndQueue) -> None:
        """Messages that wait for this queue need not wait any longer."""
        self._later(self._work.hurry, (queue.conn_id, queue.number))

    def tell_room(self, queue: SndQueue) -> None:
        """The peer says that this queue, which was full, takes messages again."""
        self._later(self._work.room, (queue.conn_id, queue.number))

    def wake_commands(self, conn_id: ConnId, server: Server | None) -> None:
        """A command waits for the worker of this connection and router."""
        self._later(self._work.commands, (conn_id, server))

    def wake_notifications(self, row: NtfSubscription) -> None:
        """The next step of this row is to be done."""
        self._later(self._work.notifications, row)

    def delete_connection(self, conn_id: ConnId) -> None:
        """The application has no such connection any more; its queues and rows go in the background."""
        deletion_rows.mark(self, conn_id)
        self.finish_deletion(conn_id)

    def finish_deletion(self, conn_id: ConnId) -> None:
        """Continue deleting a connection that is marked."""
        self._later(self._work.deletions, conn_id)

    def command(
        self,
        conn_id: ConnId,
        server: Server | None,
        tag: str,
        content: bytes = b"",
        corr_id: str = "",
        internal_id: int | None = None,
    ) -> None:
        """Store a command; its worker runs it after those before it. A received message that it names is
        acknowledged by the program from now on, and goes when the command does."""
        command_rows.insert(self, conn_id, server, tag, content, self.now, corr_id, internal_id)
        self.wake_commands(conn_id, server)

    @contextmanager
    def attempt(self, conn_id: ConnId) -> Iterator[None]:
        """A part that may fail for good: then all it did is taken back, and only its error remains."""
        mark = len(self._after)
        self.sql.execute("SAVEPOINT attempt")
        try:
            yield
        except AgentError as error:
            self.sql.execute("ROLLBACK TO attempt")
            self.sql.execute("RELEASE attempt")
            del self._after[mark:]
            self.failed(conn_id, error)
        else:
            self.sql.execute("RELEASE attempt")

    async def written(self) -> None:
        """After the block: wait until it is committed; `StoreFailedError` if nothing of it happened."""
        await self.group.written()

    async def durable(self) -> None:
        """After the block: wait until it is durable; `StoreFailedError` if nothing of it happened."""
        await self.group.durable()

    def release(self) -> None:
        """It is committed: run what follows, in the order in which it was decided."""
        for tell in self._after:
            tell()
