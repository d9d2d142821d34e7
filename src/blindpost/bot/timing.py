"""What a bot does by the clock: reminders when they are due, and work that is repeated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from blindpost.bot.chat import Outbox
from blindpost.bot.jobs import JOBS, due_of, due_prefix, job_from
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


@dataclass(frozen=True, slots=True)
class Every:
    """Work that is repeated."""

    name: str
    seconds: float
    handler: Callable[[Outbox], Outcome]


class Timing:
    """Hands jobs to the workers when they are due; `came` is set when there may be another one."""

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

    async def keep(self) -> None:
        """Run jobs when they are due."""
        records = self._chats.agent.records
        while True:
            self._came.clear()
            now = self._now()
            for key, data in records.scan(JOBS, until=due_prefix(now + 0.001)):
                if key not in self._under_way:
                    self._under_way.add(key)
                    await self._begin(key, data)
            coming = next(iter(records.scan(JOBS, after=due_prefix(now + 0.001))), None)
            pause = SLEEP_MAX_S if coming is None else due_of(coming[0]) - now
            try:
                async with asyncio.timeout(min(SLEEP_MAX_S, max(0.001, pause))):
                    await self._came.wait()
            except TimeoutError:
                continue

    async def _begin(self, key: str, data: bytes) -> None:
        """A row that cannot be read is set aside; it must not end the bot at every start."""

        async def settle(draft: Draft) -> None:
            whole = self._chats.draft()
            whole.extend(draft)
            whole.add(lambda tx: tx.delete(JOBS, key))
            await self._chats.commit(whole)
            self._under_way.discard(key)

        try:
            job = job_from(data)
        except WireError as error:
            log.error("a reminder cannot be read, and is set aside")
            draft = self._chats.draft()
            self._put_aside(Task("", (), settle, data.decode(errors="replace")), error, draft)
            await self._chats.agent.lasting(lambda: settle(draft))
        else:
            await self._workers.put(Task(job.conversation, (job,), settle, f"{job.name} {job.data}"))

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
