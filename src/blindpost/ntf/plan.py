"""What the notification router does in each step of the engine's turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blindpost.crypto.authorizers import Verifier
from blindpost.crypto.entropy import Entropy
from blindpost.engine.containment import contained
from blindpost.engine.events import AnyCommands, Gone
from blindpost.engine.loop import StoreFailedError
from blindpost.engine.undo import Undo
from blindpost.ntf import ledger, outcomes, pushes, subscriptions, tokens
from blindpost.ntf.activity import Activity
from blindpost.ntf.authority import Asked, is_allowed, token_of, verify, want
from blindpost.ntf.lab import NtfLab
from blindpost.ntf.meters import Meter, NtfMeters
from blindpost.ntf.model import NtfRules, PushKind
from blindpost.ntf.ports import (
    AssociatedChanged,
    NmsgReceived,
    PushOutcome,
    ServiceKnown,
    ServiceMade,
    ServiceUnavailable,
    SubscriberEvent,
    SubscriptionsChanged,
)
from blindpost.ntf.state import Client, NtfState
from blindpost.ntf.tables import NtfStore
from blindpost.ntf.turn import Effect, Happened, Outgoing, Push, Turn
from blindpost.ntf.view import Needed, View, Wanted
from blindpost.wire.addresses import Server
from blindpost.wire.ntf.commands import PING, SCHK, SDEL, SNEW, TCHK, TCRN, TDEL, TNEW, TRPL, TVFY
from blindpost.wire.ntf.responses import ERR, PONG, Response
from blindpost.wire.ntf.transmissions import Request
from blindpost.wire.smp.errors import STORE, Code
from blindpost.wire.transmissions import Refused

log = logging.getLogger(__name__)


class Commands(AnyCommands[Client, Request | Refused, Asked | Refused]):
    """The commands of one block."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Told:
    """What the subscriber learned; `durable` is set once it is stored."""

    events: Sequence[SubscriberEvent]
    durable: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class PushDone:
    """A provider answered, or could not be asked."""

    push: Push
    outcome: PushOutcome


@dataclass(frozen=True, slots=True)
class PushAgain:
    """The pause before repeating a push has ended."""

    token_id: bytes
    kind: PushKind
    job: int


@dataclass(frozen=True, slots=True)
class Due:
    """The store has something to push to these tokens."""

    token_ids: Sequence[bytes]
    kind: PushKind


@dataclass(frozen=True, slots=True)
class Aged:
    """Notifications of these tokens waited long."""

    token_ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Unverified:
    """These tokens were registered long ago and not verified."""

    token_ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Unused:
    """A scan found that nothing is subscribed at these message routers."""

    servers: Sequence[Server]


Event = Commands | Gone[Client] | Told | PushDone | PushAgain | Due | Aged | Unverified | Unused


@dataclass(frozen=True, slots=True)
class Shell:
    """What the plan asks of the world around it."""

    now: Callable[[], float]
    send: Callable[[Sequence[Outgoing]], None]
    perform: Callable[[Effect], None]
    push: Callable[[Push], None]
    later: Callable[[float, Event], None]


RETRY_S = 1.0
"""The pause before retrying the router's own work after the store refused it."""


