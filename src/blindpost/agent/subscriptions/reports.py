"""What subscriptions tell, as events for the application."""

from __future__ import annotations

from collections.abc import Sequence

from blindpost.agent.errors import network_error
from blindpost.agent.events import (
    Down,
    Event,
    QueueDeleted,
    SubscriptionEnded,
    SubscriptionsFailed,
    Up,
)
from blindpost.agent.work.ground import Ground
from blindpost.client.calls import Failure
from blindpost.wire.addresses import Server


class EventReports:
    """Every report is an event."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def up(self, server: Server, conn_ids: Sequence[str]) -> None:
        self._ground.stream.put(Up(server, tuple(map(self._ground.handle, conn_ids))))

    def down(self, server: Server, conn_ids: Sequence[str]) -> None:
        self._ground.stream.put(Down(server, tuple(map(self._ground.handle, conn_ids))))

    def ended(self, server: Server, conn_id: str, rcv_id: bytes) -> None:
        self._ground.stream.put(SubscriptionEnded(self._ground.handle(conn_id)))

    def deleted(self, server: Server, conn_id: str, rcv_id: bytes) -> None:
        self._ground.stream.put(QueueDeleted(self._ground.handle(conn_id)))

    def refused(self, server: Server, errors: Sequence[tuple[str, Failure]]) -> None:
        named = (
            (self._ground.handle(conn_id), network_error(server, failure)) for conn_id, failure in errors
        )
        self._ground.stream.put(SubscriptionsFailed(tuple(named)))

    def raised(self, event: Event) -> None:
        self._ground.stream.put(event)
