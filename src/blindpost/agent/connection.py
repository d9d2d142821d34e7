"""The application's handles: connections, received messages, and requests to decide on."""

from __future__ import annotations

from typing import Protocol

from blindpost.agent.messages.integrity import Integrity
from blindpost.agent.model import ConnId, ConnType
from blindpost.agent.stats import ConnectionStats
from blindpost.wire.addresses import Server
from blindpost.wire.frozen import dataclass
from blindpost.wire.links.full import FullLink
from blindpost.wire.links.short import ShortLink
from blindpost.wire.value import Buffer, Value


class Calls(Protocol):
    """What handles ask of their agent.

    Every part emits events, events carry handles, and a handle reaches every part: so it knows the agent only
    by this list.
    """

    def connection_type(self, conn_id: ConnId) -> ConnType: ...

    def security_code(self, conn_id: ConnId) -> bytes: ...

    def stats(self, conn_id: ConnId) -> ConnectionStats: ...

    def waiting(self, conn_id: ConnId) -> int: ...

    async def send(self, conn_id: ConnId, body: Buffer, *, notify: bool, pq: bool | None) -> int: ...

    async def ack(self, conn_id: ConnId, msg_id: int, receipt: bytes | None) -> None: ...

    def link(self, conn_id: ConnId) -> CreatedLink: ...

    def requests(self, conn_id: ConnId) -> list[ContactRequest]: ...

    def confirmation(self, conn_id: ConnId) -> Confirmation | None: ...

    async def set_link_data(self, conn_id: ConnId, user_data: bytes) -> CreatedLink: ...

    async def delete_short_link(self, conn_id: ConnId) -> None: ...

    async def switch(self, conn_id: ConnId) -> None: ...

    async def abort_switch(self, conn_id: ConnId) -> None: ...

    async def synchronize(self, conn_id: ConnId, *, force: bool, pq: bool | None) -> None: ...

    async def set_notifications(self, conn_id: ConnId, enabled: bool) -> None: ...

    async def delete(self, conn_id: ConnId, *, wait_delivery: bool) -> None: ...

    async def allow(self, conn_id: ConnId, confirmation_id: str, info: bytes) -> None: ...

    async def accept(self, request: ContactRequest, info: bytes, pq: bool | None) -> Connection: ...

    async def reject(self, request: ContactRequest) -> None: ...

    async def fetch(self, conn_id: ConnId, queue_number: int, announced_ts: int | None) -> Fetched | None: ...


class Connection:
    """A connection by its id. Two handles of one connection are equal."""

    __slots__ = ("_calls", "id")

    def __init__(self, calls: Calls, conn_id: ConnId) -> None:
        self._calls = calls
        self.id = conn_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Connection) and self.id == other.id and self._calls is other._calls

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Connection({self.id})"

    @property
    def type(self) -> ConnType:
        """What the connection can do by now."""
        return self._calls.connection_type(self.id)

    @property
    def security_code(self) -> bytes:
        """What two people may compare to know that nobody is between them."""
        return self._calls.security_code(self.id)

    @property
    def stats(self) -> ConnectionStats:
        """The connection's current state."""
        return self._calls.stats(self.id)

    @property
    def waiting(self) -> int:
        """How many messages no router has taken yet: many, where a peer does not read."""
        return self._calls.waiting(self.id)

    async def send(self, body: Buffer, *, notify: bool = True, pq: bool | None = None) -> int:
        """Store a message for the peer; returns its number, which `Sent` and receipts will name.

        `pq` is what is wanted of the ratchet: on, off, or unchanged.
        """
        return await self._calls.send(self.id, body, notify=notify, pq=pq)

    async def ack(self, msg_id: int, receipt: bytes | None = None) -> None:
        """Acknowledge a message by its number; see `ReceivedMessage.ack`."""
        await self._calls.ack(self.id, msg_id, receipt)

    @property
    def link(self) -> CreatedLink:
        """The link of an address, or of an invitation that nobody has joined yet."""
        return self._calls.link(self.id)

    def requests(self) -> list[ContactRequest]:
        """The unanswered requests to this address, including those from before a restart."""
        return self._calls.requests(self.id)

    def confirmation(self) -> Confirmation | None:
        """The peer that joined and waits to be allowed, even from before a restart."""
        return self._calls.confirmation(self.id)

    async def set_link_data(self, user_data: bytes) -> CreatedLink:
        """Change what the short link leads to; an address without one gets one."""
        return await self._calls.set_link_data(self.id, user_data)

    async def delete_short_link(self) -> None:
        await self._calls.delete_short_link(self.id)

    async def switch(self) -> None:
        """Move what we receive to a queue on another router."""
        await self._calls.switch(self.id)

    async def abort_switch(self) -> None:
        """Stay with the old queue, as long as that is possible."""
        await self._calls.abort_switch(self.id)

    async def synchronize(self, *, force: bool = False, pq: bool | None = None) -> None:
        """Agree on a new ratchet, after one side reverted to an older state."""
        await self._calls.synchronize(self.id, force=force, pq=pq)

    async def set_notifications(self, enabled: bool) -> None:
        """Whether pushes announce messages of this connection; by default they do."""
        await self._calls.set_notifications(self.id, enabled)

    async def delete(self, *, wait_delivery: bool = False) -> None:
        """Delete the connection and its queues; with `wait_delivery`, after waiting messages were sent."""
        await self._calls.delete(self.id, wait_delivery=wait_delivery)


