"""What is in memory: which connection is subscribed to what, and what is in flight.

One small entry for each individually subscribed queue and one for each message in flight. Nothing here
is needed to find a message again: after a restart all of it is empty and clients subscribe again.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from blindpost.crypto.authorizers import AuthenticatorKeys
from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.keys import PrivateKey
from blindpost.engine.undo import Table, Undo
from blindpost.router.model import NO_QUEUES, Domain
from blindpost.transport.handshake import ServiceSession
from blindpost.wire.keys import PublicKey
from blindpost.wire.smp.errors import SMPError
from blindpost.wire.transmission import Layout
from blindpost.wire.value import Value, shown


class SubKind(Enum):
    """How a connection receives from a queue; the first of SUB and GET decides."""

    PUSH = "push"
    GET = "get"


class Delivered(NamedTuple):
    """The message that waits for its ACK, and when it was handed to the connection."""

    msg_id: bytes
    number: int
    seconds: int
    is_marker: bool
    notify: bool

    def __repr__(self) -> str:
        return shown(self)


class Sub(NamedTuple):
    """A connection's view of one queue."""

    kind: SubKind
    delivered: Delivered | None = None

    def __repr__(self) -> str:
        return shown(self)


@dataclass(frozen=True, slots=True, repr=False)
class ServiceSub(Value):
    """A service connection's subscription: whether SUBS or NSUBS was done, and the queues it counts."""

    subscribed: bool = False
    members: QueueSet = NO_QUEUES


@dataclass(frozen=True, slots=True, repr=False)
class Walk(Value):
    """A walk over the queues of a service in which something waits.

    `again`: something began to wait behind the walk while the connection was full.
    """

    start: bytes = b""
    announced: bool = False
    """ALLS is sent at the end."""
    again: bool = False
    errors: tuple[tuple[bytes, SMPError], ...] = ()


NO_SERVICE_SUB = ServiceSub()
PUSH_IDLE = Sub(SubKind.PUSH)
GET_IDLE = Sub(SubKind.GET)


class SessionKeys:
    """The X25519 keys of a connection, and the box between its two ends, made when it is first needed."""

    __slots__ = ("_box", "_peer", "own")

    def __init__(self, own: PrivateKey, peer: PublicKey) -> None:
        self.own = own
        self._peer = peer
        self._box: BoxKey | None = None

    @property
    def box(self) -> BoxKey:
        if self._box is None:
            self._box = BoxKey.agreed(self.own, self._peer)
        return self._box


class RouterClient:
    """One connection, as the decisions know it."""

    __slots__ = (
        "account",
        "client_id",
        "congested",
        "layout",
        "notifier_ids",
        "secrets",
        "service",
        "service_subs",
        "session_keys",
        "subs",
        "version",
        "waiting",
        "waiting_notifiers",
        "walks",
    )

    def __init__(
        self,
        client_id: int,
        version: int,
        layout: Layout,
        secrets: AuthenticatorKeys,
        undo: Undo,
        service: ServiceSession | None = None,
        session_keys: SessionKeys | None = None,
    ) -> None:
        self.client_id = client_id
        self.account: Hashable = None
        """The account that what it stores is counted under. Set by the shell."""
        self.version = version
        self.layout = layout
        self.secrets = secrets
        self.service = service
        self.session_keys = session_keys
        self.congested = False
        """Its outbox is full: pushes wait until it has drained. Set by the shell between turns."""
        self.subs: Table[bytes, Sub] = Table(undo)
        self.notifier_ids: Table[bytes, bool] = Table(undo)
        self.waiting: Table[bytes, bool] = Table(undo)
        """Queues with a message due to this connection once it has drained."""
        self.waiting_notifiers: Table[bytes, bool] = Table(undo)
        self.service_subs: Table[Domain, ServiceSub] = Table(undo)
        self.walks: Table[Domain, Walk] = Table(undo)

    @property
    def has_work(self) -> bool:
        """Whether something waits to be handed to this connection."""
        return bool(len(self.waiting) or len(self.waiting_notifiers) or len(self.walks))

    def service_sub(self, domain: Domain) -> ServiceSub:
        return self.service_subs.get(domain) or NO_SERVICE_SUB

    def __repr__(self) -> str:
        return f"RouterClient({self.client_id}, v{self.version}, {len(self.subs)} subscriptions)"


class Registry:
    """Who is subscribed, one connection for each id. Reached only through these methods."""

    __slots__ = ("_holders",)

    def __init__(self, undo: Undo) -> None:
        self._holders: Table[bytes, RouterClient] = Table(undo)

    def __len__(self) -> int:
        return len(self._holders)

    def holder(self, entity_id: bytes) -> RouterClient | None:
        return self._holders.get(entity_id)

    def take_over(self, entity_id: bytes, client: RouterClient) -> RouterClient | None:
        """Make `client` the holder; returns the previous one, if another."""
        before = self._holders.get(entity_id)
        if before is client:
            return None
        self._holders.put(entity_id, client)
        return before

    def leave(self, entity_id: bytes, client: RouterClient) -> None:
        """Remove `client`, unless there is a newer holder."""
        if self._holders.get(entity_id) is client:
            self._holders.pop(entity_id)

    def remove(self, entity_id: bytes) -> RouterClient | None:
        """The id itself is gone; returns its holder."""
        return self._holders.pop(entity_id)


class RouterState:
    """The registries: single queues and whole services, for messages and for notifications."""

    def __init__(self, undo: Undo) -> None:
        self.undo = undo
        self.queues = Registry(undo)
        self.notifiers = Registry(undo)
        self._by_service = {domain: Registry(undo) for domain in Domain}

    def services(self, domain: Domain) -> Registry:
        return self._by_service[domain]

    def is_subscribed(self, client: RouterClient) -> bool:
        """Whether it waits for messages or notifications.

        Reading with GET does not count, nor does a service that another connection took over.
        """
        if len(client.notifier_ids) or any(sub.kind is SubKind.PUSH for _, sub in client.subs.items()):
            return True
        service = client.service
        return service is not None and any(
            registry.holder(service.service_id) is client for registry in self._by_service.values()
        )

    def disconnect(self, client: RouterClient) -> None:
        """Forget everything about a connection; what it had not acknowledged waits for the next."""
        for recipient_id in tuple(client.subs):
            self.queues.leave(recipient_id, client)
            client.subs.pop(recipient_id)
        for notifier_id in tuple(client.notifier_ids):
            self.notifiers.leave(notifier_id, client)
            client.notifier_ids.pop(notifier_id)
        for table in (client.waiting, client.waiting_notifiers):
            for entity_id in tuple(table):
                table.pop(entity_id)
        for domain in Domain:
            client.walks.pop(domain)
            client.service_subs.pop(domain)
            if client.service is not None:
                self._by_service[domain].leave(client.service.service_id, client)

    def drop_sub(self, client: RouterClient, recipient_id: bytes) -> None:
        """A connection lost its subscription: nothing more is delivered to it, nothing it ACKs counts."""
        client.subs.pop(recipient_id)
        client.waiting.pop(recipient_id)

    def delivered(self, client: RouterClient, recipient_id: bytes, message: Delivered) -> None:
        sub = client.subs.get(recipient_id) or PUSH_IDLE
        client.subs.put(recipient_id, Sub(sub.kind, message))
        client.waiting.pop(recipient_id)
