"""What a bot does by the clock: reminders when they are due, and work that is repeated."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from blindpost.agent import Records, Transaction
from blindpost.bot.chat import Outbox
from blindpost.bot.jobs import BACKLOG, JOBS, Job, backlog_prefix, backlogged, due_of, due_prefix, job_from
from blindpost.bot.metrics import Metrics
from blindpost.bot.routes import Outcome, called
from blindpost.bot.working import Task, Workers, let_through
from blindpost.chat import Chats, Draft
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass

log = logging.getLogger("blindpost.bot")

EVERY = "bot.every"
"""When repeated work was done last."""
SLEEP_MAX_S = 60.0
AT_ONCE = 16
"""So many reminders of one conversation are under way at a time."""
MOVED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Every:
    """Work that is repeated."""

    name: str
    seconds: float
    handler: Callable[[Outbox], Outcome]


class Timing:
    """Hands jobs to the workers when they are due; `came` is set when there may be another one.

    Of one conversation only some are handed over at a time. The rest waits in the store: whoever has many
    reminders, and reads nothing, takes no place from others.
    """

    def __init__(
        self,
        chats: Chats,
        workers: Workers,
        put_aside: Callable[[Task, Exception, Draft], None],
        metrics: Metrics,
        now: Callable[[], float],
        came: asyncio.Event,
    ) -> None:
        self._chats = chats
        self._workers = workers
        self._put_aside = put_aside
        self._metrics = metrics
        self._now = now
        self._came = came
        self._under_way: set[str] = set()
        self._counts: Counter[str] = Counter()
        """How many of each conversation are under way."""
        self._backlogged: set[str] = set()
        self._idle: list[str] = []
        """Conversations of which none is under way any more."""

    async def keep(self) -> None:
        """Run jobs when they are due."""
        records = self._chats.agent.records
        self._idle = list(_waiting(records))
        self._backlogged.update(self._idle)
        while True:
            self._came.clear()
            now = self._now()
            while self._idle:
                await self._resume(self._idle.pop())
            await self._take(due_prefix(now + 0.001))
            coming = next(iter(records.scan(JOBS, after=due_prefix(now + 0.001))), None)
            pause = SLEEP_MAX_S if coming is None else due_of(coming[0]) - now
            try:
                async with asyncio.timeout(min(SLEEP_MAX_S, max(0.001, pause))):
                    await self._came.wait()
            except TimeoutError:
                continue

    async def _take(self, until: str) -> None:
        """All that is due: to the workers, or into the backlog of its conversation."""
        moved: list[tuple[str, str, bytes]] = []
        for key, data in self._chats.agent.records.scan(JOBS, until=until):
            if key in self._under_way:
                continue
            job = _readable(data)
            if job is None:
                await self._set_aside(JOBS, key, data)
            elif job.conversation in self._backlogged or self._counts[job.conversation] >= AT_ONCE:
                self._backlogged.add(job.conversation)
                moved.append((key, backlog_prefix(job.conversation), data))
                if len(moved) >= MOVED_AT_ONCE:
                    await self._chats.agent.lasting(partial(self._move, moved))
                    moved = []
            else:
                self._under_way.add(key)
                await self._begin(JOBS, key, job)
        if moved:
            await self._chats.agent.lasting(partial(self._move, moved))

    async def _move(self, moved: list[tuple[str, str, bytes]]) -> None:
        def change(tx: Transaction) -> None:
            for key, prefix, data in moved:
                tx.delete(JOBS, key)
                tx.put(BACKLOG, prefix + key, data)

        await self._chats.agent.transact(change)

    async def _resume(self, conversation: str) -> None:
        """Hand over what comes next in a conversation, unless some of it is under way."""
        if self._counts[conversation]:
            return
        prefix = backlog_prefix(conversation)
        rows = self._chats.agent.records.scan(BACKLOG, after=prefix, until=f"{prefix.strip()}!")
        some = list(itertools.islice(rows, AT_ONCE))
        if len(some) < AT_ONCE:
            self._backlogged.discard(conversation)
        for key, data in some:
            job = _readable(data)
            if job is None:
                await self._set_aside(BACKLOG, key, data)
            else:
                await self._begin(BACKLOG, key, job)
        if some and not self._counts[conversation]:
            self._idle.append(conversation)

    async def _begin(self, space: str, key: str, job: Job) -> None:
        async def settle(draft: Draft) -> None:
            whole = self._chats.draft()
            whole.extend(draft)
            whole.add(lambda tx: tx.delete(space, key))
            await self._chats.commit(whole)
            self._under_way.discard(key)
            self._counts[job.conversation] -= 1
            if not self._counts[job.conversation]:
                del self._counts[job.conversation]
                self._idle.append(job.conversation)

        self._counts[job.conversation] += 1
        await self._workers.put(Task(job.conversation, (job,), settle, f"{job.name} {job.data}"))

    async def _set_aside(self, space: str, key: str, data: bytes) -> None:
        """A row that cannot be read must not end the bot at every start."""
        log.error("a reminder cannot be read, and is set aside")

        async def settle(draft: Draft) -> None:
            draft.add(lambda tx: tx.delete(space, key))
            await self._chats.commit(draft)

        task = Task("", (), settle, data.decode(errors="replace"))
        draft = self._chats.draft()
        self._put_aside(task, WireError("it cannot be read"), draft)
        await self._chats.agent.lasting(partial(settle, draft))

    async def repeat(self, work: Every) -> None:
        """Repeat something; when it last ran is remembered across restarts."""
        while True:
            stored = self._chats.agent.records.get(EVERY, work.name)
            due = 0.0 if stored is None else float(stored) + work.seconds
            # The clock may have been ahead.
            await asyncio.sleep(min(max(0.0, due - self._now()), work.seconds))
            outbox, now = Outbox(self._chats, self._now()), str(self._now()).encode()
            failure: Exception | None = None
            try:
                await called(work.handler, outbox)
            except asyncio.CancelledError as error:
                failure = let_through(error)
            except Exception as error:
                failure = error
            if failure is not None:
                log.error("%s failed, and is done again at its next time", work.name, exc_info=failure)
                outbox = Outbox(self._chats, self._now())
            await self._chats.agent.lasting(self._done(work, outbox, now))
            self._metrics.sent += outbox.count
            self._came.set()

    def _done(self, work: Every, outbox: Outbox, now: bytes) -> Callable[[], Awaitable[None]]:
        async def commit() -> None:
            draft = self._chats.draft()
            outbox.into(draft)
            draft.add(lambda tx: tx.put(EVERY, work.name, now))
            await self._chats.commit(draft)

        return commit


def _readable(data: bytes) -> Job | None:
    try:
        return job_from(data)
    except WireError:
        return None


def _waiting(records: Records) -> Iterator[str]:
    """The conversations that have a backlog."""
    after = ""
    while (first := next(records.scan(BACKLOG, after=after), None)) is not None:
        prefix = first[0].partition(" ")[0]
        yield backlogged(prefix)
        after = f"{prefix}!"
