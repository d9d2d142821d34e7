"""The router behind its limits: which connections it accepts, and which commands it lets through."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence

from blindpost.client.options import DEFAULT_SMP, SmpOptions
from blindpost.engine.inbox import Budget
from blindpost.router.commands import batch_meter
from blindpost.router.config import RouterRules
from blindpost.router.fronts.fronted import Fronted
from blindpost.router.meters import Meter
from blindpost.router.server import Router
from blindpost.router.state import RouterClient
from blindpost.router.tables import RouterStore
from blindpost.router.turn import Outgoing
from blindpost.serving.limits import AddressKey, Limits
from blindpost.transport.handshake import FindService
from blindpost.transport.session import Session
from blindpost.wire.smp.commands import NEW
from blindpost.wire.smp.errors import STORE
from blindpost.wire.smp.responses import DELD, END, NMSG
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.transmissions import Refused

TOO_MANY_NEW = STORE("too many new queues, try again later")
"""The answer to NEW above the rate. The protocol has no word for "later". AUTH would tell a client that its
password is wrong, QUOTA that a queue is full; STORE says what happened, that the queue was not stored, in
words that reach a person.
"""

EVENT_BATCHES: dict[type, Meter] = {
    END: Meter.SUB_END_BATCHES,
    DELD: Meter.SUB_END_BATCHES,
    NMSG: Meter.NTF_BATCHES,
}
"""Events whose batches are counted: one for each connection and turn."""


class GuardedRouter(Router):
    """A router that counts new queues per address."""

    def __init__(
        self,
        store: RouterStore,
        rules: RouterRules | None = None,
        *,
        limits: Limits,
        budget: Budget | None = None,
        now: Callable[[], float] = time.time,
        relay_options: SmpOptions = DEFAULT_SMP,
    ) -> None:
        super().__init__(
            store,
            rules,
            budget=budget,
            now=now,
            relay_options=relay_options,
            limits=limits,
        )
        self.guard = limits.meters

    def service_requested(self, session: Session, request: FindService) -> None:
        """Presenting a certificate may add a row, so it counts like a new queue."""
        if self.limits.new_queue(self.limits.key_of(session)):
            super().service_requested(session, request)
        else:
            self.guard.new_refused += 1
            session.service_refused()

    def asker(self, client: RouterClient) -> Hashable:
        """The address of a connection, unless it is exempt."""
        connection = self.connections.get(client.client_id)
        key = None if connection is None else self.limits.key_of(connection.session)
        return client.client_id if key is None else key

    def admitted(self, session: Session, items: Sequence[Request | Refused]) -> Sequence[Request | Refused]:
        """The items of a block, with those NEW refused that come too fast."""
        if len(items) > 1 and (meter := batch_meter(items)) is not None:
            self.plan.meters.add(meter)
        for item in items:
            if type(item) is Request and type(item.command) is NEW:
                key = self.limits.key_of(session)
                return [self._admitted(key, item) for item in items]
        return items

    def send(self, outbox: Sequence[Outgoing]) -> None:
        super().send(outbox)
        told: set[tuple[Meter, int]] = set()
        for client_id, _, _, response in outbox:
            meter = EVENT_BATCHES.get(type(response))
            if meter is not None:
                told.add((meter, client_id))
        for meter, _ in told:
            self.plan.meters.add(meter)

    def _admitted(self, key: AddressKey | None, item: Request | Refused) -> Request | Refused:
        if not isinstance(item, Request) or not isinstance(item.command, NEW) or self.limits.new_queue(key):
            return item
        self.guard.new_refused += 1
        return Refused(item.corr_id, item.entity_id, TOO_MANY_NEW)


class FrontedRouter(Fronted, GuardedRouter):
    """The same, with its connections in fronts."""
