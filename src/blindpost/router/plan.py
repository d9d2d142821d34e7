"""What the router does in each step of the engine's turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from blindpost.crypto.authorizers import Verifier
from blindpost.crypto.entropy import Entropy
from blindpost.engine.containment import contained
from blindpost.engine.events import Gone
from blindpost.engine.loop import Cut, StoreFailedError
from blindpost.engine.undo import Undo
from blindpost.router import decisions, delivery, notifications, services
from blindpost.router.asking import Asked, ask, need_all, verify
from blindpost.router.changes import Needed, Wanted
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
from blindpost.router.expiry import expire_head, expire_notifications
from blindpost.router.meters import Meter, RouterMeters
from blindpost.router.model import Domain
from blindpost.router.operator import OperatorCommand, need_operator, operate, want_operator
from blindpost.router.relaying import relay_answered
from blindpost.router.state import RouterClient, RouterState
from blindpost.router.tables import RouterStore
from blindpost.router.turn import Outgoing, RelayEffect, Turn
from blindpost.router.view import View
from blindpost.router.weights import left
from blindpost.router.work import TURN_WORK, Work, cut, inner_of
from blindpost.serving.stored import STORED_MAX, Stored
from blindpost.wire.smp.errors import STORE, Code
from blindpost.wire.smp.responses import ERR
from blindpost.wire.transmissions import Refused

SERVE_STEP = 16
"""How many waiting queues one turn hands to a connection, whose outbox must take as many messages."""


@dataclass(slots=True)
class Waiting:
    """What a turn hands to one connection: loaded before, decided once."""

    queues: tuple[bytes, ...] = ()
    notifiers: tuple[bytes, ...] = ()
    walks: dict[Domain, tuple[tuple[bytes, ...], bytes | None]] = field(default_factory=dict)
    """By domain, the queues of the next step of a walk, and where it continues."""
    failed: dict[Domain, StoreFailedError] = field(default_factory=dict)
    """By domain, why a walk could not continue."""


class RouterPlan:
    """The router's side of the engine."""

    def __init__(
        self,
        store: RouterStore,
        rules: RouterRules,
        verifier: Verifier,
        entropy: Entropy,
        now: Callable[[], float],
        send: Callable[[Sequence[Outgoing]], None],
        put_own: Callable[[Event], None],
        later: Callable[[Event], None],
        perform: Callable[[RelayEffect], None],
    ) -> None:
        self.undo = Undo()
        self.state = RouterState(self.undo)
        self.meters = RouterMeters()
        self.rules = rules
        self.stored = Stored(STORED_MAX, self.undo)
        self._store = store
        self._verifier = verifier
        self._entropy = entropy
        self._now = now
        self._send = send
        self._put_own = put_own
        self._later = later
        self._perform = perform
        self._serving: dict[RouterClient, Waiting] = {}
        self._view = View(self.undo, self._service_fault)
        self._turn = self._new_turn()
        self.on_use: Callable[[Sequence[tuple[bytes, bool]], int], None] | None = None
        """Called after each turn, with its time and the queues in which messages came or went."""
        self.on_compare: Callable[[bytes, Domain, bool], None] | None = None
        """Called when a service subscribed: to what, and whether both sides agreed about its queues."""
        self.on_verified: Callable[[Sequence[Asked]], None] | None = None
        """Called with the requests of a turn that were verified here."""

    def _new_turn(self) -> Turn:
        self._view.empty()
        now = int(self._now())
        return Turn(self.state, self.rules, self.meters, self._entropy, now, self._view, self.stored)

    def _service_fault(self) -> None:
        self._turn.count(Meter.SERVICE_FAULTS)

    @property
    def outbox(self) -> Sequence[Outgoing]:
        """What this turn sends once it is committed."""
        return self._turn.outbox

    async def prepare(self, batch: Sequence[Event]) -> Cut[Event] | None:
        turn = self._turn = self._new_turn()
        self._serving.clear()
        wanted = Wanted()
        verifiable: list[Asked] = []
        own: list[Event] = []
        for event in batch:
            if type(event) is Commands:
                self._want_commands(wanted, verifiable, event)
            else:
                own.append(event)
                await self._want_own(wanted, event)
        await self._store.load(wanted, turn.view)
        parts = self._cut(batch, verifiable)
        verified = verify(turn.view, self._verifier, verifiable)
        if verified and self.on_verified is not None:
            contained("noting what was verified", self.on_verified, verified)
        needed = Needed()
        if self.rules.expire_on_send and self.rules.message_ttl_s is not None:
            needed.expire_before = turn.now - self.rules.message_ttl_s
        need_all(needed, turn.view, verifiable)
        for event in own:
            self._need_own(needed, event)
        await self._store.load_needed(needed, turn.view)
        return parts

    def _cut(self, batch: Sequence[Event], verifiable: list[Asked]) -> Cut[Event] | None:
        """What to decide now of a batch too large for one turn; `verifiable` is cut to match."""
        work = Work(self._turn.view.records.get, verifiable)
        if work.total <= TURN_WORK:
            return None
        parts = cut(batch, work)
        kept: set[int] = set()
        for event in parts.now:
            if type(event) is Commands:
                kept.update(id(inner_of(one)) for one in event.asked)
        verifiable[:] = [one for one in verifiable if id(one) in kept]
        return parts

    def _want_commands(self, wanted: Wanted, verifiable: list[Asked], event: Commands) -> None:
        """Look up the requests of a block, each with the connection on whose behalf it is made."""
        client = event.client
        if client.service is not None:
            wanted.services.add(client.service.service_id)
        event.asked = ask(client, event.items, self.undo, wanted, verifiable, event.keys)

    async def _want_own(self, wanted: Wanted, event: Event) -> None:
        match event:
            case Serve(client, again) if not client.congested:
                waiting = self._serving.get(client) or await self._waiting_of(client)
                waiting.queues += again
                self._serving[client] = waiting
                wanted.recipients.update(waiting.queues)
                wanted.notifiers.update(waiting.notifiers)
                for domain, (entity_ids, _) in waiting.walks.items():
                    named = wanted.recipients if domain is Domain.MESSAGES else wanted.notifiers
                    named.update(entity_ids)
            case Present(_, fingerprint):
                wanted.fingerprints.add(fingerprint)
            case Expire(found):
                wanted.recipients.update(recipient_id for recipient_id, _ in found)
            case ExpireNotifications(notifier_ids):
                wanted.notifiers.update(notifier_ids)
            case ExpireServices(service_ids):
                wanted.services.update(service_ids)
            case OperatorCommand():
                want_operator(wanted, event)
            case _:
                pass

    async def _waiting_of(self, client: RouterClient) -> Waiting:
        waiting = Waiting(client.waiting.first(SERVE_STEP), client.waiting_notifiers.first(SERVE_STEP))
        if client.service is not None:
            for domain, walk in client.walks.items():
                service_id = client.service.service_id
                try:
                    waiting.walks[domain] = await self._store.waiting(
                        domain, service_id, walk.start, SERVE_STEP
                    )
                except StoreFailedError as error:
                    waiting.failed[domain] = error
        return waiting

    def _need_own(self, needed: Needed, event: Event) -> None:
        match event:
            case Serve(client) if client in self._serving:
                waiting = self._serving[client]
                in_walk, _ = waiting.walks.get(Domain.MESSAGES, ((), None))
                for recipient_id in (*waiting.queues, *in_walk):
                    needed.head(recipient_id)
                in_walk, _ = waiting.walks.get(Domain.NOTIFICATIONS, ((), None))
                needed.notifications.update((*waiting.notifiers, *in_walk))
            case Expire(found):
                for recipient_id, count in found:
                    needed.head(recipient_id, count + 1)
            case ExpireNotifications(notifier_ids):
                needed.notifications.update(notifier_ids)
            case OperatorCommand():
                need_operator(needed, event, self._turn)
            case _:
                pass

    def decide(self, event: Event) -> None:
        turn = self._turn
        if type(event) is Commands:
            for item in event.asked:
                self._decide_one(turn, event.client, item)
            return
        match event:
            case Gone(client):
                self.state.disconnect(client)
            case Serve():
                self._serve(turn, event)
            case RelayAnswer(effect, response):
                relay_answered(turn, effect, response)
            case Present(role, fingerprint, chain, done, account):
                services.find_service(turn, done, role, fingerprint, chain, account)
            case Expire(found, before):
                for recipient_id, _ in found:
                    if recipient_id in turn.view.records:
                        expire_head(turn, recipient_id, before)
            case ExpireNotifications(notifier_ids, before):
                for notifier_id in notifier_ids:
                    expire_notifications(turn, notifier_id, before)
            case ExpireServices(service_ids, before, connected):
                here = connected()
                for service_id in service_ids:
                    if service_id not in here:
                        services.expire_service(turn, service_id, before)
            case OperatorCommand():
                operate(turn, event)

    def _decide_one(self, turn: Turn, client: RouterClient, item: Asked | Refused) -> None:
        """A bug in one command of a block is answered INTERNAL to that one."""
        mark = self.undo.mark()
        try:
            decisions.decide(turn, client, item, self._verifier)
        except Exception:
            decisions.log.exception("a command failed; it changed nothing")
            self.undo.rollback(mark)
            turn.count(Meter.INTERNAL_ERRORS)
            said = item.request if isinstance(item, Asked) else item
            turn.answer(client, said.corr_id, said.entity_id, ERR(Code.INTERNAL))

    def _serve(self, turn: Turn, event: Serve) -> None:
        client, again = event.client, event.again
        # Two of these events in one batch find the same page of a walk: the second one has nothing to do.
        waiting = self._serving.pop(client, None)
        if waiting is None:
            if again:
                delivery.wait_again(client, again)
                turn.serve(client)
            return
        failed = [one for one in waiting.queues if not self._handed_over(turn, client, one)]
        once, more = [one for one in failed if one not in again], [one for one in failed if one in again]
        if once:
            self._later(Serve(client, tuple(once)))
        if more:
            self._later(Serve(client, tuple(more), event.tries + 1))
        for notifier_id in waiting.notifiers:
            notifications.deliver_pending(turn, client, notifier_id)
        for domain, (entity_ids, following) in waiting.walks.items():
            services.walk_step(turn, client, domain, entity_ids, following)
        for domain, error in waiting.failed.items():
            services.walk_failed(turn, client, domain, error)
        if waiting.failed:
            self._later(Serve(client))
        else:
            turn.serve(client)

    def _handed_over(self, turn: Turn, client: RouterClient, recipient_id: bytes) -> bool:
        """Whether a waiting queue could be read; an unreadable one holds up no other."""
        mark = self.undo.mark()
        try:
            delivery.deliver_waiting(turn, client, recipient_id)
        except Exception:
            decisions.log.exception("a queue that waited failed; it is tried again")
            self.undo.rollback(mark)
            client.waiting.pop(recipient_id)
            turn.count(Meter.INTERNAL_ERRORS)
            return False
        return True

    def failed(self, event: Event) -> None:
        self.meters.add(Meter.INTERNAL_ERRORS)

    async def commit(self) -> None:
        await self._store.commit(self._turn.view.changes)

    def refuse(self, batch: Sequence[Event], error: StoreFailedError) -> None:
        """Answer every command of the batch that the store failed; the router's own events are retried."""
        self.meters.add(Meter.STORE_ERRORS)
        failure, outbox = ERR(STORE(str(error))), []
        for event in batch:
            match event:
                case Commands(client, items):
                    outbox += [Outgoing(client.client_id, i.corr_id, i.entity_id, failure) for i in items]
                case OperatorCommand():
                    contained("telling an operator", event.done, f"error: {error}")
                case Present():
                    contained("refusing a service", event.done, None)
                case _:
                    self._later(event)
        self._send(outbox)

    def release(self) -> None:
        turn = self._turn
        if turn.outbox:
            self._send(turn.outbox)
        if self.stored.is_near:
            contained("noting what left the store", left, self.stored, turn.view.changes)
        if turn.in_use and self.on_use is not None:
            contained("noting queues in use", self.on_use, turn.in_use, turn.now)
        if self.on_compare is not None:
            for compared in turn.compared:
                contained("noting a service", self.on_compare, *compared)
        for effect in turn.effects:
            contained("asking a relay", self._perform, effect)
        for operator, outcome in turn.outcomes:
            contained("telling an operator", operator, outcome)
        for asked, service_id in turn.found:
            contained("telling a service", asked, service_id)
        for client in dict.fromkeys(turn.to_serve):
            if client.has_work and not client.congested:
                self._put_own(Serve(client))
