"""What subscriptions need from the rest of the agent, and what can be chosen about them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from blindpost.agent.routers.sessions import ReceiveQueue, Sessions
from blindpost.agent.subscriptions.options import SubscriptionOptions
from blindpost.client.calls import Failure
from blindpost.transport.errors import TransportError
from blindpost.wire.addresses import Server
from blindpost.wire.frozen import dataclass

if TYPE_CHECKING:
    from blindpost.agent.events import Event
    from blindpost.agent.store.database import AgentStore
    from blindpost.agent.subscriptions.services import Services


class QueueRef(ReceiveQueue, Protocol):
    """A receive queue, as far as subscribing cares."""

    @property
    def rcv_id(self) -> bytes: ...


class MadeQueue(QueueRef, Protocol):
    """A receive queue that its router has just made."""

    @property
    def service_associated(self) -> bool: ...


class Reports(Protocol):
    """Reports to the application. None of these may block."""

    def up(self, server: Server, conn_ids: Sequence[str]) -> None:
        """These connections receive messages; they did not before."""

    def down(self, server: Server, conn_ids: Sequence[str]) -> None:
        """These connections receive nothing for now."""

    def ended(self, server: Server, conn_id: str, rcv_id: bytes) -> None:
        """Another client subscribed to the queue."""

    def deleted(self, server: Server, conn_id: str, rcv_id: bytes) -> None:
        """The queue is gone from its router."""

    def refused(self, server: Server, errors: Sequence[tuple[str, Failure]]) -> None:
        """These connections cannot be subscribed, and are not tried again."""

    def unreached(self, server: Server, failure: TransportError) -> None:
        """The router could not be connected to, and is tried again."""

    def reached(self, server: Server) -> None:
        """The router is connected to."""

    def raised(self, event: Event) -> None:
        """Anything that belongs to no connection."""


@dataclass(frozen=True, slots=True)
class Context:
    """What all sessions' subscriptions share."""

    store: AgentStore
    sessions: Sessions
    services: Services
    reports: Reports
    options: SubscriptionOptions = field(default_factory=SubscriptionOptions)
    chance: random.Random = field(default_factory=random.SystemRandom)
