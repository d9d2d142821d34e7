"""The router's decisions on rows in memory: no store, no sockets, no time but the test's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from blindpost.crypto.authorizers import AuthenticatorKeys, with_fingerprint
from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.crypto.verifying import OneByOne
from blindpost.engine.undo import Undo
from blindpost.router.asking import Asked, ask, need_all, verify
from blindpost.router.changes import Needed, Wanted
from blindpost.router.config import RouterRules
from blindpost.router.decisions import decide
from blindpost.router.meters import Meter, RouterMeters
from blindpost.router.model import DAY_S, Ends, Notification, QueueRecord, ServiceRecord, StoredMessage
from blindpost.router.operator import Action, OperatorCommand, need_operator, operate, want_operator
from blindpost.router.state import RouterClient, RouterState, SessionKeys
from blindpost.router.turn import Delivery, Turn
from blindpost.router.view import View
from blindpost.serving.stored import Stored
from blindpost.transport.handshake import ServiceSession
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import Command
from blindpost.wire.smp.credentials import RULES
from blindpost.wire.smp.errors import BLOCKED
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.smp.values import LinkData
from blindpost.wire.transmission import Layout
from blindpost.wire.transmissions import Refused
from tests.support.router.routers import new_key

T = TypeVar("T")
NOW = 1_700_000_000
TODAY = NOW // DAY_S * DAY_S
SERVICE_ID, PRINT = b"s" * 24, b"f" * 32
SESSION_KEY, SERVICE_KEY, OWNER_KEY = new_key(Algorithm.X25519), new_key(), new_key()
LAYOUT = Layout(b"session", session_sent=False, service_field=True)
MEMBERS = QueueSet.of([b"a", b"b"])
KNOWN = ServiceRecord(SERVICE_ID, ServiceRole.MESSAGING, PRINT, (b"cert",), TODAY, MEMBERS, MEMBERS)


def a_message(queue: bytes, number: int = 0) -> StoredMessage:
    return StoredMessage(queue + bytes([number] * 23), NOW - 9, True, b"body")


def asked(
    command: Command,
    entity_id: bytes = b"",
    key: PrivateKey | None = None,
    corr_id: bytes = b"corr",
    *,
    by_service: bool = False,
) -> Request:
    """A command as a connection says it, signed by this key and, as a service, by the service too."""
    said = Request(corr_id, entity_id, command, b"", None, corr_id + entity_id + command.TAG)
    signed = said.authorized(LAYOUT)
    if by_service and RULES[type(command)].service_signed:
        said = said._replace(service_signature=SERVICE_KEY.sign(signed))
        signed = with_fingerprint(PRINT, signed)
    return said if key is None else said._replace(authorization=key.sign(signed))


class Desk:
    """A router's memory and rows, and one turn after another; each is first rolled back once."""

    def __init__(self, *known: ServiceRecord, room: int = 1 << 30, rules: RouterRules | None = None) -> None:
        self.undo, self.meters, self.rules = Undo(), RouterMeters(), rules or RouterRules()
        self.state, self.stored = RouterState(self.undo), Stored(room, self.undo)
        self.known = {one.service_id: one for one in known}
        self.queues: dict[bytes, QueueRecord] = {}
        self.waiting: dict[bytes, int] = {}
        """How many messages a queue has."""
        self.closed: set[bytes] = set()
        """Queues that refused a message: the last of theirs is the marker."""
        self.links: dict[bytes, LinkData] = {}
        self.pending: dict[bytes, tuple[Notification, ...]] = {}
        """By notifier, what waits for it."""
        self.damaged: set[bytes] = set()
        self.clients: list[RouterClient] = []
        self.turn = self._begun()
        self.counted: dict[Meter, int] = {}
        self._numbers = itertools.count(1)

    def client(
        self,
        service_id: bytes | None = SERVICE_ID,
        *,
        role: ServiceRole = ServiceRole.MESSAGING,
        version: int = 19,
        proxy: SessionKeys | None = None,
    ) -> RouterClient:
        service = service_id and ServiceSession(role, service_id, PRINT, SERVICE_KEY.public)
        keys = AuthenticatorKeys(SESSION_KEY)
        number = next(self._numbers)
        made = RouterClient(number, version, LAYOUT, keys, self.undo, service or None, proxy)
        made.account = b"a%03d" % number
        self.clients.append(made)
        return made

    def queue(
        self, name: bytes, messages: int = 1, service_id: bytes | None = SERVICE_ID, **fields: Any
    ) -> QueueRecord:
        made = QueueRecord(
            name, name + b"s", (OWNER_KEY.public,), None, Secret(bytes(32)), None, None, service_id=service_id
        )
        self.queues[name], self.waiting[name] = made._replace(**{"updated_day": TODAY, **fields}), messages
        return self.queues[name]

    def say(self, client: RouterClient, *items: Request | Refused) -> list[Any]:
        """Decide one block from no more rows than its commands ask for; what is answered to it."""

        def decision(turn: Turn) -> None:
            wanted, needed, verifiable = Wanted(), Needed(), list[Asked]()
            block = ask(client, items, self.undo, wanted, verifiable)
            self._load(wanted, turn.view)
            verify(turn.view, OneByOne(), verifiable)
            if self.rules.expire_on_send and self.rules.message_ttl_s is not None:
                needed.expire_before = turn.now - self.rules.message_ttl_s
            need_all(needed, turn.view, verifiable)
            self._load_needed(needed, turn.view)
            for item in block:
                decide(turn, client, item, OneByOne())

        self.decide(decision, self._empty)
        return [one.response for one in self.turn.outbox if one.corr_id and one.client_id == client.client_id]

    def operate(self, action: Action, entity_id: bytes, blocked: BLOCKED | None = None) -> str:
        """Decide an operator's command from no more rows than it asks for; what the operator is told."""
        command = OperatorCommand(action, entity_id, print, blocked)

        def decision(turn: Turn) -> None:
            wanted, needed = Wanted(), Needed()
            want_operator(wanted, command)
            self._load(wanted, turn.view)
            need_operator(needed, command, turn)
            self._load_needed(needed, turn.view)
            operate(turn, command)

        self.decide(decision, self._empty)
        ((done, outcome),) = self.turn.outcomes
        assert done is print
        return outcome

    def events(self, client: RouterClient) -> list[tuple[bytes, Any]]:
        """What a connection gets unasked, in order; of a delivery the message."""
        return [
            (one.entity_id, one.response.message if isinstance(one.response, Delivery) else one.response)
            for one in self.turn.outbox
            if not one.corr_id and one.client_id == client.client_id
        ]

    def decide(self, decision: Callable[[Turn], T], begun: Callable[[], Turn] | None = None) -> T:
        begin = begun or self._begun
        first, before_it, before = begin(), self._held(), self.meters.counts
        decision(first)
        self.undo.rollback()
        assert self._held() == before_it
        left = (first.outbox, first.found, first.compared, first.to_serve, first.in_use, first.view.changes)
        assert left == ([], [], [], [], [], [])
        assert (first.effects, first.outcomes, self.meters.counts) == ([], [], before)
        self.turn = begin()
        answer = decision(self.turn)
        self.undo.forget()
        self.counted = {meter: by for meter, n in before.items() if (by := self.meters[meter] - n)}
        self.known = dict(self.turn.view.services.items())
        return answer

    @property
    def sent(self) -> list[tuple[int, bytes, Any]]:
        return [(one.client_id, one.entity_id, one.response) for one in self.turn.outbox]

    def _held(self) -> list[Any]:
        """What is in memory about all connections."""
        registries = [self.state.queues, self.state.notifiers, *self.state._by_service.values()]
        tables = [registry._holders for registry in registries] + [
            table
            for one in self.clients
            for table in (
                one.subs,
                one.waiting,
                one.service_subs,
                one.walks,
                one.notifier_ids,
                one.waiting_notifiers,
            )
        ]
        return [*(dict(table.items()) for table in tables), self.stored.largest()]

    def _empty(self) -> Turn:
        """A turn that has loaded the services and nothing else."""
        view, draws = View(self.undo), itertools.count(1)
        for service_id, one in self.known.items():
            view.services.fill(service_id, one)
            view.fingerprints.fill(one.fingerprint, service_id)
        return Turn(
            self.state,
            self.rules,
            self.meters,
            lambda size: next(draws).to_bytes(size, "big"),
            NOW,
            view,
            self.stored,
        )

    def _begun(self) -> Turn:
        """A turn that has loaded everything."""
        turn, every = self._empty(), Wanted()
        every.recipients.update(self.queues)
        every.senders.update(one.sender_id for one in self.queues.values())
        every.links.update(self.links)
        every.notifiers.update(one.notifier.notifier_id for one in self.queues.values() if one.notifier)
        self._load(every, turn.view)
        needed = Needed(set(self.queues), dict(self.waiting), link_data=set(self.links))
        needed.notifications.update(self.pending)
        self._load_needed(needed, turn.view)
        turn.view.damaged |= self.damaged
        return turn

    def _load(self, wanted: Wanted, view: View) -> None:
        looked_for = wanted.recipients | wanted.senders | wanted.notifiers | wanted.links
        assert all(isinstance(one, bytes) for one in looked_for), "no store can look for anything else"
        for name, record in self.queues.items():
            notifier_id = None if record.notifier is None else record.notifier.notifier_id
            ids = (record.sender_id, notifier_id, record.link_id)
            found = False
            for one, named, table in zip(
                ids,
                (wanted.senders, wanted.notifiers, wanted.links),
                (view.senders, view.notifiers, view.links),
                strict=True,
            ):
                if one is not None and one in named:
                    table.fill(one, name)
                    found = True
            if found or name in wanted.recipients:
                if name in self.damaged:
                    view.damaged.add(name)
                else:
                    view.records.fill(name, record)

    def _load_needed(self, needed: Needed, view: View) -> None:
        for name in needed.ends & self.queues.keys():
            count, is_closed = self.waiting[name], name in self.closed
            view.fill_ends(name, Ends(0, count, not is_closed))
            known = count if name in needed.expire else needed.messages.get(name, 0)
            for number in range(min(count, known)):
                message = a_message(name, number)
                if is_closed and number == count - 1:
                    message = message._replace(body=None, notify=False)
                view.fill_message(name, number, message)
        for link_id in needed.link_data & self.links.keys():
            view.link_data.fill(link_id, self.links[link_id])
        for notifier_id in needed.notifications:
            view.fill_pending(notifier_id, self.pending.get(notifier_id, ()))
