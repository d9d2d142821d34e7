"""The router's shell: sessions in front, the engine in the middle, the store behind. No rules here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence

from blindpost.client.options import DEFAULT_SMP, SmpOptions
from blindpost.crypto.authorizers import AuthenticatorKeys, Verifier
from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.verifying import OneByOne
from blindpost.engine.events import Gone
from blindpost.engine.inbox import Budget
from blindpost.engine.loop import Engine
from blindpost.router.bulk import CHUNK_ITEMS, BulkStore, chunks
from blindpost.router.config import RouterRules
from blindpost.router.events import (
    Commands,
    Event,
    Expire,
    ExpireNotifications,
    ExpireServices,
    Present,
    RelayAnswer,
    Serve,
)
from blindpost.router.expiry import EXPIRY_STEP
from blindpost.router.forwarding import ForwardedAnswer
from blindpost.router.meters import Meter
from blindpost.router.model import DAY_S, day_of
from blindpost.router.plan import RouterPlan
from blindpost.router.relays import Relays
from blindpost.router.sealing import sealed_message
from blindpost.router.state import RouterClient, SessionKeys
from blindpost.router.tables import RouterStore
from blindpost.router.turn import Delivery, Outgoing, RelayEffect
from blindpost.router.weights import stored_bytes
from blindpost.serving.blocks import BlockConnection, BlockConnections
from blindpost.serving.limits import Limits
from blindpost.transport import errors
from blindpost.transport.handshake import FindService
from blindpost.transport.session import Session
from blindpost.wire.batch import SMP_BATCH_LIMIT, Packed, pack
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import ERR, Response
from blindpost.wire.smp.transmissions import Request, parse_requests
from blindpost.wire.smp.versions import connection_layout
from blindpost.wire.transmissions import BAD_BLOCK, Refused, response_transmission

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""The pause before retrying the router's own work after the store refused it."""
RETRY_MAX_S = 60.0
"""The longest pause for work that keeps failing."""


RELAY_COMMANDS_MAX = 32
"""How many commands of one connection may be on the way to relays at once."""


LATE = (Delivery, ForwardedAnswer)
"""Encrypted when sent, not when decided."""


class RouterConnection(BlockConnection[RouterClient]):
    """One session of the router, with its commands that are on their way to relays."""

    __slots__ = ("_for_relays", "_relays_asked")

    def __init__(self, number: int, account: Hashable, session: Session, client: RouterClient) -> None:
        super().__init__(number, account, session, client)
        self._relays_asked = 0
        self._for_relays: deque[RelayEffect] = deque()

    def ask_relay(self, effect: RelayEffect) -> bool:
        """Whether a command may go to its relay now; the number on the way at once is limited."""
        if self._relays_asked < RELAY_COMMANDS_MAX:
            self._relays_asked += 1
            return True
        self._for_relays.append(effect)
        self.hold("relays")
        return False

    def relay_answered(self) -> RelayEffect | None:
        """A command has returned: the next to go in its place, if any waits."""
        if self._for_relays:
            return self._for_relays.popleft()
        self._relays_asked -= 1
        self.let_go("relays")
        return None


