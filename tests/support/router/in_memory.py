"""The router's decisions about services on rows in memory: no store, no sockets, no time but the test's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from blindpost.crypto.authorizers import AuthenticatorKeys
from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.secret import Secret
from blindpost.engine.undo import Undo
from blindpost.router.config import RouterRules
from blindpost.router.meters import Meter, RouterMeters
from blindpost.router.model import DAY_S, Ends, QueueRecord, ServiceRecord, StoredMessage
from blindpost.router.state import RouterClient, RouterState
from blindpost.router.turn import Turn
from blindpost.router.view import View
from blindpost.serving.stored import Stored
from blindpost.transport.handshake import ServiceSession
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.transmission import Layout
from tests.support.router.routers import new_key

T = TypeVar("T")
NOW = 1_700_000_000
TODAY = NOW // DAY_S * DAY_S
SERVICE_ID, PRINT = b"s" * 24, b"f" * 32
SESSION_KEY = new_key(Algorithm.X25519)
MEMBERS = QueueSet.of([b"a", b"b"])
KNOWN = ServiceRecord(SERVICE_ID, ServiceRole.MESSAGING, PRINT, (b"cert",), TODAY, MEMBERS, MEMBERS)


def a_message(queue: bytes, number: int = 0) -> StoredMessage:
    return StoredMessage(queue + bytes([number] * 23), NOW - 9, True, b"body")


class ServiceDesk:
    """A router's memory and rows, and one turn after another; each is first rolled back once."""

    def __init__(self, *known: ServiceRecord, room: int = 1 << 30) -> None:
        self.undo, self.meters = Undo(), RouterMeters()
        self.state, self.stored = RouterState(self.undo), Stored(room, self.undo)
        self.known = {one.service_id: one for one in known}
        self.queues: dict[bytes, QueueRecord] = {}
        self.waiting: dict[bytes, int] = {}
        """How many messages a queue has."""
        self.damaged: set[bytes] = set()
        self.clients: list[RouterClient] = []
        self.turn = self._begun()
        self.counted: dict[Meter, int] = {}
        self._numbers = itertools.count(1)

    def client(self, service_id: bytes | None = SERVICE_ID) -> RouterClient:
        key = SESSION_KEY.public
        service = service_id and ServiceSession(ServiceRole.MESSAGING, service_id, PRINT, key)
        layout = Layout(b"", session_sent=False, service_field=True)
        keys = AuthenticatorKeys(SESSION_KEY)
        made = RouterClient(next(self._numbers), 19, layout, keys, self.undo, service or None)
        self.clients.append(made)
        return made

    def queue(self, name: bytes, messages: int = 1, service_id: bytes | None = SERVICE_ID) -> QueueRecord:
        made = QueueRecord(name, name + b"s", (), None, Secret(bytes(32)), None, None, service_id=service_id)
        self.queues[name], self.waiting[name] = made, messages
        return made

    def decide(self, decision: Callable[[Turn], T]) -> T:
        first, before_it = self._begun(), self._held()
        decision(first)
        self.undo.rollback()
        assert self._held() == before_it
        left = (first.outbox, first.found, first.compared, first.to_serve, first.in_use, first.view.changes)
        assert left == ([], [], [], [], [], [])
        before = self.meters.counts
        self.turn = self._begun()
        answer = decision(self.turn)
        self.undo.forget()
        self.counted = {meter: by for meter, n in before.items() if (by := self.meters[meter] - n)}
        self.known = dict(self.turn.view.services.items())
        return answer

    @property
    def sent(self) -> list[tuple[int, bytes, Any]]:
        return [(one.client_id, one.entity_id, one.response) for one in self.turn.outbox]

    def _held(self) -> list[dict[Any, Any]]:
        """What is in memory about all connections."""
        return [
            dict(table.items())
            for one in self.clients
            for table in (one.subs, one.waiting, one.service_subs, one.walks)
        ]

    def _begun(self) -> Turn:
        view = View(self.undo)
        for service_id, one in self.known.items():
            view.services.fill(service_id, one)
            view.fingerprints.fill(one.fingerprint, service_id)
        for name, record in self.queues.items():
            view.records.fill(name, record)
            view.fill_ends(name, Ends(0, self.waiting[name]))
            for number in range(self.waiting[name]):
                view.fill_message(name, number, a_message(name, number))
        view.damaged |= self.damaged
        return Turn(self.state, RouterRules(), self.meters, bytes, NOW, view, self.stored)
