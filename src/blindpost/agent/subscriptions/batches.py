"""Queues of one session in batches: read from the store page by page, asked for, their replies applied."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from blindpost.agent.routers.sessions import Session, SessionKey
from blindpost.agent.store import subscriptions as rows
from blindpost.agent.store.subscriptions import SubQueue
from blindpost.agent.subscriptions.ports import Context
from blindpost.agent.subscriptions.replies import Sorted, sort_replies
from blindpost.agent.subscriptions.table import QueueState, SessionTable
from blindpost.client.calls import Call
from blindpost.client.errors import RefusedError
from blindpost.wire.frozen import dataclass
from blindpost.wire.smp.commands import SUB
from blindpost.wire.smp.responses import ERR, Response


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


class Batches(ABC):
    """The queues of one session key, and how they are asked for."""

    def __init__(self, context: Context, key: SessionKey) -> None:
        self.context = context
        self.key = key
        self.table = SessionTable()
        self.sweep: Sweep | None = None
        self.get_locked: set[bytes] = set()
        """Queues that are read with GET on the session, and must not be subscribed on it."""
        self._asked: set[bytes] = set()
        self._late_risen: list[str] = []

    @abstractmethod
    def start(self) -> None:
        """Something is left to be done."""

    def is_current(self, session: Session) -> bool:
        return self.context.sessions.is_current(session)

    async def in_window(
        self, session: Session, pages: Callable[[], Iterator[list[SubQueue]]], *, pending: bool = True
    ) -> bool:
        """Subscribe page after page, so many at a time, and no faster than what comes is taken.

        Whether all were answered.
        """
        context, sweep = self.context, self.sweep
        under_way: set[asyncio.Task[Sorted | None]] = set()
        complete, quiet = True, sweep is not None and sweep.quiet
        try:
            for page in pages():
                await session.idle.wait()
                if not self.is_current(session):
                    complete = False
                    break
                if pending:
                    self.table.ask((queue.rcv_id, queue.conn_id) for queue in page)
                under_way.add(asyncio.create_task(self.subscribe_on(session, page, quiet=quiet)))
                if len(under_way) >= context.options.window:
                    done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    complete = complete and all(map(_is_complete, done))
                if sweep is not None and sweep.gentle:
                    await asyncio.sleep(context.chance.uniform(0, context.options.gentle_s))
            if under_way:
                done, under_way = await asyncio.wait(under_way)
                complete = complete and all(map(_is_complete, done))
        finally:
            for task in under_way:
                task.cancel()
        return complete

    def swept_pages(self) -> Iterator[list[SubQueue]]:
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

    def pending_pages(self) -> Iterator[list[SubQueue]]:
        """What is pending and was not tried in this round; what is not in the store any more goes."""
        store, tried = self.context.store, self._asked | self.get_locked
        while wanted := self.table.pending(self.context.options.page, frozenset(tried)):
            rcv_ids = [rcv_id for rcv_id, _ in wanted]
            tried.update(rcv_ids)
            found = rows.named(store.reading, self.key.user_id, self.key.server, rcv_ids)
            for gone in set(rcv_ids).difference(queue.rcv_id for queue in found):
                self.table.remove(gone)
            yield found

    def associated_pages(self) -> Iterator[list[SubQueue]]:
        after = b""
        while page := self._page(after, associated=True):
            yield page
            after = page[-1].rcv_id

    def _page(self, after: bytes, *, associated: bool, needed_only: bool = False) -> list[SubQueue]:
        return rows.page(
            self.context.store.reading,
            self.key.user_id,
            self.key.server,
            after,
            self.context.options.page,
            associated=associated,
            needed_only=needed_only,
        )

    # One batch

    async def subscribe_on(
        self, session: Session, queues: Sequence[SubQueue], *, quiet: bool = False
    ) -> Sorted | None:
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
        if not self.is_current(session):
            self.start()
            return None
        was_active = self.table.active_count
        done = sort_replies(queues, results, self._own_service(session))
        if (risen := self._apply(session, done)) and not quiet:
            self.context.reports.up(self.key.server, risen)
        if done.retried and not done.subscribed and not done.refused and not was_active:
            await self.context.sessions.drop(session)
        if done.retried:
            self.start()
        await self.context.sessions.hand_over(session, done.messages)
        return done

    def _own_service(self, session: Session) -> bytes | None:
        """Our id as a service on the session, as far as it is the one in the store."""
        if session.service is None:
            return None
        expected = self.context.services.expected(self.key.user_id, self.key.server)
        service_id = session.service.service_id
        return service_id if expected is not None and expected.service_id == service_id else None

    def _apply(self, session: Session, done: Sorted) -> tuple[str, ...]:
        """Store what changed, then let the table know; the connections that are up now and were not."""
        server, reports = self.key.server, self.context.reports
        joined, left, first_time = done.joined, done.left, done.first_time
        if joined or left or first_time:
            with self.context.store.transaction() as db:
                rows.set_associated(db, server, joined, True)
                rows.set_associated(db, server, left, False)
                rows.set_subscribed(db, server, first_time)
        risen = self.table.subscribed(
            session.session_id, [(q.rcv_id, q.conn_id, service_id) for q, service_id in done.subscribed]
        )
        for queue, _ in done.refused:
            self.table.remove(queue.rcv_id)
        if done.refused:
            reports.refused(server, [(queue.conn_id, failure) for queue, failure in done.refused])
        return risen

    def late(self, session: Session, rcv_id: bytes, response: Response) -> None:
        """A reply that came after its time counts as if it had come in time, once."""
        if self.table.state(rcv_id) is not QueueState.PENDING or not self.is_current(session):
            return
        result = RefusedError(response.error) if isinstance(response, ERR) else response
        for queue in rows.named(self.context.store.reading, self.key.user_id, self.key.server, [rcv_id]):
            risen = self._apply(session, sort_replies([queue], [result], self._own_service(session)))
            if risen and not self._late_risen:
                asyncio.get_running_loop().call_soon(self._tell_late)
            self._late_risen.extend(risen)

    def _tell_late(self) -> None:
        """Replies that came together are reported together."""
        risen, self._late_risen = self._late_risen, []
        self.context.reports.up(self.key.server, risen)


def _is_complete(task: asyncio.Task[Sorted | None]) -> bool:
    done = task.result()
    return done is not None and not done.retried