class NtfPlan:
    """The notification router's side of the engine."""

    def __init__(
        self, store: NtfStore, rules: NtfRules, verifier: Verifier, entropy: Entropy, shell: Shell
    ) -> None:
        self.undo = Undo()
        self.state = NtfState(self.undo)
        self.meters = NtfMeters()
        self.lab: NtfLab | None = None
        """Hears what happens to notifications of the operator's own devices."""
        self.active_tokens, self.active_queues = Activity(entropy), Activity(entropy)
        self.rules = rules
        self._store = store
        self._verifier = verifier
        self._entropy = entropy
        self._shell = shell
        self._durable: list[asyncio.Future[None]] = []
        self._turn = self._new_turn()

    def _new_turn(self) -> Turn:
        received = self._store.received
        own_devices = () if self.lab is None else self.lab.devices
        now = self._shell.now()
        return Turn(self.state, self.rules, self.meters, self._entropy, now, received, own_devices)

    # --- prepare

    async def prepare(self, batch: Sequence[Event]) -> None:
        turn = self._turn = self._new_turn()
        self._durable.clear()
        wanted, requests = Wanted(), []
        for event in batch:
            if isinstance(event, Commands):
                event.asked = [
                    item if isinstance(item, Refused) else Asked(event.client, item) for item in event.items
                ]
                for asked in event.asked:
                    if isinstance(asked, Asked):
                        requests.append(asked)
                        want(wanted, asked.request)
            else:
                _want_own(wanted, event)
        await self._store.load(wanted, turn.view)
        verify(turn.view, self._verifier, requests)
        needed = Needed()
        for asked in requests:
            if asked.is_signed:
                _need(needed, turn.view, asked.request)
        for event in batch:
            _need_own(needed, turn.view, event)
        await self._store.load_needed(needed, turn.view)

    # --- decide

    def decide(self, event: Event) -> None:
        turn = self._turn
        match event:
            case Commands():
                self._decide_block(turn, event.client, event.asked)
            case Gone():
                pass
            case Told(events, durable):
                for told in events:
                    _decide_told(turn, told)
                self._durable.append(durable)
                self.undo.add((self._durable.pop,))
            case PushDone(push, outcome):
                outcomes.done(turn, push, outcome)
            case PushAgain(token_id, kind, job):
                pushes.again(turn, token_id, kind, job)
            case Due(token_ids, kind):
                for token_id in token_ids:
                    token = turn.view.tokens.get(token_id)
                    if token is not None:
                        pushes.ensure(turn, token, kind)
            case Aged(token_ids):
                for token_id in token_ids:
                    ledger.expire(turn, token_id)
                    token = turn.view.tokens.get(token_id)
                    if token is not None:
                        pushes.review(turn, token)
            case Unverified(token_ids):
                for token_id in token_ids:
                    token = turn.view.tokens.get(token_id)
                    if token is not None:
                        tokens.remove_unverified(turn, token)

            case Unused(servers):
                subscriptions.forget_unused(turn, servers)
                self.state.rates.forget(turn.now)

    def _decide_block(self, turn: Turn, client: Client, asked: Sequence[Asked | Refused]) -> None:
        """Refusals are answered first, then the rest in order."""
        turn.count(Meter.COMMANDS, len(asked))
        allowed = []
        for one in asked:
            if isinstance(one, Refused):
                turn.answer(client, one.corr_id, one.entity_id, ERR(one.error))
                continue
            request = one.request
            if one.is_signed and is_allowed(turn.view, request):
                allowed.append(request)
            else:
                turn.count(Meter.REFUSED_AUTH)
                turn.answer(client, request.corr_id, request.entity_id, tokens.AUTH)
        for request in allowed:
            self._decide_one(turn, client, request)

    def _decide_one(self, turn: Turn, client: Client, request: Request) -> None:
        """A bug in one command of a block is answered INTERNAL to that one."""
        mark = self.undo.mark()
        try:
            response = _decide_request(turn, client, request)
        except Exception:
            log.exception("a command failed; it changed nothing")
            self.undo.rollback(mark)
            turn.count(Meter.INTERNAL_ERRORS)
            response = ERR(Code.INTERNAL)
        turn.answer(client, request.corr_id, request.entity_id, response)

    # --- commit, release, refuse

    def failed(self, event: Event) -> None:
        self.meters.add(Meter.INTERNAL_ERRORS)
        if isinstance(event, Commands):
            self._shell.send(_errors(event, ERR(Code.INTERNAL)))
        elif isinstance(event, Told):
            _fail(event.durable, StoreFailedError("deciding failed"))
        elif isinstance(event, PushDone):
            self.state.jobs.pop((event.push.token_id, event.push.kind))

    async def commit(self) -> None:
        await self._store.commit(self._turn.view)

    def refuse(self, batch: Sequence[Event], error: StoreFailedError) -> None:
        """Answer every command that the store failed; the subscriber is told too, and retries."""
        self.meters.add(Meter.STORE_ERRORS)
        for event in batch:
            match event:
                case Commands():
                    self._shell.send(_errors(event, ERR(STORE("not stored"))))
                case Told(_, durable):
                    _fail(durable, error)
                case PushDone() | PushAgain() | Gone():
                    self._shell.later(RETRY_S, event)
                case Due() | Aged() | Unverified() | Unused():
                    pass  # they are found again

    def release(self) -> None:
        turn, shell = self._turn, self._shell
        if turn.outbox:
            shell.send(turn.outbox)
        for effect in turn.effects:
            contained("an effect", shell.perform, effect)
        for _, push in turn.pushes.items():
            if push.waiting:
                for carrier in push.waiting:
                    self.meters.funnel["pushed", "", carrier.value] += 1
                if turn.is_own(turn.view.tokens.get(push.token_id)):
                    waiting = (turn.view.notifications.get(carried[0]) for carried in push.carried)
                    turn.happened += [Happened.to(one, "pushed") for one in waiting if one and one.is_waiting]
                self.active_tokens.note(push.token_id, turn.now)
            contained("a push", shell.push, push)
        for subscription_id in turn.notified:
            self.active_queues.note(subscription_id, turn.now)
        if turn.happened and self.lab is not None:
            contained("noting what happened", self.lab.note, turn.now, turn.happened)
        for durable in self._durable:
            if not durable.done():
                durable.set_result(None)