class Router(BlockConnections[RouterConnection, Outgoing]):
    """A running router, apart from where it listens: hand it to a transport server as its handler."""

    def __init__(
        self,
        store: RouterStore,
        rules: RouterRules | None = None,
        *,
        verifier: Verifier | None = None,
        entropy: Entropy = system_entropy,
        now: Callable[[], float] = time.time,
        budget: Budget | None = None,
        relay_options: SmpOptions = DEFAULT_SMP,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(limits)
        self.store = store
        self.plan = RouterPlan(
            store,
            rules or RouterRules(),
            verifier or OneByOne(),
            entropy,
            now,
            self.send,
            self._put_own,
            self._later,
            self._perform,
        )
        self.relays = Relays(relay_options, entropy, self._relay_answered, self.asker)
        self.engine: Engine[Event] = Engine(self.plan, self.plan.undo, budget)
        self.draining = False
        """Once it drains it takes nothing in."""
        self._now = now
        # Peers of version 6 get no key; what they offer is checked against this one and fails.
        self._spare_key = PrivateKey.generate(Algorithm.X25519, entropy)

    async def run(self) -> None:
        """Decide until `stop`, then return when everything accepted is committed and answered."""
        try:
            await self.engine.run()
        finally:
            await self.relays.close()

    def stop(self) -> None:
        self.engine.stop()

    def new_connection(self, number: int, account: Hashable, session: Session) -> RouterConnection:
        agreement = session.agreed
        secrets = AuthenticatorKeys(agreement.own_key or self._spare_key)
        layout = connection_layout(agreement.version, agreement.session_id)
        keys = None
        if agreement.own_key is not None and agreement.peer_key is not None:
            keys = SessionKeys(agreement.own_key, agreement.peer_key)
        client = RouterClient(
            number, agreement.version, layout, secrets, self.plan.undo, agreement.service, keys
        )
        client.account = account
        return RouterConnection(number, account, session, client)

    def service_requested(self, session: Session, request: FindService) -> None:
        def found(service_id: bytes | None) -> None:
            if service_id is None:
                session.service_refused()
            else:
                session.service_found(service_id)

        account = self.limits.account(session)
        self.engine.put_own(Present(request.role, request.fingerprint, request.chain, found, account))

    def block_received(self, session: Session, payload: bytes, keys: Sequence[bytes] = ()) -> None:
        """A block, and if a front read it the key that verified each of its transmissions."""
        if self.draining:
            return
        connection = self.by_session[session]
        client = connection.client
        items = self.admitted(session, parse_requests(Reader(payload), client.layout, client.version))
        count = len(items)
        commands = Commands(client, items, keys if len(keys) == count else ())
        self.engine.put(connection, commands, count, len(payload))

    def admitted(self, session: Session, items: Sequence[Request | Refused]) -> Sequence[Request | Refused]:
        """The items of a block that are let through; a router with limits refuses some."""
        return items

    def block_failed(self, session: Session, error: errors.BlockError) -> None:
        connection = self.by_session[session]
        self.engine.put(connection, Commands(connection.client, [BAD_BLOCK]))

    def lags(self, connection: RouterConnection) -> None:
        connection.client.congested = True

    def relieved(self, connection: RouterConnection) -> None:
        connection.client.congested = False
        self.engine.put_own(Serve(connection.client))

    def left(self, connection: RouterConnection) -> None:
        self.engine.put(connection, Gone(connection.client))

    async def expire_messages(self) -> None:
        """Walk over all queues in steps and drop what is too old from their heads."""
        ttl = self.plan.rules.message_ttl_s
        start: bytes | None = b"" if ttl is not None else None
        while start is not None and ttl is not None:
            before = int(self._now()) - ttl
            found, start = await self.store.expired(before, start, EXPIRY_STEP)
            if found:
                self.engine.put_own(Expire(found, before))
            await asyncio.sleep(0)

    async def expire_notifications(self) -> None:
        """Walk over all notifiers in steps and drop what nobody fetched in time."""
        start: bytes | None = b""
        while start is not None:
            before = int(self._now()) - self.plan.rules.notification_ttl_s
            found, start = await self.store.notified(start, EXPIRY_STEP)
            if found:
                self.engine.put_own(ExpireNotifications(found, before))
            await asyncio.sleep(0)

    async def expire_services(self, bulk: BulkStore) -> None:
        """Forget services that were made before yesterday, never had a queue and are not connected."""
        before = day_of(self._now()) - DAY_S
        async for chunk in chunks(bulk.services, CHUNK_ITEMS):
            empty = [
                service.service_id
                for service in chunk.items
                if service.created_day < before and service.is_empty
            ]
            if empty:
                self.engine.put_own(ExpireServices(empty, before, self._connected_services))

    def _connected_services(self) -> set[bytes]:
        clients = (connection.client for connection in self.connections.values())
        return {client.service.service_id for client in clients if client.service is not None}

    async def look_at_stored(self) -> None:
        """Look at how much is stored."""
        self.plan.stored.limit = self.limits.sizes.stored
        self.plan.stored.look(stored_bytes(self.store.counts()))

    def close_idle(self) -> int:
        """Close connections that are silent and subscribed to nothing; how many."""
        return self.close_silent(
            self.plan.rules.idle_ttl_s, lambda connection: self.plan.state.is_subscribed(connection.client)
        )

    def asker(self, client: RouterClient) -> Hashable:
        """Whose account a connection's outgoing work is charged to."""
        return client.client_id

    def _perform(self, effect: RelayEffect) -> None:
        connection = self.connections.get(effect.client.client_id)
        if connection is not None and connection.ask_relay(effect):
            self.relays.perform(effect)

    def _relay_answered(self, effect: RelayEffect, response: Response) -> None:
        connection = self.connections.get(effect.client.client_id)
        if connection is not None:
            self.engine.put_own(RelayAnswer(effect, response))
            waiting = connection.relay_answered()
            if waiting is not None:
                self.relays.perform(waiting)

    def _put_own(self, event: Event) -> None:
        self.engine.put_own(event)

    def _later(self, event: Event) -> None:
        tries = event.tries if isinstance(event, Serve) else 0
        self.engine.after(min(RETRY_S * 2**tries, RETRY_MAX_S), event)

    def written(self, client: RouterClient, said: Outgoing) -> Writer:
        _, corr_id, entity_id, response = said
        sent = _sealed(response) if isinstance(response, LATE) else response
        return response_transmission(client.layout, client.version, corr_id, entity_id, sent)

    def in_place(self, client: RouterClient, said: Outgoing, code: Code) -> Writer:
        return response_transmission(client.layout, client.version, said.corr_id, said.entity_id, ERR(code))

    def pack(self, client: RouterClient, transmissions: Sequence[Writer]) -> Packed:
        return pack(transmissions, SMP_BATCH_LIMIT)

    def unwritten(self) -> None:
        self.plan.meters.add(Meter.INTERNAL_ERRORS)


def _sealed(answer: Delivery | ForwardedAnswer) -> Response:
    """Encrypt at the last moment."""
    if isinstance(answer, ForwardedAnswer):
        return answer.sealed()
    return sealed_message(answer.secret, answer.message)
