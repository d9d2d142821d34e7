"""The shell: sessions in front, the engine in the middle, store and providers behind. No rules here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping, Sequence

from blindpost.crypto.authorizers import AuthenticatorKeys, Verifier
from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.verifying import OneByOne
from blindpost.engine.events import Gone
from blindpost.engine.inbox import Budget
from blindpost.engine.loop import Engine
from blindpost.ntf.meters import Meter
from blindpost.ntf.model import NtfRules, PushKind, SmpRouter
from blindpost.ntf.plan import (
    Aged,
    Commands,
    Due,
    Event,
    NtfPlan,
    PushAgain,
    PushDone,
    Shell,
    Told,
    Unused,
    Unverified,
)
from blindpost.ntf.ports import Notifier, Provider, PushOutcome, Subscriber, SubscriberEvent
from blindpost.ntf.pusher import Pusher
from blindpost.ntf.state import Client
from blindpost.ntf.tables import NtfStore
from blindpost.ntf.turn import Effect, Forget, Outgoing, Push, PushLater, Subscribe
from blindpost.serving.blocks import BlockConnection, BlockConnections
from blindpost.serving.limits import Limits
from blindpost.transport import errors
from blindpost.transport.session import Session
from blindpost.wire.addresses import Server
from blindpost.wire.batch import Packed
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.blocks import pack_transmissions
from blindpost.wire.ntf.responses import ERR
from blindpost.wire.ntf.tokens import PushProvider
from blindpost.wire.ntf.transmissions import parse_requests
from blindpost.wire.ntf.versions import connection_layout
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.errors import Code
from blindpost.wire.transmissions import BAD_BLOCK, response_transmission

STEP = 500
"""How many of the tokens found in the store one turn handles."""
LOOK_MAX = 100_000
"""How many tokens one scan finds at most; the next one finds the others."""


NtfConnection = BlockConnection[Client]


@dataclass(frozen=True, slots=True)
class MessageRouter:
    """A message router as a source of events.

    Anybody can name one, and some talk without end. They take turns with each other, and all of them
    together with each address that clients come from.
    """

    server: Server

    @property
    def account(self) -> str:
        return "message routers"

    def hold(self, reason: str) -> None:
        """Nothing is read from it while what it said before is not stored."""

    def let_go(self, reason: str) -> None: ...


class NtfRouter(BlockConnections[NtfConnection, Outgoing]):
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
        limits: Limits | None = None,
    ) -> None:
        super().__init__(limits)
        self.store = store
        self.rules = rules or NtfRules()
        shell = Shell(now, self.send, self._perform, self._push, self._later)
        self.plan = NtfPlan(store, self.rules, verifier or OneByOne(), entropy, shell)
        self.engine: Engine[Event] = Engine(self.plan, self.plan.undo, budget)
        self.pusher = Pusher(providers, self.rules.padded_size, entropy, self._pushed)
        self.subscriber: Subscriber | None = None
        """Set before `run`; without one nothing is subscribed at message routers."""
        self._now = now
        self._after = b""
        # Peers of version 1 get no key; what they offer is checked against this one and fails.
        self._spare_key = PrivateKey.generate(Algorithm.X25519, entropy)

    async def run(self) -> None:
        """Decide until `stop`, then return when everything accepted is committed and answered."""
        try:
            await self.engine.run()
        finally:
            await self.pusher.finish()
        await self.engine.run()

    def stop(self) -> None:
        self.pusher.stop()
        self.engine.stop()

    @property
    def now(self) -> float:
        """The time of day, as the decisions see it."""
        return self._now()

    # --- sessions

    def new_connection(self, number: int, account: Hashable, session: Session) -> NtfConnection:
        agreement = session.agreed
        client = Client(
            number,
            agreement.version,
            connection_layout(agreement.version, agreement.session_id),
            AuthenticatorKeys(agreement.own_key or self._spare_key),
            self.limits.keys.of(session.peer_host),
        )
        return NtfConnection(number, account, session, client)

    def block_received(self, session: Session, payload: bytes) -> None:
        connection = self.by_session[session]
        client = connection.client
        items = parse_requests(Reader(payload), client.layout, client.version)
        self.engine.put(connection, Commands(client, items), len(items), len(payload))

    def block_failed(self, session: Session, error: errors.BlockError) -> None:
        connection = self.by_session[session]
        self.engine.put(connection, Commands(connection.client, [BAD_BLOCK]))

    def left(self, connection: NtfConnection) -> None:
        self.engine.put(connection, Gone(connection.client))

    def close_idle(self, ttl_s: float) -> int:
        """Close connections on which neither side sent anything for this long; returns how many."""
        return self.close_silent(ttl_s)

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
        told = Told(events, durable)
        if events:
            self.engine.put(MessageRouter(events[0].server), told, len(events))
        else:
            self.engine.put_own(told)
        await durable

    # --- what the plan asks for

    def written(self, client: Client, said: Outgoing) -> Writer:
        return response_transmission(
            client.layout, client.version, said.corr_id, said.entity_id, said.response
        )

    def in_place(self, client: Client, said: Outgoing, code: Code) -> Writer:
        return response_transmission(client.layout, client.version, said.corr_id, said.entity_id, ERR(code))

    def pack(self, client: Client, transmissions: Sequence[Writer]) -> Packed:
        return pack_transmissions(transmissions, client.version)

    def unwritten(self) -> None:
        self.plan.meters.add(Meter.INTERNAL_ERRORS)

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

    async def look_regularly(self) -> None:
        """Scan forever, beside `run`; the caller restarts it when a scan fails."""
        await self.look_for_codes()
        while True:
            await self.look()
            await asyncio.sleep(self.rules.period_step_s)

    async def look_for_codes(self) -> None:
        """Push the codes that waited when the router before this one ended: their devices wait for them."""
        since = int(self._now()) - self.rules.code_ttl_s
        await self._push_due(await self.store.codes_unsent(since, LOOK_MAX), PushKind.VERIFICATION)

    async def look(self) -> None:
        """Find what has expired, what is due, and what waits without a push under way."""
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
        """Decide in steps, each in a separate turn, so that devices do not wait long."""
        for start in range(0, len(token_ids), STEP):
            self.engine.put_own(event(token_ids[start : start + STEP]))
            await self.submit(())
