"""The router behind its limits: which connections it takes, and which commands it lets through."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from blindpost.client.options import DEFAULT_SMP, SmpOptions
from blindpost.engine.inbox import Budget
from blindpost.router.commands import batch_meter
from blindpost.router.config import RouterRules
from blindpost.router.meters import Meter
from blindpost.router.server import Router
from blindpost.router.state import Client
from blindpost.router.tables import RouterStore
from blindpost.router.turn import Outgoing
from blindpost.serving.limits import AddressKey, AddressKeys, Limits
from blindpost.transport import errors
from blindpost.transport.ends import Server
from blindpost.transport.handshake import FindService
from blindpost.transport.network import TCP, Network
from blindpost.transport.plan import Plan
from blindpost.transport.session import Handler, Session, Stage
from blindpost.wire.smp.commands import NEW
from blindpost.wire.smp.errors import STORE
from blindpost.wire.smp.responses import DELD, END, NMSG
from blindpost.wire.smp.transmissions import Refused, Request

TOO_MANY_NEW = STORE("too many new queues, try again later")
"""What NEW above the rate is answered.

The protocol has no word for "later". AUTH would tell a client that its password is wrong, QUOTA that a
queue is full; STORE says what happened, the queue was not stored, in words that reach a person.
"""

EVENT_BATCHES: dict[type, Meter] = {
    END: Meter.SUB_END_BATCHES,
    DELD: Meter.SUB_END_BATCHES,
    NMSG: Meter.NTF_BATCHES,
}
"""Events whose batches are counted: one for each connection and turn."""


@dataclass(slots=True)
class Sockets:
    """How many were accepted, and how many of them closed."""

    accepted: int = 0
    closed: int = 0


@dataclass(slots=True)
class GuardMeters:
    """What was taken and what was turned away, since the start of the process."""

    sockets: dict[int, Sockets] = field(default_factory=dict)
    """By the port at which they came in."""
    refused_total: int = 0
    refused_address: int = 0
    refused_handshakes: int = 0
    handshakes_failed: int = 0
    new_refused: int = 0


class GuardedRouter(Router):
    """A router that counts new queues per address, and takes nothing in once it drains."""

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
        super().__init__(store, rules, budget=budget, now=now, relay_options=relay_options)
        self.limits = limits
        self.guard = GuardMeters()
        self.addresses: dict[Session, AddressKey | None] = {}
        self.draining = False

    def block_received(self, session: Session, payload: bytes) -> None:
        if not self.draining:
            super().block_received(session, payload)

    def asker(self, client: Client) -> Hashable:
        """The address of a connection, unless it is exempt."""
        connection = self.connections.get(client.client_id)
        key = None if connection is None else self.addresses.get(connection.session)
        return client.client_id if key is None else key

    def admitted(self, session: Session, items: Sequence[Request | Refused]) -> Sequence[Request | Refused]:
        """The items of a block, with those NEW refused that come too fast."""
        if len(items) > 1 and (meter := batch_meter(items)) is not None:
            self.plan.meters.add(meter)
        for item in items:
            if type(item) is Request and type(item.command) is NEW:
                key = self.addresses.get(session)
                return [self._admitted(key, item) for item in items]
        return items

    def _send(self, outbox: Sequence[Outgoing]) -> None:
        super()._send(outbox)
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


class Door(Handler):
    """Follows a session until its handshake is complete, then hands it to the router."""

    def __init__(self, router: GuardedRouter) -> None:
        self.router = router
        self.handshakes = 0

    def established(self, session: Session) -> None:
        self.handshakes -= 1
        session.handler = self.router
        self.router.established(session)

    def service_requested(self, session: Session, request: FindService) -> None:
        self.router.service_requested(session, request)

    def closed(self, session: Session, reason: errors.TransportError) -> None:
        self.handshakes -= 1
        if not isinstance(reason, errors.DivertedError):
            self.router.guard.handshakes_failed += 1


class GuardedServer(Server):
    """Accepts sessions within the limits."""

    def __init__(self, plan: Plan, router: GuardedRouter, keys: AddressKeys) -> None:
        self._door = Door(router)
        super().__init__(plan, self._door, router.limits.sizes.connections)
        self._router = router
        self._keys = keys

    @property
    def handshakes(self) -> int:
        """How many sessions have not completed their handshake."""
        return self._door.handshakes

    async def listen(self, host: str | None, port: int, network: Network = TCP) -> int:
        chosen = await super().listen(host, port, network)
        self._router.guard.sockets.setdefault(chosen, Sockets())
        return chosen

    def opened(self, session: Session) -> None:
        router, guard = self._router, self._router.guard
        guard.sockets.setdefault(session.own_port, Sockets()).accepted += 1
        self._door.handshakes += 1
        super().opened(session)
        if session.stage is not Stage.TLS:
            guard.refused_total += 1
            return
        if self._door.handshakes > router.limits.sizes.handshakes:
            guard.refused_handshakes += 1
            session.abort(errors.RefusedError("too many handshakes at once"))
            return
        key = self._keys.of(session.peer_host)
        if router.limits.connect(key):
            router.addresses[session] = session.account = key
        else:
            guard.refused_address += 1
            session.abort(errors.RefusedError("too many connections of one address"))

    def closed(self, session: Session) -> None:
        super().closed(session)
        self._router.guard.sockets[session.own_port].closed += 1
        if session in self._router.addresses:
            self._router.limits.disconnect(self._router.addresses.pop(session))
