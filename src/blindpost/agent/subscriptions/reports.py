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
from blindpost.agent.work.runtime import Runtime
from blindpost.client.calls import Failure
from blindpost.wire.addresses import Server


class EventReports:
    """Every report is an event."""

    def __init__(self, runtime: Runtime) -> None:
        self._rt = runtime

    def up(self, server: Server, conn_ids: Sequence[str]) -> None:
        self._rt.stream.put(Up(server, tuple(map(self._rt.handle, conn_ids))))

    def down(self, server: Server, conn_ids: Sequence[str]) -> None:
        self._rt.stream.put(Down(server, tuple(map(self._rt.handle, conn_ids))))

    def ended(self, server: Server, conn_id: str, rcv_id: bytes) -> None:
        self._rt.stream.put(SubscriptionEnded(self._rt.handle(conn_id)))

    def deleted(self, server: Server, conn_id: str, rcv_id: bytes) -> None:
        self._rt.stream.put(QueueDeleted(self._rt.handle(conn_id)))

    def refused(self, server: Server, errors: Sequence[tuple[str, Failure]]) -> None:
        named = ((self._rt.handle(conn_id), network_error(server, failure)) for conn_id, failure in errors)
        self._rt.stream.put(SubscriptionsFailed(tuple(named)))

    def raised(self, event: Event) -> None:
        self._rt.stream.put(event)
