"""What subscriptions tell, as events for the application."""

from __future__ import annotations

import logging
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
from blindpost.agent.work.retries import Told
from blindpost.client.calls import Failure
from blindpost.transport.errors import TransportError
from blindpost.wire.addresses import Server

log = logging.getLogger(__name__)


class EventReports:
    """Every report is an event, or a line in the log."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._away: dict[Server, Told] = {}
        """Routers that could not be reached when they were tried last."""

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

    def unreached(self, server: Server, failure: TransportError) -> None:
        error = network_error(server, failure)
        if self._away.setdefault(server, Told()).is_news(error.word, self._ground.now()):
            log.warning("%s cannot be reached, and is tried again: %s", server.hosts[0].text, error)

    def reached(self, server: Server) -> None:
        if self._away.pop(server, None) is not None:
            log.warning("%s is reached again", server.hosts[0].text)

    def raised(self, event: Event) -> None:
        self._ground.stream.put(event)
