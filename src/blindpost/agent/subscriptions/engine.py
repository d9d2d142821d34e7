"""All subscriptions of an agent: what to subscribe, what sessions tell of it, what the application hears."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from blindpost.agent.errors import network_error
from blindpost.agent.events import (
    AgentFailed,
    HostConnected,
    HostDisconnected,
    ServiceAll,
    ServiceDown,
    ServiceEnd,
)
from blindpost.agent.model import RcvQueue
from blindpost.agent.routers.sessions import (
    ELSEWHERE,
    Receive,
    Session,
    SessionKey,
    SessionMode,
    SessionOptions,
    Sessions,
    SmpEvent,
)
from blindpost.agent.store import subscriptions as rows
from blindpost.agent.store.database import AgentStore
from blindpost.agent.store.queues import find_rcv
from blindpost.agent.subscriptions.batches import Sweep
from blindpost.agent.subscriptions.options import SubscriptionOptions
from blindpost.agent.subscriptions.ports import Context, MadeQueue, QueueRef, Reports
from blindpost.agent.subscriptions.services import Reconciled, Services
from blindpost.agent.subscriptions.table import QueueState, ServiceSub
from blindpost.agent.subscriptions.work import SessionWork
from blindpost.agent.work.retries import Retry
from blindpost.client.calls import Failure, Late, Push
from blindpost.client.errors import CredentialsError, RefusedError
from blindpost.crypto.credentials import Credentials
from blindpost.crypto.ids_hash import QueueSet
from blindpost.engine.loop import StoreFailedError
from blindpost.transport.errors import ClosedError, TransportError
from blindpost.wire.addresses import Server
from blindpost.wire.frozen import dataclass
from blindpost.wire.smp.commands import SUB
from blindpost.wire.smp.errors import PROHIBITED
from blindpost.wire.smp.responses import ALLS, DELD, END, ENDS, ERR

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Ref:
    conn_id: str
    user_id: int
    server: Server
    rcv_id: bytes


class ServiceModeError(ValueError):
    """A service needs one session for all of its queues."""

    def __init__(self) -> None:
        super().__init__("a user cannot be a service while each connection has a session of its own")


class Subscriptions:
    """Subscribes, keeps subscribed, and tells; the sessions are made here too."""

    def __init__(
        self,
        store: AgentStore,
        receive: Receive,
        reports: Reports,
        session_options: SessionOptions | None = None,
        options: SubscriptionOptions | None = None,
        *,
        has_service: Callable[[int], bool] = lambda _: False,
        raised: Callable[[Server, Failure], Exception] = network_error,
        chance: random.Random | None = None,
    ) -> None:
        self.sessions = Sessions(receive, self, session_options, durable=store.durable, raised=raised)
        client = self.sessions.options.client
        self.services = Services(store, has_service, client.now, client.entropy)
        self._context = Context(
            store,
            self.sessions,
            self.services,
            reports,
            options or SubscriptionOptions(),
            chance or random.SystemRandom(),
        )
        self._store = store
        self._reports = reports
        self._works: dict[SessionKey, SessionWork] = {}
        self._connected_at: dict[int, float] = {}
        self._online = True
        self._renewals: asyncio.Task[None] | None = None

    def work(self, key: SessionKey) -> SessionWork:
        """What there is to do for one session."""
        found = self._works.get(key)
        if found is None:
            found = self._works[key] = SessionWork(self._context, key)
            if not self._online:
                found.online.clear()
        return found

    async def close(self) -> None:
        if self._renewals is not None:
            self._renewals.cancel()
        for work in tuple(self._works.values()):
            await work.close()
        await self.sessions.close()

    # Subscribing

    async def subscribe(self, queues: Iterable[QueueRef]) -> dict[bytes, Failure | None]:
        """Subscribe these queues, all sessions side by side; for each by its recipient id, why not.

        Those that failed temporarily are retried automatically.
        """
        by_key: dict[SessionKey, list[tuple[bytes, str]]] = defaultdict(list)
        results: dict[bytes, Failure | None] = {}
        for queue in queues:
            key = self._key(queue)
            if queue.rcv_id in self.work(key).get_locked:
                results[queue.rcv_id] = CredentialsError(PROHIBITED)
            else:
                by_key[key].append((queue.rcv_id, queue.conn_id))
        at_once = asyncio.Semaphore(self._context.options.sessions_at_once)

        async def one(key: SessionKey, wanted: Sequence[tuple[bytes, str]]) -> None:
            async with at_once:
                results.update(await self._subscribe_session(self.work(key), wanted))

        await asyncio.gather(*(one(key, wanted) for key, wanted in by_key.items()))
        return results

    def _key(self, queue: QueueRef) -> SessionKey:
        return self.sessions.key(queue.user_id, queue.server, queue.conn_id)

    async def _subscribe_session(
        self, work: SessionWork, wanted: Sequence[tuple[bytes, str]]
    ) -> dict[bytes, Failure | None]:
        """The queues of one session: pending before anything is sent."""
        key = work.key
        results: dict[bytes, Failure | None] = {
            rcv_id: None for rcv_id, _ in wanted if work.table.is_active(rcv_id)
        }
        missing = [(rcv_id, conn_id) for rcv_id, conn_id in wanted if rcv_id not in results]
        work.table.ask(missing)
        try:
            session = await self.sessions.session(key)
            if not await work.service_first(session):
                raise ClosedError
        except TransportError as failure:
            work.start()
            return results | {rcv_id: failure for rcv_id, _ in missing}
        size = self._context.options.page
        for start in range(0, len(missing), size):
            rcv_ids = [rcv_id for rcv_id, _ in missing[start : start + size]]
            queues = rows.named(self._store.reading, key.user_id, key.server, rcv_ids)
            served = work.table.active_service is not None
            covered = {q.rcv_id for q in queues if q.associated and served}
            for rcv_id in set(rcv_ids).difference(q.rcv_id for q in queues) | covered:
                work.table.remove(rcv_id)
            done = await work.subscribe_on(session, [q for q in queues if q.rcv_id not in covered])
            results.update(dict.fromkeys(rcv_ids))
            if done is None:
                results.update({rcv_id: ClosedError() for rcv_id in rcv_ids if rcv_id not in covered})
            else:
                results.update({q.rcv_id: failure for q, failure in done.refused + done.retried})
        return results

    async def subscribe_all(self, *, needed_only: bool = False, active_user: int | None = None) -> None:
        """Everything in the store, the active user's first; returns when each router was tried once.

        Services are subscribed by one command each; queues of no service in pages, so that it does not
        matter how many there are.
        """
        self.services.forget_unwanted()
        db = self._store.reading
        places = dict.fromkeys(rows.servers_with_queues(db, needed_only=needed_only))
        places |= dict.fromkeys(rows.servers_with_service(db))
        ordered = sorted(places, key=lambda place: place[0] != active_user)
        at_once = asyncio.Semaphore(self._context.options.sessions_at_once)

        async def one(user_id: int, server: Server) -> None:
            async with at_once:
                await self._subscribe_place(user_id, server, needed_only=needed_only)

        if self._renewals is None:
            self._renewals = asyncio.get_running_loop().create_task(self._renew_in_time())
        await asyncio.gather(*(one(user_id, server) for user_id, server in ordered))

    async def _subscribe_place(self, user_id: int, server: Server, *, needed_only: bool) -> None:
        self._ask_service(user_id, server)
        if self.sessions.options.mode is SessionMode.ENTITY:
            await self._subscribe_entities(user_id, server, needed_only=needed_only)
            return
        work = self.work(self.sessions.key(user_id, server))
        work.sweep = Sweep(needed_only=needed_only)
        await work.round()
        work.start()

    def _ask_service(self, user_id: int, server: Server) -> None:
        """The service is to be subscribed, if the user is one and it is not."""
        if not self.services.has_service(user_id):
            return
        if self.sessions.options.mode is SessionMode.ENTITY:
            raise ServiceModeError
        work = self.work(self.sessions.key(user_id, server))
        if work.table.active_service is None:
            expected = self.services.expected(user_id, server)
            work.table.ask_service(expected or ServiceSub(b"", QueueSet()))

    async def _subscribe_entities(self, user_id: int, server: Server, *, needed_only: bool) -> None:
        after, size = b"", self._context.options.page
        while page := rows.page(
            self._store.reading, user_id, server, after, size, associated=False, needed_only=needed_only
        ):
            await self.subscribe([_Ref(queue.conn_id, user_id, server, queue.rcv_id) for queue in page])
            after = page[-1].rcv_id

    def created(self, session: Session, queue: MadeQueue) -> None:
        """A queue was made with a subscription, on the session, and is stored."""
        work = self.work(session.key)
        service = None
        if queue.service_associated and session.service is not None:
            service = session.service.service_id
        if not self.sessions.is_current(session):
            work.table.ask([(queue.rcv_id, queue.conn_id)])
        else:
            work.table.created(session.session_id, queue.rcv_id, queue.conn_id, service)
        work.start()

    def forget(self, queue: MadeQueue) -> None:
        """A queue is not wanted any more."""
        found = self._works.get(self._key(queue))
        if found is not None:
            if queue.service_associated and found.table.state(queue.rcv_id) is None:
                found.table.service_left(queue.rcv_id)
            found.table.remove(queue.rcv_id)

    def state(self, queue: QueueRef) -> QueueState | None:
        """Whether a queue is subscribed; for a queue of a service, whether the service is."""
        found = self._works.get(self._key(queue))
        if found is None:
            return None
        single = found.table.state(queue.rcv_id)
        if single is not None:
            return single
        for stored in rows.named(self._store.reading, queue.user_id, queue.server, [queue.rcv_id]):
            if not stored.associated:
                swept = found.sweep is None or queue.rcv_id <= found.sweep.after
                return None if swept else QueueState.PENDING
            if found.table.active_service is not None:
                return QueueState.ACTIVE
            return None if found.table.pending_service is None else QueueState.PENDING
        return None

    # Reading without a subscription

    def lock_get(self, queue: QueueRef) -> None:
        """The queue is read with GET on its session: it is left out of subscriptions until released."""
        self.work(self._key(queue)).get_locked.add(queue.rcv_id)

    def is_get_locked(self, queue: QueueRef) -> bool:
        found = self._works.get(self._key(queue))
        return found is not None and queue.rcv_id in found.get_locked

    def release_get(self, queue: QueueRef) -> None:
        self.work(self._key(queue)).get_locked.discard(queue.rcv_id)

    # The world outside

    def set_online(self, online: bool) -> None:
        """Whether there is a network, and so whether it is worth trying now."""
        self._online = online
        for work in tuple(self._works.values()):
            if online:
                work.online.set()
                work.retry = Retry.first(self._context.options.schedule)
                work.wake()
            else:
                work.online.clear()

    def renew(self, user_id: int, server: Server) -> None:
        """Give a service new credentials while it continues to serve with the old ones."""
        self.work(self.sessions.key(user_id, server)).renew()

    async def _renew_in_time(self) -> None:
        while True:
            await asyncio.sleep(self._context.options.renewal_check_s)
            for key, work in tuple(self._works.items()):
                is_served = work.table.active_service is not None
                if is_served and self.services.renewal_due(key.user_id, key.server):
                    try:
                        work.renew()
                    except StoreFailedError as error:
                        log.error("a service takes new credentials later: %s", error)

    # What sessions tell

    def credentials(self, user_id: int, server: Server) -> Credentials | None:
        return self.services.credentials(user_id, server)

    def connected(self, session: Session, offered: Credentials | None) -> None:
        key = session.key
        outcome = self.services.reconcile(session, offered)
        self._connected_at[session.number] = asyncio.get_running_loop().time()
        work = self.work(key)
        work.connected(session)
        if outcome in (Reconciled.CHANGED, Reconciled.GONE) and work.sweep is None:
            work.sweep = Sweep(gentle=True)
        if outcome is Reconciled.STALE:
            self.sessions.dismiss(session)
        self._reports.raised(HostConnected(key.server))
        work.start()
        work.wake()

    def connect_failed(self, key: SessionKey, failure: TransportError) -> None:
        if (work := self._works.get(key)) is not None:
            work.start()

    def disconnected(self, session: Session, reason: TransportError) -> None:
        key, loop = session.key, asyncio.get_running_loop()
        lasted_s = loop.time() - self._connected_at.pop(session.number)
        self._reports.raised(HostDisconnected(key.server))
        work = self.work(key)
        work.get_locked.clear()
        if work.retiring is session:
            work.retiring = None
        lasting = lasted_s >= self._context.options.lasting_s
        work.retry = Retry.first(self._context.options.schedule) if lasting else work.retry.next()
        lost = work.table.disconnected(session.session_id)
        if lost is not None and lost.conn_ids:
            self._reports.down(key.server, lost.conn_ids)
        if lost is not None and lost.service is not None:
            self._reports.raised(ServiceDown(key.server, lost.service))
        work.start()
        if work.is_idle:
            del self._works[key]

    async def received(self, session: Session, event: SmpEvent) -> None:
        match event:
            case Push(rcv_id, END()):
                self._ended(session, rcv_id)
            case Push(rcv_id, DELD()):
                self._deleted(session, rcv_id)
            case Push(_, ENDS()):
                self._service_ended(session)
            case Push(_, ALLS()):
                self._reports.raised(ServiceAll(session.key.server))
            case Push(b"", ERR(error)):
                self._reports.raised(AgentFailed(network_error(session.key.server, RefusedError(error))))
            case Push(rcv_id, ERR(error)):
                queue = self._carried(session, rcv_id)
                if queue is not None:
                    self._reports.refused(session.key.server, [(queue.conn_id, RefusedError(error))])
            case Late(SUB(), rcv_id, response):
                self.work(session.key).late(session, rcv_id, response)

    def _ended(self, session: Session, rcv_id: bytes) -> None:
        """Another client has the queue now; what an older session says about it is obsolete."""
        if self.sessions.is_current(session):
            conn_id = self._left(session, rcv_id)
            if conn_id is not None:
                self._reports.ended(session.key.server, conn_id, rcv_id)
                self.work(session.key).come_back(session, rcv_id, conn_id)

    def _deleted(self, session: Session, rcv_id: bytes) -> None:
        conn_id = self._left(session, rcv_id)
        if conn_id is not None:
            self._reports.deleted(session.key.server, conn_id, rcv_id)

    def _left(self, session: Session, rcv_id: bytes) -> str | None:
        """The queue is not subscribed here any more, nor of our service; its connection."""
        key = session.key
        work = self.work(key)
        conn_id = work.table.conn_of(rcv_id)
        if conn_id is None and (queue := self._carried(session, rcv_id)) is not None:
            conn_id = queue.conn_id
            if queue.service_associated and not queue.deleted:
                work.table.service_left(rcv_id)
                with self._store.transaction() as db:
                    rows.set_associated(db, key.server, [rcv_id], False)
        work.table.remove(rcv_id)
        return conn_id

    def _carried(self, session: Session, rcv_id: bytes) -> RcvQueue | None:
        """A stored queue, if its router may speak of it there."""
        queue = find_rcv(self._store.reading, session.key.server, rcv_id)
        if queue is None or session.key.carries(queue):
            return queue
        session.blame(ELSEWHERE)
        return None

    def _service_ended(self, session: Session) -> None:
        if self.sessions.is_current(session):
            work = self.work(session.key)
            ended = work.table.service_ended()
            work.repair = False
            if ended is not None:
                self._reports.raised(ServiceEnd(session.key.server, ended))
                work.come_back(session)
