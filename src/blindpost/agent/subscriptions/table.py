"""Which queues of one session are subscribed, and which are to be: pending and active, without any I/O.

The session id decides whether a reply still means anything: what an older session was told is not true of
a newer one. Queues of a service are not listed at all; the service has a count and a hash of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from itertools import islice

from blindpost.crypto.ids_hash import QueueSet
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value


@dataclass(frozen=True, slots=True, repr=False)
class ServiceSub(Value):
    """A service and its queues, as one side sees them."""

    service_id: bytes
    queues: QueueSet


class Mismatch(Enum):
    """How the router's view of a service differs from ours: the first of these that does."""

    SERVICE_ID = "service id"
    COUNT = "count"
    IDS_HASH = "ids hash"


def mismatch(expected: ServiceSub, actual: ServiceSub) -> Mismatch | None:
    if expected.service_id != actual.service_id:
        return Mismatch.SERVICE_ID
    if expected.queues.count != actual.queues.count:
        return Mismatch.COUNT
    if expected.queues.ids_hash != actual.queues.ids_hash:
        return Mismatch.IDS_HASH
    return None


class QueueState(Enum):
    """What the table says about one queue."""

    PENDING = "pending"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True, repr=False)
class Lost(Value):
    """What a session that ended was subscribed to."""

    conn_ids: tuple[str, ...]
    service: ServiceSub | None


class SessionTable:
    """The subscriptions of one session, by recipient id, with the connection each belongs to."""

    def __init__(self) -> None:
        self.session_id: bytes | None = None
        self.active_service: ServiceSub | None = None
        self.pending_service: ServiceSub | None = None
        self._active: dict[bytes, str] = {}
        self._pending: dict[bytes, str] = {}
        self._up: Counter[str] = Counter()

    # What is there

    def state(self, rcv_id: bytes) -> QueueState | None:
        if rcv_id in self._active:
            return QueueState.ACTIVE
        return QueueState.PENDING if rcv_id in self._pending else None

    def is_active(self, rcv_id: bytes) -> bool:
        return rcv_id in self._active

    @property
    def active_count(self) -> int:
        return len(self._active)

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending) or self.pending_service is not None

    @property
    def is_empty(self) -> bool:
        return not (self._active or self.has_pending or self.active_service)

    def pending(self, limit: int, besides: frozenset[bytes] = frozenset()) -> list[tuple[bytes, str]]:
        """Some pending queues with their connections, those first that wait longest."""
        waiting = (item for item in self._pending.items() if item[0] not in besides)
        return list(islice(waiting, limit))

    def conn_of(self, rcv_id: bytes) -> str | None:
        return self._active.get(rcv_id) or self._pending.get(rcv_id)

    # The session

    def connected(self, session_id: bytes) -> None:
        """From now on only replies of the session count."""
        if self.session_id is not None and self.session_id != session_id:
            self._demote()
        self.session_id = session_id

    def disconnected(self, session_id: bytes) -> Lost | None:
        """The session ended: all it had is pending again. None if another one has taken its place."""
        if self.session_id != session_id:
            return None
        lost = Lost(tuple(self._up), self.active_service)
        self._demote()
        self.session_id = None
        return lost

    def _demote(self) -> None:
        self._pending.update(self._active)
        self._active.clear()
        self._up.clear()
        if self.active_service is not None:
            self.pending_service, self.active_service = self.active_service, None

    # Queues

    def ask(self, queues: Iterable[tuple[bytes, str]]) -> None:
        """These are to be subscribed, as far as they are not."""
        for rcv_id, conn_id in queues:
            if rcv_id not in self._active:
                self._pending[rcv_id] = conn_id

    def subscribed(
        self, session_id: bytes, queues: Iterable[tuple[bytes, str, bytes | None]]
    ) -> tuple[str, ...]:
        """The router said yes to these, to each with its service if it counts it there.

        The connections that nothing was subscribed of before. A reply for a queue that is not pending, or
        of another session, changes nothing.
        """
        if session_id != self.session_id:
            return ()
        risen: dict[str, None] = {}
        for rcv_id, conn_id, service_id in queues:
            if rcv_id in self._pending:
                if conn_id not in self._up:
                    risen[conn_id] = None
                self._add(rcv_id, conn_id, service_id)
        return tuple(risen)

    def created(self, session_id: bytes, rcv_id: bytes, conn_id: str, service_id: bytes | None) -> bool:
        """A queue that was made on a session is subscribed there; on another one it is pending."""
        if session_id != self.session_id:
            self._pending[rcv_id] = conn_id
            return False
        self._add(rcv_id, conn_id, service_id)
        return True

    def _add(self, rcv_id: bytes, conn_id: str, service_id: bytes | None) -> None:
        self._pending.pop(rcv_id, None)
        if service_id is None:
            if rcv_id not in self._active:
                self._up[conn_id] += 1
            self._active[rcv_id] = conn_id
            return
        self._drop_active(rcv_id)
        one = QueueSet.of((rcv_id,))
        held = self.active_service
        counted = held.queues if held is not None and held.service_id == service_id else QueueSet()
        self.active_service = ServiceSub(service_id, counted + one)

    def remove(self, rcv_id: bytes) -> None:
        """Nobody wants this queue any more, or nobody can have it."""
        self._pending.pop(rcv_id, None)
        self._drop_active(rcv_id)

    def _drop_active(self, rcv_id: bytes) -> None:
        conn_id = self._active.pop(rcv_id, None)
        if conn_id is not None:
            self._up[conn_id] -= 1
            if not self._up[conn_id]:
                del self._up[conn_id]

    # The service

    def ask_service(self, expected: ServiceSub) -> None:
        """The service is to be subscribed; before anything is sent."""
        self.pending_service = expected

    def service_subscribed(self, session_id: bytes, actual: ServiceSub) -> bool:
        """The router said what it has. On another session it stays to be subscribed."""
        if session_id != self.session_id:
            self.pending_service = actual
            return False
        self.active_service, self.pending_service = actual, None
        return True

    def service_left(self, rcv_id: bytes) -> None:
        """The router does not count this queue for the service any more."""
        held = self.active_service
        if held is not None:
            self.active_service = ServiceSub(held.service_id, held.queues - QueueSet.of((rcv_id,)))

    def service_ended(self) -> ServiceSub | None:
        """The service is not ours any more; what it was."""
        ended = self.active_service or self.pending_service
        self.active_service = self.pending_service = None
        return ended