@dataclass(frozen=True, slots=True, repr=False)
class CreatedLink(Value):
    """A link to hand out, and the connection it leads to; `str()` of it is the text."""

    conn: Connection
    full: FullLink
    short: ShortLink | None = None
    changed: bool = False
    """A prepared link could not be used: this is a different one."""

    @property
    def text(self) -> str:
        """The short form if there is one."""
        return self.full.text if self.short is None else self.short.text

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, repr=False)
class ReceivedMessage(Value):
    """A message of the peer, or its receipts. The next one comes once this is acknowledged."""

    conn: Connection
    id: int
    body: bytes
    integrity: Integrity
    sender_number: int
    received_at: int
    broker_id: bytes
    broker_ts: int
    pq: bool

    async def ack(self, receipt: bytes | None = None) -> None:
        """It was processed: the next one may come. With a `receipt`, even an empty one, the peer gets it."""
        await self.conn.ack(self.id, receipt)


@dataclass(frozen=True, slots=True, repr=False)
class Confirmation(Value):
    """Somebody joined an invitation, with this information about themselves."""

    conn: Connection
    id: str
    info: bytes
    pq: bool
    servers: tuple[Server, ...]

    async def allow(self, info: bytes = b"") -> None:
        """Let them in. By default this happens automatically."""
        await self.conn._calls.allow(self.conn.id, self.id, info)


@dataclass(frozen=True, slots=True, repr=False)
class ContactRequest(Value):
    """Somebody wants to connect to an address."""

    conn: Connection
    id: str
    info: bytes
    pq: bool
    servers: tuple[Server, ...]
    accepted: Connection | None = None
    """The new connection, if the address accepts everybody."""

    async def accept(self, info: bytes = b"", *, pq: bool | None = None) -> Connection:
        """A new connection with them; `Connected` follows."""
        return await self.conn._calls.accept(self, info, pq)

    async def reject(self) -> None:
        """Forget the request; nothing is sent."""
        await self.conn._calls.reject(self)


@dataclass(frozen=True, slots=True, repr=False)
class Fetched(Value):
    """A message that was read; if it is for the application, `Received` delivers it."""

    broker_id: bytes
    broker_ts: int


@dataclass(frozen=True, slots=True, repr=False)
class News(Value):
    """A connection to check because of a push, and which message to expect, if the push says."""

    conn: Connection
    queue_number: int
    broker_id: bytes | None
    broker_ts: int | None

    async def fetch(self) -> Fetched | None:
        """Read one message of the connection. None: there is none; the announced one was read before."""
        return await self.conn._calls.fetch(self.conn.id, self.queue_number, self.broker_ts)
