"""What is to be done to subscribe all that one session should have, in rounds until nothing is left.

A round connects, subscribes the service, walks over the queues in the store that belong to no service,
subscribes again what was lost, and repairs what the router and we see differently. Whatever fails for now
is left for the next round; whatever fails for good is reported once and left out.
"""

from __future__ import annotations

import asyncio
import logging

from blindpost.agent.errors import network_error
from blindpost.agent.events import AgentFailed, ServiceRenewed, ServiceUp
from blindpost.agent.failures import Kind, is_service_error, kind_of
from blindpost.agent.routers.sessions import Session, SessionKey
from blindpost.agent.subscriptions.batches import Batches, Sweep
from blindpost.agent.subscriptions.ports import Context
from blindpost.agent.subscriptions.table import Mismatch, ServiceSub, mismatch
from blindpost.agent.work.retries import Retry
from blindpost.client.calls import Failure
from blindpost.client.errors import ClientError, UnexpectedResponseError
from blindpost.crypto.ids_hash import QueueSet
from blindpost.engine.loop import StoreFailedError
from blindpost.transport.errors import TransportError
from blindpost.wire.smp.commands import SUBS
from blindpost.wire.smp.responses import SOKS

log = logging.getLogger(__name__)

REPAIRS_MAX = 2
LEFT_BEHIND_EVERY_S = 86_400.0
COME_BACK_S = 20.0, 60.0
"""When what another client took is asked for again."""
SERVICE = b""
"""No queue has this id."""


