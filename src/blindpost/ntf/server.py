"""The shell: sessions in front, the engine in the middle, store and providers behind. No rules here."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence

from blindpost.crypto.authorizers import AuthenticatorKeys, OneByOne, Verifier
from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.engine.containment import contained
from blindpost.engine.inbox import Budget
from blindpost.engine.loop import Engine, StoreFailedError
from blindpost.ntf.meters import Meter
from blindpost.ntf.model import NtfRules, PushKind, SmpRouter
from blindpost.ntf.plan import (
    Aged,
    Commands,
    Due,
    Event,
    Gone,
    NtfPlan,
    PushAgain,
    PushDone,
    Shell,
    Told,
    Unused,
    Unverified,
)
from blindpost.ntf.ports import Notifier, PushOutcome, Subscriber, SubscriberEvent
from blindpost.ntf.ports import PushProvider as Provider
from blindpost.ntf.pusher import Pusher
from blindpost.ntf.state import Client
from blindpost.ntf.tables import NtfStore
from blindpost.ntf.turn import Effect, Forget, Outgoing, Push, PushLater, Subscribe
from blindpost.serving.limits import AddressKeys
from blindpost.transport import errors
from blindpost.transport.session import Handler, Session
from blindpost.wire.addresses import Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.blocks import pack_transmissions
from blindpost.wire.ntf.responses import ERR, Response
from blindpost.wire.ntf.tokens import PushProvider
from blindpost.wire.ntf.transmissions import parse_requests, response_transmission
from blindpost.wire.ntf.versions import connection_layout
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.transmissions import BAD_BLOCK

log = logging.getLogger(__name__)

STEP = 500
"""How many tokens one turn is given of what a look at the store found."""
ADDRESSES = AddressKeys()
LOOK_MAX = 100_000
"""How many tokens one look finds at most; the next one finds the others."""


class Connection:
    """One session and the client that the decisions know; a source of the engine's inbox."""

    __slots__ = ("_held", "client", "session")

    def __init__(self, session: Session, client: Client) -> None:
        self.session = session
        self.client = client
        self._held: set[str] = set()

    @property
    def account(self) -> Hashable:
        return self.session.account

    def congested(self) -> None:
        """The peer does not read its answers: it is not read from either."""
        self.hold("outbox")

    def drained(self) -> None:
        self.let_go("outbox")

    def hold(self, reason: str) -> None:
        self._held.add(reason)
        self.session.pause_reading()

    def let_go(self, reason: str) -> None:
        self._held.discard(reason)
        if not self._held:
            self.session.resume_reading()


