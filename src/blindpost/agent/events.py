"""The agent's events for an application: frozen values to match on, each with the protocol's own `name`."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from blindpost.agent.connection import Confirmation, Connection, ContactRequest, CreatedLink, ReceivedMessage
from blindpost.agent.errors import AgentError
from blindpost.agent.model import SyncState
from blindpost.agent.subscriptions.table import Mismatch, ServiceSub
from blindpost.wire.addresses import Server
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Buffer, Value


class Event(Value):
    """The base of all events; they print as lengths and ids."""

    __slots__ = ()
    name: ClassVar[str]


@dataclass(frozen=True, slots=True, repr=False)
class ConnEvent(Event):
    """About one connection, which the application already has."""

    conn: Connection


@dataclass(frozen=True, slots=True, repr=False)
class LinkCreated(ConnEvent):
    """The link of a connection that was to be made in the background."""

    name = "INV"
    link: CreatedLink


@dataclass(frozen=True, slots=True, repr=False)
class ConfirmationReceived(ConnEvent):
    """Somebody joined the invitation. With the default policy nothing needs to be done."""

    name = "CONF"
    confirmation: Confirmation


@dataclass(frozen=True, slots=True, repr=False)
class ContactRequested(ConnEvent):
    """Somebody wants to connect to an address: accept or reject the request."""

    name = "REQ"
    request: ContactRequest


@dataclass(frozen=True, slots=True, repr=False)
class InfoReceived(ConnEvent):
    """The initiator's information for the joiner."""

    name = "INFO"
    info: Buffer
    pq: bool


@dataclass(frozen=True, slots=True, repr=False)
class Joined(ConnEvent):
    """A join that was to be made in the background is done; with `secured` messages may be sent at once."""

    name = "JOINED"
    secured: bool


@dataclass(frozen=True, slots=True, repr=False)
class JoinDelayed(ConnEvent):
    """A join could not be completed yet and is being retried; repeated when the reason changes."""

    name = "JOIN_DELAYED"
    error: AgentError


@dataclass(frozen=True, slots=True, repr=False)
class Connected(ConnEvent):
    """Both sides can send; `pq`: the ratchet has a post-quantum secret in it."""

    name = "CON"
    pq: bool


@dataclass(frozen=True, slots=True, repr=False)
class Received(ConnEvent):
    """A message: acknowledge it once it is processed; then the next one comes."""

    name = "MSG"
    msg: ReceivedMessage


@dataclass(frozen=True, slots=True, repr=False)
class MessageTaken(ConnEvent):
    """A message that was read after a push is acknowledged: the next one can be read."""

    name = "MSGNTF"
    broker_id: bytes
    broker_ts: int


@dataclass(frozen=True, slots=True, repr=False)
class Sent(ConnEvent):
    """The router of the peer has the message."""

    name = "SENT"
    msg_id: int
    proxy: Server | None


@dataclass(frozen=True, slots=True, repr=False)
class SendDelayed(ConnEvent):
    """A message could not be sent yet and is being retried."""

    name = "MWARN"
    msg_id: int
    error: AgentError


@dataclass(frozen=True, slots=True, repr=False)
class SendFailed(ConnEvent):
    """A message will not be sent."""

    name = "MERR"
    msg_id: int
    error: AgentError


@dataclass(frozen=True, slots=True, repr=False)
class SendsFailed(ConnEvent):
    """Messages that waited for too long will not be sent."""

    name = "MERRS"
    msg_ids: tuple[int, ...]
    error: AgentError


class ReceiptStatus(Enum):
    OK = "ok"
    BAD_MSG_HASH = "badMsgHash"


@dataclass(frozen=True, slots=True, repr=False)
class DeliveryReceipt(Value):
    """What the peer received, by our number of the message."""

    msg_id: int
    status: ReceiptStatus


@dataclass(frozen=True, slots=True, repr=False)
class ReceiptsReceived(ConnEvent):
    """The peer received messages; acknowledge this like a message."""

    name = "RCVD"
    msg: ReceivedMessage
    receipts: tuple[DeliveryReceipt, ...]