class SessionWork(Batches):
    """The subscriptions of one session key and what keeps them up."""

    def __init__(self, context: Context, key: SessionKey) -> None:
        super().__init__(context, key)
        self.repair = False
        self.retiring: Session | None = None
        """A session with an older identity that serves until all queues have moved."""
        self.retry = Retry.first(context.options.schedule)
        self.online = asyncio.Event()
        self.online.set()
        self._turn = asyncio.Lock()
        self._left_behind_at: float | None = None
        self._service_step: asyncio.Task[bool] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._closed = False
        self._taken: dict[bytes, str] = {}
        """Queues with their connections that another client took, and the service under an empty id."""
        self._returned: tuple[int, set[bytes]] = (0, set())
        """On which session what was asked for again."""
        self._returns = False
        """Whether the next session is for the service that another client took."""
        self._return: asyncio.TimerHandle | None = None

    @property
    def has_work(self) -> bool:
        return self.table.has_pending or self.sweep is not None or self.repair

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost if this were forgotten."""
        return self.table.is_empty and not (self.has_work or self.get_locked or self._worker or self._taken)

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
        if self._return is not None:
            self._return.cancel()
        tasks = [task for task in (self._worker, self._service_step) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _work(self) -> None:
        context, options = self.context, self.context.options
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
        delay = self.retry.jittered_s(self.context.chance)
        self.retry = self.retry.next()
        return delay

    async def _pause(self, duration_s: float) -> None:
        try:
            async with asyncio.timeout(duration_s):
                await self._woken.wait()
        except TimeoutError:
            pass

    # What another client took

    def come_back(self, session: Session, rcv_id: bytes = SERVICE, conn_id: str = "") -> None:
        """Ask once more for a queue, or for the service, that the router says another client has.

        That may be the last of a former process of ours, which arrived after our own: then nobody has it. A
        client that is there takes it again, and keeps it.
        """
        if self._returned[0] != session.number:
            self._returned = session.number, set()
        if rcv_id not in self._returned[1]:
            self._returned[1].add(rcv_id)
            self._taken[rcv_id] = conn_id
            if self._return is None:
                pause_s = self.context.chance.uniform(*COME_BACK_S)
                self._return = asyncio.get_running_loop().call_later(pause_s, self._ask_again)

    def _ask_again(self) -> None:
        services, user_id, server = self.context.services, self.key.user_id, self.key.server
        taken, self._taken, self._return = self._taken, {}, None
        is_service = taken.pop(SERVICE, None) is not None and services.has_service(user_id)
        if is_service and (self._is_where_lost or self.table.active_service is None):
            self._leave_session()
            self.table.service_ended()
            self.table.ask_service(services.expected(user_id, server) or ServiceSub(b"", QueueSet()))
        self.table.ask(taken.items())
        self.start()

    @property
    def _is_where_lost(self) -> bool:
        """Whether we are on the session that lost the service. Queues that were made there since are
        subscribed, and make it look as if the service was."""
        current = self.context.sessions.current(self.key)
        return current is not None and current.number == self._returned[0]

    def _leave_session(self) -> None:
        """A session that lost its service does not get it back by SUBS, and what the router counts for it
        there is no longer what is stored: only a new one is told that."""
        sessions = self.context.sessions
        current = sessions.current(self.key)
        if current is not None and self._is_where_lost:
            sessions.retire(self.key)
            sessions.dismiss(current)
            self._returns = True

    def connected(self, session: Session) -> None:
        """A new session is there. One that was made to return counts as having done so."""
        self.table.connected(session.session_id)
        if self._returns:
            self._returns, self._returned = False, (session.number, {SERVICE})

    # Rounds

    async def round(self) -> None:
        """Do one round of the work; a second caller waits and finds less to do."""
        async with self._turn:
            try:
                session = await self.context.sessions.session(self.key)
            except TransportError as failure:
                self.context.reports.unreached(self.key.server, failure)
                return
            self.context.reports.reached(self.key.server)
            try:
                await self._round_on(session)
            except StoreFailedError:
                log.exception("subscribing stopped because the store failed")

    async def _round_on(self, session: Session) -> None:
        if not await self.service_first(session):
            return
        if self.sweep is not None:
            await self.in_window(session, self.swept_pages)
        await self.in_window(session, self.pending_pages)
        if self.repair and self.is_current(session):
            await self._repair(session)
        if self.retiring is not None and not self.has_work:
            self.context.sessions.dismiss(self.retiring)
            self.retiring = None
            self.context.reports.raised(ServiceRenewed(self.key.server))

    # The service

    async def service_first(self, session: Session) -> bool:
        """Subscribe the service if that is due, once for all who wait for it; whether SUBs may follow."""
        while self.table.pending_service is not None and self.is_current(session):
            if self._service_step is None:
                self._service_step = asyncio.create_task(self._subscribe_service(session))
                self._service_step.add_done_callback(self._service_step_done)
            step = self._service_step
            await asyncio.wait([step])
            if step.cancelled() or step.exception() is not None or not step.result():
                return False
        return self.is_current(session)

    def _service_step_done(self, step: asyncio.Task[bool]) -> None:
        self._service_step = None
        if not step.cancelled() and (error := step.exception()) is not None:
            log.error("subscribing a service failed", exc_info=error)

    async def _subscribe_service(self, session: Session) -> bool:
        """SUBS; whether it is settled, one way or another."""
        services, key = self.context.services, self.key
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
        if error is not None or actual.queues.count or services.receives(key.user_id, key.server):
            self.context.reports.raised(ServiceUp(key.server, actual, error))
        if error is not None:
            self._drifted(error, expected, actual)
        return True

    def _drifted(self, error: Mismatch, expected: ServiceSub, actual: ServiceSub) -> None:
        """What the router has is not what we have: a little less or more, or nothing at all of it."""
        self.repair = True
        if error is Mismatch.SERVICE_ID or (expected.queues.count and not actual.queues.count):
            self.context.services.dissociate_all(self.key.user_id, self.key.server)
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
                self.context.reports.raised(AgentFailed(network_error(self.key.server, failure)))
            return None
        return ServiceSub(session.service.service_id, QueueSet(response.count, response.ids_hash))

    def _fall_back(self, failure: Failure) -> None:
        """The router refuses us as a service: every queue on its own, and a new identity next time."""
        self.context.reports.raised(AgentFailed(network_error(self.key.server, failure)))
        self.table.service_ended()
        self.context.services.forget(self.key.user_id, self.key.server)
        self.sweep, self.repair = Sweep(gentle=True), False

    async def _repair(self, session: Session) -> None:
        """Until both sides have the same queues: SUB for all that we have, and drop what is refused.

        What the router has beyond that it has for ever, since we have no keys for it: a new identity
        leaves it behind. Messages keep coming meanwhile.
        """
        services, user_id, server = self.context.services, self.key.user_id, self.key.server
        if not services.audit(user_id, server):
            log.error("the stored count of a service's queues was wrong; it was counted anew")
        for _ in range(REPAIRS_MAX):
            if not self._repairs(session) or (agrees := await self._compare(session)) is None:
                return
            if agrees:
                self.repair = False
                return
            if not await self.in_window(session, self.associated_pages, pending=False):
                return
        agrees = await self._compare(session)
        if agrees is None or not self._repairs(session):
            return
        self.repair = False
        if not agrees and services.is_settled(user_id, server):
            self._leave_behind()

    def _repairs(self, session: Session) -> bool:
        """Whether it is still to be done here: another client may have taken the service."""
        return self.repair and self.is_current(session)

    def _leave_behind(self) -> None:
        """Queues that only the router has stay with the old identity; once a day is enough to try that."""
        now = asyncio.get_running_loop().time()
        if self._left_behind_at is not None and now - self._left_behind_at < LEFT_BEHIND_EVERY_S:
            log.error("the router still counts other queues for our service than we do")
            return
        log.warning("the router counts queues for our service that we do not have: taking a new identity")
        self._left_behind_at = now
        self.renew()

    async def _compare(self, session: Session) -> bool | None:
        """Ask again what the router has; whether it is what we have, None if it did not say."""
        expected = self.context.services.expected(self.key.user_id, self.key.server)
        if expected is None or session.service is None:
            return True
        actual = await self._ask_service(session, expected)
        if actual is None or not self.is_current(session):
            return None
        self.table.service_subscribed(session.session_id, actual)
        await asyncio.sleep(0)
        return mismatch(expected, actual) is None or self.context.services.agrees(
            self.key.user_id, self.key.server, actual
        )

    def renew(self) -> None:
        """Take a new identity: the old session serves its queues until all have moved to the new one."""
        sessions = self.context.sessions
        self.context.services.renew(self.key.user_id, self.key.server)
        older, self.retiring = self.retiring, sessions.retire(self.key)
        if older is not None:
            sessions.dismiss(older)
        self.table.service_ended()
        self.table.ask_service(ServiceSub(b"", QueueSet()))
        self.sweep, self.repair = Sweep(gentle=True, quiet=True), False
        self.start()
