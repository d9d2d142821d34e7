"""A router whose connections are in fronts: the same decisions, other ways in and out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Sequence
from typing import Any

from blindpost.router.asking import Asked
from blindpost.router.fronts import frames
from blindpost.router.fronts.far import FarSession
from blindpost.router.fronts.fleet import Fronts
from blindpost.router.server import Router, RouterConnection
from blindpost.router.state import RouterClient
from blindpost.router.turn import Delivery, Outgoing
from blindpost.serving.blocks import LimitedServer
from blindpost.transport.plan import SessionPlan
from blindpost.transport.session import Session
from blindpost.wire.batch import SMP_BATCH_LIMIT
from blindpost.wire.primitives import Writer
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import OK
from blindpost.wire.transmission import response_start
from blindpost.wire.value import Buffer

log = logging.getLogger(__name__)


class Fronted(Router):
    """Hears and answers through fronts."""

    fronts: Fronts

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.plan.on_verified = self._verified

    def _verified(self, verified: Sequence[Asked]) -> None:
        """Fronts learn the keys of what was verified here, so that the next time they can do it.

        For services they never do it.
        """
        for one in verified:
            request, keys = one.request, one.keys
            if not one.authorized or not request.authorization or not keys or len(keys) != 1:
                continue
            if one.key == keys[0].raw or one.client.service is not None:
                continue
            connection = self.connections.get(one.client.client_id)
            if connection is not None and connection.client is one.client and request.entity_id:
                session = connection.session
                assert isinstance(session, FarSession)
                session.learn(request.entity_id, keys[0])

    def new_connection(self, number: int, account: Hashable, session: Session) -> RouterConnection:
        assert isinstance(session, FarSession)
        if account is not None:
            session.lane = account
        return super().new_connection(number, account, session)

    def peer_lags(self, session: FarSession) -> None:
        """A front says that a peer does not read."""
        connection = self.by_session.get(session)
        if connection is not None:
            self.lag(connection)

    def send(self, outbox: Sequence[Outgoing]) -> None:
        # One write for each front, without another turn of the loop.
        self.fronts.hold()
        try:
            super().send(outbox)
        finally:
            self.fronts.flush()

    def _say(self, connection: RouterConnection, said: Sequence[Outgoing]) -> None:
        session, client = connection.session, connection.client
        assert isinstance(session, FarSession)
        parts: list[Buffer] = []
        size, congested = 0, False
        for one in said:
            _, corr_id, entity_id, response = one
            if type(response) is Delivery:
                size += frames.put_late(parts, corr_id, entity_id, *response)
            elif type(response) is OK:
                # Two of three answers are OK: they take a shorter way.
                size += frames.put_short(parts, response_start(client.layout, corr_id, entity_id), OK.TAG)
            else:
                size += frames.put_written(parts, self._transmission(client, one))
            if size >= frames.SAID_MAX:
                congested = session.say(parts, size)
                parts, size = [], 0
        if parts:
            congested = session.say(parts, size)
        if congested:
            self.lag(connection)

    def _transmission(self, client: RouterClient, one: Outgoing) -> Writer:
        """An answer, or what replaces it if it cannot be written or is too long for a block."""
        try:
            written = self.written(client, one)
        except Exception:
            log.exception("an answer could not be written")
            self.unwritten()
            return self.in_place(client, one, Code.INTERNAL)
        if 2 + written.size > SMP_BATCH_LIMIT:
            return self.in_place(client, one, Code.LARGE_MSG)
        return written


class FrontedServer(LimitedServer):
    """Accepts connections within the limits, and gives each of them to a front."""

    def __init__(self, plan: SessionPlan, room: Fronted) -> None:
        super().__init__(plan, room)
        self._room = room

    async def wait_empty(self, timeout_s: float) -> None:
        """A front that stands still is found out meanwhile: everybody would wait for its connections."""
        looking = asyncio.create_task(self._room.fronts.look_on())
        try:
            await super().wait_empty(timeout_s)
        finally:
            looking.cancel()

    def _accept(self) -> Session:
        return FarSession(self._room.fronts, self._handler, self, self._plan.limits)