@dataclass(frozen=True, slots=True, repr=False)
class QueueHasRoom(ConnEvent):
    """The peer's queue was full and takes messages again."""

    name = "QCONT"


class Direction(Enum):
    RCV = "rcv"
    SND = "snd"


class SwitchPhase(Enum):
    STARTED = "started"
    CONFIRMED = "confirmed"
    SECURED = "secured"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True, repr=False)
class Switched(ConnEvent):
    """A step of queue rotation."""

    name = "SWITCH"
    direction: Direction
    phase: SwitchPhase


@dataclass(frozen=True, slots=True, repr=False)
class RatchetSync(ConnEvent):
    """The state of the two ratchets towards each other has changed."""

    name = "RSYNC"
    state: SyncState
    error: AgentError | None = None


@dataclass(frozen=True, slots=True, repr=False)
class SubscriptionEnded(ConnEvent):
    """Another client subscribed to the queue."""

    name = "END"


@dataclass(frozen=True, slots=True, repr=False)
class QueueDeleted(ConnEvent):
    """The queue is gone from its router."""

    name = "DELD"


@dataclass(frozen=True, slots=True, repr=False)
class Failed(ConnEvent):
    """Something about this connection went wrong."""

    name = "ERR"
    error: AgentError


@dataclass(frozen=True, slots=True, repr=False)
class QueuesDeleted(Event):
    """Receive queues of deleted connections are gone, or could not be deleted."""

    name = "DEL_RCVQS"
    queues: tuple[tuple[str, Server, bytes, AgentError | None], ...]
    """Connection id, router, recipient id, and why not."""


@dataclass(frozen=True, slots=True, repr=False)
class ConnectionsDeleted(Event):
    name = "DEL_CONNS"
    conn_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class AgentFailed(Event):
    """Something went wrong that belongs to no connection."""

    name = "ERR"
    error: AgentError


@dataclass(frozen=True, slots=True, repr=False)
class HostConnected(Event):
    name = "CONNECT"
    server: Server


@dataclass(frozen=True, slots=True, repr=False)
class HostDisconnected(Event):
    name = "DISCONNECT"
    server: Server


@dataclass(frozen=True, slots=True, repr=False)
class Up(Event):
    """These connections receive messages."""

    name = "UP"
    server: Server
    conns: tuple[Connection, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Down(Event):
    """These connections receive nothing until the router can be reached again."""

    name = "DOWN"
    server: Server
    conns: tuple[Connection, ...]


@dataclass(frozen=True, slots=True, repr=False)
class SubscriptionsFailed(Event):
    name = "ERRS"
    errors: tuple[tuple[Connection, AgentError], ...]


@dataclass(frozen=True, slots=True, repr=False)
class ServiceUp(Event):
    """The queues of a service receive messages: `service` is what the router has, `error` how that differs
    from what we have, if it does. A difference is repaired automatically."""

    name = "SERVICE_UP"
    server: Server
    service: ServiceSub
    error: Mismatch | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ServiceRenewed(Event):
    """All queues of a service have moved to its new credentials."""

    name = "SERVICE_RENEWED"
    server: Server


@dataclass(frozen=True, slots=True, repr=False)
class ServiceDown(Event):
    name = "SERVICE_DOWN"
    server: Server
    service: ServiceSub


@dataclass(frozen=True, slots=True, repr=False)
class ServiceAll(Event):
    """All messages that waited for the service were delivered."""

    name = "SERVICE_ALL"
    server: Server


@dataclass(frozen=True, slots=True, repr=False)
class ServiceEnd(Event):
    """Another client with the same credentials took the service over."""

    name = "SERVICE_END"
    server: Server
    service: ServiceSub


@dataclass(frozen=True, slots=True, repr=False)
class Suspended(Event):
    """No work is running any more."""

    name = "SUSPENDED"
