"""What is to be done to subscribe all that one session should have, in rounds until nothing is left.

A round connects, subscribes the service, walks over the queues in the store that belong to no service,
subscribes again what was lost, and repairs what the router and we see differently. Whatever fails for now
is left for the next round; whatever fails for good is reported once and left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from blindpost.agent.errors import network_error
from blindpost.agent.events import AgentFailed, ServiceUp
from blindpost.agent.failures import Kind, is_service_error, kind_of
from blindpost.agent.retries import Retry
from blindpost.agent.sessions import Session, SessionKey
from blindpost.agent.store import subscriptions as rows
from blindpost.agent.store.subscriptions import SubQueue
from blindpost.agent.subscriptions.ports import Context
from blindpost.agent.subscriptions.replies import Sorted, sort_replies
from blindpost.agent.subscriptions.table import Mismatch, QueueState, ServiceSub, SessionTable, mismatch
from blindpost.client.calls import Call, Failure
from blindpost.client.errors import ClientError, RefusedError, UnexpectedResponseError
from blindpost.crypto.ids_hash import QueueSet
from blindpost.engine.loop import StoreFailedError
from blindpost.transport.errors import TransportError
from blindpost.wire.smp.commands import SUB, SUBS
from blindpost.wire.smp.responses import ERR, SOKS, Response

log = logging.getLogger(__name__)

REPAIRS_MAX = 2


@dataclass(frozen=True, slots=True)
class Sweep:
    """A walk over the queues in the store that are of no service, and how far it has come."""

    after: bytes = b""
    needed_only: bool = False
    """Only queues that were never subscribed."""
    gentle: bool = False
    """With pauses: all of them come at once because a service fell apart, maybe not only ours."""
    quiet: bool = False
    """Nobody was told that these connections were down."""


class SessionWork:
    """The subscriptions of one session key and what keeps them up."""

    def __init__(self, context: Context, key: SessionKey) -> None:
        self.key = key
        self.table = SessionTable()
        self.sweep: Sweep | None = None
        self.repair = False
        self.get_locked: set[bytes] = set()
        """Queues that are read with GET on this session, and must not be subscribed on it."""
        self.retiring: Session | None = None
        """A session with an older identity that serves until all queues have moved."""
        self.retry = Retry.first(context.options.schedule)
        self.online = asyncio.Event()
        self.online.set()
        self._context = context
        self._turn = asyncio.Lock()
        self._asked: set[bytes] = set()
        self._service_step: asyncio.Task[bool] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._closed = False

    @property
    def has_work(self) -> bool:
        return self.table.has_pending or self.sweep is not None or self.repair

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost if this were forgotten."""
        return self.table.is_empty and not (self.has_work or self.get_locked or self._worker)

    # The worker

    def start(self) -> None:
        """Let a worker do what is to be done, if there is anything and none does it."""
        if self.has_work and self._worker is None and not self._closed:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    @property
    def is_working(self) -> bool:
        return self._worker is not None

    def wake(self) -> None:
        """Something changed for the better: try now."""
        self._woken.set()

    async def close(self) -> None:
        self._closed = True
        tasks = [task for task in (self._worker, self._service_step) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _work(self) -> None:
        context, options = self._context, self._context.options
        try:
            fresh = self.retry == Retry.first(options.schedule)
            await self._pause(context.chance.uniform(0, options.soon_s) if fresh else self._delay())
            while True:
                try:
                    async with asyncio.timeout(options.offline_max_s):
                        await self.online.wait()
                except TimeoutError:
                    pass
                await self.round()
                if not self.has_work:
                    return
                self._woken.clear()
                await self._pause(self._delay())
        finally:
            self._worker = None

    def _delay(self) -> float:
        delay = self.retry.jittered_s(self._context.chance)
        self.retry = self.retry.next()
        return delay

    async def _pause(self, duration_s: float) -> None:
        try:
            async with asyncio.timeout(duration_s):
                await self._woken.wait()
        except TimeoutError:
            pass

    # Rounds

    async def round(self) -> None:
        """Do once what is to be done; whoever comes second waits and finds less to do."""
        async with self._turn:
            try:
                session = await self._context.sessions.session(self.key)
            except TransportError:
                return
            try:
                await self._round_on(session)
            except StoreFailedError:
                log.exception("subscribing stopped because the store failed")

    async def _round_on(self, session: Session) -> None:
        if not await self.service_first(session):
            return
        if self.sweep is not None:
            await self._in_window(session, self._swept_pages)
        await self._in_window(session, self._pending_pages)
        if self.repair and self._is_current(session):
            await self._repair(session)
        if self.retiring is not None and not self.has_work:
            self._context.sessions.dismiss(self.retiring)
            self.retiring = None

    async def _in_window(
        self, session: Session, pages: Callable[[], Iterator[list[SubQueue]]], *, pending: bool = True
    ) -> bool:
        """Subscribe page after page, so many at a time, and no faster than what comes is taken.

        Whether all were answered.
        """
        context = self._context
        under_way: set[asyncio.Task[Sorted | None]] = set()
        complete = True
        try:
            for page in pages():
                await session.idle.wait()
                if not self._is_current(session):
                    complete = False
                    break
                if pending:
                    self.table.ask((queue.rcv_id, queue.conn_id) for queue in page)
                under_way.add(asyncio.create_task(self.subscribe_on(session, page)))
                if len(under_way) >= context.options.window:
                    done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    complete = complete and all(map(_is_complete, done))
                if self.sweep is not None and self.sweep.gentle:
                    await asyncio.sleep(context.chance.uniform(0, context.options.gentle_s))
            if under_way:
                done, under_way = await asyncio.wait(under_way)
                complete = complete and all(map(_is_complete, done))
        finally:
            for task in under_way:
                task.cancel()
        return complete

    def _swept_pages(self) -> Iterator[list[SubQueue]]:
        """From where the walk was; what one page asked for is pending before the next is read."""
        while (sweep := self.sweep) is not None:
            page = self._page(sweep.after, associated=False, needed_only=sweep.needed_only)
            if not page:
                self.sweep = None
                return
            busy, table = self._asked | self.get_locked, self.table
            yield [q for q in page if q.rcv_id not in busy and not table.is_active(q.rcv_id)]
            if self.sweep is sweep:
                self.sweep = replace(sweep, after=page[-1].rcv_id)

    def _pending_pages(self) -> Iterator[list[SubQueue]]:
        """What is pending and was not tried in this round; what is not in the store any more goes."""
        store, tried = self._context.store, self._asked | self.get_locked
        while wanted := self.table.pending(self._context.options.page, frozenset(tried)):
            rcv_ids = [rcv_id for rcv_id, _ in wanted]
            tried.update(rcv_ids)
            found = rows.named(store.reading, self.key.user_id, self.key.server, rcv_ids)
            for gone in set(rcv_ids).difference(queue.rcv_id for queue in found):
                self.table.remove(gone)
            yield found

    def _associated_pages(self) -> Iterator[list[SubQueue]]:
        after = b""
        while page := self._page(after, associated=True):
            yield page
            after = page[-1].rcv_id

    def _page(self, after: bytes, *, associated: bool, needed_only: bool = False) -> list[SubQueue]:
        return rows.page(
            self._context.store.reading,
            self.key.user_id,
            self.key.server,
            after,
            self._context.options.page,
            associated=associated,
            needed_only=needed_only,
        )

    def _is_current(self, session: Session) -> bool:
        return self._context.sessions.is_current(session)

    # One batch

    async def subscribe_on(self, session: Session, queues: Sequence[SubQueue]) -> Sorted | None:
        """Send SUB for each, and act on the replies; None if the session was replaced meanwhile.

        Then nothing of the replies holds, not even a message in one of them: the router will offer it
        again, and nobody acknowledges it here.
        """
        if not queues:
            return Sorted()
        rcv_ids = {queue.rcv_id for queue in queues}
        self._asked |= rcv_ids
        try:
            calls = [Call(SUB(), queue.rcv_id, queue.key) for queue in queues]
            results = await session.client.send_many(calls)
        finally:
            self._asked -= rcv_ids
        if not self._is_current(session):
            self.start()
            return None
        was_active = self.table.active_count
        done = sort_replies(queues, results, self._own_service(session))
        self._apply(session, done)
        if done.retried and not done.subscribed and not done.refused and not was_active:
            await self._context.sessions.drop(session)
        if done.retried:
            self.start()
        await self._context.sessions.hand_over(session, done.messages)
        return done

    def _own_service(self, session: Session) -> bytes | None:
        """Our id as a service on this session, as far as it is the one in the store."""
        if session.service is None:
            return None
        expected = self._context.services.expected(self.key.user_id, self.key.server)
        service_id = session.service.service_id
        return service_id if expected is not None and expected.service_id == service_id else None

    def _apply(self, session: Session, done: Sorted) -> None:
        """Store what changed, then let the table and the application know."""
        server, reports = self.key.server, self._context.reports
        joined, left, first_time = done.joined, done.left, done.first_time
        if joined or left or first_time:
            with self._context.store.transaction() as db:
                rows.set_associated(db, server, joined, True)
                rows.set_associated(db, server, left, False)
                rows.set_subscribed(db, server, first_time)
        risen = self.table.subscribed(
            session.session_id, [(q.rcv_id, q.conn_id, service_id) for q, service_id in done.subscribed]
        )
        for queue, _ in done.refused:
            self.table.remove(queue.rcv_id)
        if risen and not (self.sweep is not None and self.sweep.quiet):
            reports.up(server, risen)
        if done.refused:
            reports.refused(server, [(queue.conn_id, failure) for queue, failure in done.refused])

    def late(self, session: Session, rcv_id: bytes, response: Response) -> None:
        """A reply that came after its time counts as if it had come in time, once."""
        if self.table.state(rcv_id) is not QueueState.PENDING or not self._is_current(session):
            return
        result = RefusedError(response.error) if isinstance(response, ERR) else response
        for queue in rows.named(self._context.store.reading, self.key.user_id, self.key.server, [rcv_id]):
            self._apply(session, sort_replies([queue], [result], self._own_service(session)))

    # The service

    async def service_first(self, session: Session) -> bool:
        """Subscribe the service if that is due, once for all who wait for it; whether SUBs may follow."""
        while self.table.pending_service is not None and self._is_current(session):
            if self._service_step is None:
                self._service_step = asyncio.create_task(self._subscribe_service(session))
                self._service_step.add_done_callback(self._service_step_done)
            step = self._service_step
            await asyncio.wait([step])
            if step.cancelled() or step.exception() is not None or not step.result():
                return False
        return self._is_current(session)

    def _service_step_done(self, step: asyncio.Task[bool]) -> None:
        self._service_step = None
        if not step.cancelled() and (error := step.exception()) is not None:
            log.error("subscribing a service failed", exc_info=error)

    async def _subscribe_service(self, session: Session) -> bool:
        """SUBS; whether it is settled, one way or another."""
        services, key = self._context.services, self.key
        wanted = self.table.pending_service
        expected = services.expected(key.user_id, key.server)
        if session.service is None or wanted is None or expected is None:
            self.table.service_ended()
            self.sweep = Sweep(gentle=True)
            return True
        actual = await self._ask_service(session, expected)
        if actual is None:
            return self.table.pending_service is None
        if not self.table.service_subscribed(session.session_id, actual):
            return False
        error = None
        if wanted.service_id not in (b"", actual.service_id):
            error = Mismatch.SERVICE_ID
        elif not services.agrees(key.user_id, key.server, actual):
            error = mismatch(expected, actual)
        self._context.reports.raised(ServiceUp(key.server, actual, error))
        if error is not None:
            self._drifted(error, expected, actual)
        return True

    def _drifted(self, error: Mismatch, expected: ServiceSub, actual: ServiceSub) -> None:
        """What the router has is not what we have: a little less or more, or nothing at all of it."""
        self.repair = True
        if error is Mismatch.SERVICE_ID or (expected.queues.count and not actual.queues.count):
            self._context.services.dissociate_all(self.key.user_id, self.key.server)
            self.sweep = Sweep(gentle=True)
        elif self.sweep is None:
            self.sweep = Sweep()

    async def _ask_service(self, session: Session, expected: ServiceSub) -> ServiceSub | None:
        """SUBS and what the router has; None when it did not say."""
        assert session.service is not None
        try:
            response = await session.client.send(SUBS(expected.queues.count, expected.queues.ids_hash))
            if not isinstance(response, SOKS):
                raise UnexpectedResponseError(response)
        except (ClientError, TransportError) as failure:
            if is_service_error(failure):
                self._fall_back(failure)
            elif kind_of(failure) is Kind.PERMANENT:
                self._context.reports.raised(AgentFailed(network_error(self.key.server, failure)))
            return None
        return ServiceSub(session.service.service_id, QueueSet(response.count, response.ids_hash))

    def _fall_back(self, failure: Failure) -> None:
        """The router refuses us as a service: every queue on its own, and a new identity next time."""
        self._context.reports.raised(AgentFailed(network_error(self.key.server, failure)))
        self.table.service_ended()
        self._context.services.forget(self.key.user_id, self.key.server)
        self.sweep, self.repair = Sweep(gentle=True), False

    async def _repair(self, session: Session) -> None:
        """Until both sides have the same queues: SUB for all that we have, and drop what is refused.

        What the router has beyond that it has for ever, since we have no keys for it: a new identity
        leaves it behind. Messages go on all the while.
        """
        services, user_id, server = self._context.services, self.key.user_id, self.key.server
        for _ in range(REPAIRS_MAX):
            if not self._is_current(session) or (agrees := await self._compare(session)) is None:
                return
            if agrees:
                self.repair = False
                return
            if not await self._in_window(session, self._associated_pages, pending=False):
                return
        agrees = await self._compare(session)
        if agrees is None:
            return
        self.repair = False
        if not agrees and services.is_settled(user_id, server):
            log.warning("the router counts queues for our service that we do not have: taking a new identity")
            self.renew()

    async def _compare(self, session: Session) -> bool | None:
        """Ask again what the router has; whether it is what we have, None if it did not say."""
        expected = self._context.services.expected(self.key.user_id, self.key.server)
        if expected is None or session.service is None:
            return True
        actual = await self._ask_service(session, expected)
        if actual is None or not self._is_current(session):
            return None
        self.table.service_subscribed(session.session_id, actual)
        await asyncio.sleep(0)
        return mismatch(expected, actual) is None or self._context.services.agrees(
            self.key.user_id, self.key.server, actual
        )

    def renew(self) -> None:
        """Take a new identity: the old session serves its queues until all have moved to the new one."""
        sessions = self._context.sessions
        self._context.services.renew(self.key.user_id, self.key.server)
        older, self.retiring = self.retiring, sessions.retire(self.key)
        if older is not None:
            sessions.dismiss(older)
        self.table.service_ended()
        self.table.ask_service(ServiceSub(b"", QueueSet()))
        self.sweep, self.repair = Sweep(gentle=True, quiet=True), False
        self.start()


def _is_complete(task: asyncio.Task[Sorted | None]) -> bool:
    done = task.result()
    return done is not None and not done.retried