def _fail(durable: asyncio.Future[None], error: StoreFailedError) -> None:
    if not durable.done():
        durable.set_exception(error)


def _errors(event: Commands, response: Response) -> list[Outgoing]:
    return [
        Outgoing(event.client.client_id, item.corr_id, item.entity_id, response)
        if isinstance(item, Request)
        else Outgoing(event.client.client_id, item.corr_id, item.entity_id, ERR(item.error))
        for item in event.items
    ]


def _decide_request(turn: Turn, client: Client, request: Request) -> Response:
    """The answer to a request that is authorized. An earlier request may have removed its subject."""
    command = request.command
    if isinstance(command, PING):
        return PONG()
    if isinstance(command, TNEW):
        return tokens.register(turn, client, command)
    token = token_of(turn.view, request)
    if token is None or not is_allowed(turn.view, request):
        return tokens.AUTH
    match command:
        case TVFY():
            return tokens.verify(turn, token, command)
        case TCHK():
            return tokens.check(turn, token)
        case TRPL():
            return tokens.replace_device(turn, client, token, command)
        case TDEL():
            return tokens.remove(turn, token)
        case TCRN():
            return tokens.set_period(turn, token, command)
        case SNEW():
            return subscriptions.subscribe(turn, token, command)
        case SCHK() | SDEL():
            subscription = turn.view.subscriptions.get(request.entity_id)
            assert subscription is not None, "it led to its token"
            if isinstance(command, SCHK):
                return subscriptions.check(subscription)
            return subscriptions.unsubscribe(turn, subscription)


def _decide_told(turn: Turn, event: SubscriberEvent) -> None:
    match event:
        case NmsgReceived():
            subscriptions.notified(turn, event)
        case SubscriptionsChanged():
            subscriptions.changed(turn, event)
        case AssociatedChanged():
            subscriptions.changed_together(turn, event)
        case ServiceMade():
            subscriptions.service_made(turn, event)
        case ServiceKnown():
            subscriptions.service_known(turn, event)
        case ServiceUnavailable():
            subscriptions.service_unavailable(turn, event)


def _want_own(wanted: Wanted, event: Event) -> None:
    match event:
        case Told(events):
            for told in events:
                match told:
                    case NmsgReceived(server, notifier_id):
                        wanted.queues.add((server, notifier_id))
                    case SubscriptionsChanged(server, notifier_ids):
                        wanted.queues.update((server, notifier_id) for notifier_id in notifier_ids)
                    case _:
                        wanted.routers.add(told.server)
        case PushDone(push):
            wanted.tokens.add(push.token_id)
        case PushAgain(token_id):
            wanted.tokens.add(token_id)
        case Due(token_ids) | Aged(token_ids) | Unverified(token_ids):
            wanted.tokens.update(token_ids)
        case _:
            pass


def _need(needed: Needed, view: View, request: Request) -> None:
    """What an authorized request may reach besides its token."""
    token = token_of(view, request)
    if token is None:
        return
    match request.command:
        case TRPL(device):
            needed.registrations.add((device, token.verify_key))
        case TVFY():
            needed.rivals.add(token.device)
            needed.notifications.add(token.token_id)
        case TDEL():
            needed.owned.add(token.token_id)
        case SDEL():
            needed.notifications.add(token.token_id)
        case SNEW():
            needed.counted.add(token.token_id)
        case _:
            pass


def _need_own(needed: Needed, view: View, event: Event) -> None:
    match event:
        case Told(events):
            for told in events:
                if isinstance(told, NmsgReceived):
                    subscription = view.of_queue(told.server, told.notifier_id)
                    if subscription is not None:
                        needed.notifications.add(subscription.token_id)
        case PushDone(push):
            needed.notifications.add(push.token_id)
        case PushAgain(token_id):
            needed.notifications.add(token_id)
        case Due(token_ids, PushKind.MESSAGE) | Aged(token_ids):
            needed.notifications.update(token_ids)
        case Unverified(token_ids):
            needed.owned.update(token_ids)
        case _:
            pass