class NtfRouter(Handler):
    """A running notification router, apart from where it listens; a `Desk` for its subscriber."""

    def __init__(
        self,
        store: NtfStore,
        providers: Mapping[PushProvider, Provider],
        rules: NtfRules | None = None,
        *,
        verifier: Verifier | None = None,
        entropy: Entropy = system_entropy,
        now: Callable[[], float] = time.time,
        budget: Budget | None = None,
    ) -> None:
        self.store = store
        self.rules = rules or NtfRules()
        shell = Shell(now, self._send, self._perform, self._push, self._later)
        self.plan = NtfPlan(store, self.rules, verifier or OneByOne(), entropy, shell)
        self.engine: Engine[Event] = Engine(self.plan, self.plan.undo, budget)
        self.pusher = Pusher(providers, self.rules.padded_size, entropy, self._pushed)
        self.subscriber: Subscriber | None = None
        """Set before `run`; without one nothing is subscribed at message routers."""
        self.connections: dict[int, Connection] = {}
        self._by_session: dict[Session, Connection] = {}
        self._now = now
        self._ids = itertools.count(1)
        self._after = b""
        # Peers of version 1 get no key; what they offer is checked against this one, in vain.
        self._spare_key = PrivateKey.generate(Algorithm.X25519, entropy)

    async def run(self) -> None:
        """Decide until `stop`, then return when everything accepted is committed and answered."""
        looking = asyncio.create_task(self._look_regularly())
        try:
            await self.engine.run()
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await self.pusher.close()

    def stop(self) -> None:
        self.engine.stop()

    @property
    def now(self) -> float:
        """The time of day, as the decisions have it."""
        return self._now()

    # --- sessions

    def established(self, session: Session) -> None:
        agreement = session.agreed
        client = Client(
            next(self._ids),
            agreement.version,
            connection_layout(agreement.version, agreement.session_id),
            AuthenticatorKeys(agreement.own_key or self._spare_key),
            ADDRESSES.of(session.peer_host),
        )
        connection = Connection(session, client)
        self.connections[client.client_id] = connection
        self._by_session[session] = connection

    def block_received(self, session: Session, payload: bytes) -> None:
        connection = self._by_session[session]
        client = connection.client
        items = parse_requests(Reader(payload), client.layout, client.version)
        self.engine.put(connection, Commands(client, items), len(items), len(payload))

    def block_failed(self, session: Session, error: errors.BlockError) -> None:
        connection = self._by_session[session]
        self.engine.put(connection, Commands(connection.client, [BAD_BLOCK]))

    def drained(self, session: Session) -> None:
        connection = self._by_session.get(session)
        if connection is not None:
            connection.drained()

    def closed(self, session: Session, reason: errors.TransportError) -> None:
        connection = self._by_session.pop(session, None)
        if connection is not None:
            del self.connections[connection.client.client_id]
            self.engine.put(connection, Gone(connection.client))

    def close_idle(self, ttl_s: float) -> int:
        """Close connections on which neither side said anything for so long; how many."""
        before = asyncio.get_running_loop().time() - ttl_s
        idle = [
            connection.session
            for connection in self.connections.values()
            if max(connection.session.last_received, connection.session.last_sent) < before
        ]
        for session in idle:
            session.close()
        return len(idle)

    # --- the subscriber's desk

    async def routers(self) -> list[SmpRouter]:
        return await self.store.routers()

    async def router(self, server: Server) -> SmpRouter | None:
        return await self.store.router(server)

    async def page(
        self, server: Server, after: bytes, count: int, *, with_associated: bool
    ) -> list[Notifier]:
        return await self.store.page(server, after, count, with_associated=with_associated)

    async def submit(self, events: Sequence[SubscriberEvent]) -> None:
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.engine.put_own(Told(events, durable))
        await durable

    # --- what the plan asks for

    def _send(self, outbox: Sequence[Outgoing]) -> None:
        """Everything that one turn says, in the fewest blocks for each connection."""
        by_client: dict[int, list[Outgoing]] = {}
        for outgoing in outbox:
            by_client.setdefault(outgoing.client_id, []).append(outgoing)
        for client_id, said in by_client.items():
            connection = self.connections.get(client_id)
            if connection is not None and not contained(
                "answering a connection", self._say, connection, said
            ):
                connection.session.abort()

    def _say(self, connection: Connection, said: Sequence[Outgoing]) -> None:
        client = connection.client
        transmissions = []
        for outgoing in said:
            try:
                transmissions.append(_transmission(client, outgoing, outgoing.response))
            except Exception:
                # A row that cannot be told harms whoever asked for it.
                log.exception("an answer could not be written")
                self.plan.meters.add(Meter.INTERNAL_ERRORS)
                transmissions.append(_transmission(client, outgoing, ERR(Code.INTERNAL)))
        packed = pack_transmissions(transmissions, client.version)
        if packed.oversize:
            for place in packed.oversize:
                transmissions[place] = _transmission(client, said[place], ERR(Code.LARGE_MSG))
            packed = pack_transmissions(transmissions, client.version)
        try:
            connection.session.send_now(packed.payloads)
        except errors.TransportError:
            return
        if connection.session.congested:
            connection.congested()

    def _perform(self, effect: Effect) -> None:
        subscriber = self.subscriber
        match effect:
            case PushLater(token_id, kind, job, delay_s):
                self._later(delay_s, PushAgain(token_id, kind, job))
            case Subscribe(server, notifier) if subscriber is not None:
                subscriber.subscribe(server, (notifier,))
            case Forget(server, notifier_ids) if subscriber is not None:
                subscriber.forget(server, notifier_ids)
            case _:
                pass

    def _push(self, push: Push) -> None:
        self.pusher.perform(push)

    def _pushed(self, push: Push, outcome: PushOutcome) -> None:
        self.engine.put_own(PushDone(push, outcome))

    def _later(self, delay_s: float, event: Event) -> None:
        self.engine.after(delay_s, event)

    # --- looking into the store

    async def _look_regularly(self) -> None:
        while True:
            try:
                await self.look()
            except StoreFailedError as error:
                log.error("the store could not be looked through: %s", error)
            await asyncio.sleep(self.rules.period_step_s)

    async def look(self) -> None:
        """Find what has aged, what is due, and what waits without a push under way."""
        now, rules, store = int(self._now()), self.rules, self.store
        await self._decided(Aged, await store.aged(now - rules.notification_ttl_s, LOOK_MAX))
        await self._decided(Unverified, await store.unverified(now - rules.unverified_ttl_s, LOOK_MAX))
        await self._push_due(await store.periods_due(now, LOOK_MAX), PushKind.CHECK)
        self.engine.put_own(
            Unused([server for server in await store.unused_routers(STEP) if not self._has(server)])
        )
        while len(self.plan.state.jobs) < rules.push_queue:
            found = await store.waiting(self._after, STEP)
            self._after = found[-1] if len(found) == STEP else b""
            await self._push_due(found, PushKind.MESSAGE)
            if not self._after:
                break

    def _has(self, server: Server) -> bool:
        """Whether the subscriber is still busy with a message router."""
        return self.subscriber is not None and self.subscriber.has(server)

    async def _push_due(self, token_ids: Sequence[bytes], kind: PushKind) -> None:
        jobs = self.plan.state.jobs
        idle = [token_id for token_id in token_ids if (token_id, kind) not in jobs]
        await self._decided(lambda some: Due(some, kind), idle)

    async def _decided(self, event: Callable[[Sequence[bytes]], Event], token_ids: Sequence[bytes]) -> None:
        """In steps, each in a turn of its own, so that devices need not wait long."""
        for start in range(0, len(token_ids), STEP):
            self.engine.put_own(event(token_ids[start : start + STEP]))
            await self.submit(())


def _transmission(client: Client, outgoing: Outgoing, response: Response) -> Writer:
    return response_transmission(
        client.layout, client.version, outgoing.corr_id, outgoing.entity_id, response
    )
