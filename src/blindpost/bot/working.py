"""Running handlers: in order within a conversation, concurrently across conversations, none of them lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial

from blindpost.agent import ConnectionCode, ConnError, CriticalError, InactiveError, StoreFailedError
from blindpost.bot.chat import StateChangedError
from blindpost.bot.deaths import Deaths, DiedError
from blindpost.bot.jobs import Job
from blindpost.bot.metrics import Metrics
from blindpost.chat import ChatEvent, Chats, Draft
from blindpost.chat.drafts import UNREAD_MAX
from blindpost.wire.frozen import dataclass

log = logging.getLogger("blindpost.bot")

LOOK_S = 5.0
"""How often to look whether a contact has read some of its answers."""
ALONE_S = 60.0
"""So long at most others wait for a task that is to be handled alone: it may never end, and so may they."""
STORE_PAUSE_S = 5.0
"""A full disk is not the handler's fault: it is retried until there is room, or the bot closes."""


@dataclass(frozen=True, slots=True)
class Task:
    """Something to handle, and what completes it: an acknowledgement, or the deletion of its record."""

    key: str
    events: tuple[ChatEvent | Job, ...]
    settle: Callable[[Draft], Awaitable[None]]
    text: str = ""
    """What is kept of it if it must be set aside."""


class HandlerCancelledError(Exception):
    """Something that the handler waited for was cancelled, and it let that through."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a failing handler is tried, and how long to wait before each retry."""

    pauses_s: tuple[float, ...] = (0.5, 5.0)

    @property
    def attempts(self) -> int:
        return len(self.pauses_s) + 1


class Workers:
    """Takes tasks; runs at most `most` at once, and lets no more than `waiting` wait."""

    def __init__(
        self,
        chats: Chats,
        handle: Callable[[Task, Draft, Metrics], Awaitable[None]],
        give_up: Callable[[Task, Exception, Draft], Awaitable[None]],
        set_aside: Callable[[Task, Exception, Draft], None],
        settled: Callable[[], None],
        metrics: Metrics,
        deaths: Deaths,
        *,
        patience: Patience,
        most: int = 64,
        waiting: int = 2000,
    ) -> None:
        self._chats = chats
        self._handle = handle
        self._give_up = give_up
        self._set_aside = set_aside
        self._settled = settled
        """Called whenever something was committed, work for later among it perhaps."""
        self._metrics = metrics
        self._patience = patience
        self._deaths = deaths
        self._most = most
        self._places = asyncio.Semaphore(most)
        self._all_places = asyncio.Lock()
        self._waiting_max = waiting
        self._queues: dict[str, deque[Task]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Condition()
        self._count = 0
        self.closing = False

    async def put(self, task: Task) -> None:
        """Queue a task behind the others of its conversation; blocks while too many wait."""
        async with self._room:
            await self._room.wait_for(lambda: self._count < self._waiting_max)
            self._count += 1
        self._metrics.waiting = self._count
        queue = self._queues.setdefault(task.key, deque())
        queue.append(task)
        if task.key not in self._running:
            work = asyncio.create_task(self._work(task.key, queue))
            self._running[task.key] = work

    async def _work(self, key: str, queue: deque[Task]) -> None:
        try:
            while queue and not self.closing:
                if await self._chats.agent.lasting(partial(self._is_unread, key)):
                    await asyncio.sleep(LOOK_S)
                    continue
                async with self._place(key):
                    await self._noted(queue[0])
                queue.popleft()
                async with self._room:
                    self._count -= 1
                    self._metrics.waiting = self._count
                    self._room.notify()
        except (InactiveError, CriticalError):
            pass  # the bot is about to end, and this comes again after its next start
        finally:
            del self._running[key]
            if not queue:
                self._queues.pop(key, None)

    async def _is_unread(self, key: str) -> bool:
        """Whether too many answers wait for the contact whom this is from. A member of a group who does not
        read is passed over when something is sent there."""
        with contextlib.suppress(ConnError):
            waiting = self._chats.agent.connection(key).waiting
            return waiting >= UNREAD_MAX and self._chats.contact(key) is not None
        return False  # it is a request, or the contact is gone

    @contextlib.asynccontextmanager
    async def _place(self, key: str) -> AsyncIterator[None]:
        """Room for one handler; one that may have ended the program before runs alone, for a while."""
        if self._deaths.is_suspect(key):
            async with self._all_places_for_a_while():
                yield
        else:
            async with self._places:
                yield

    @contextlib.asynccontextmanager
    async def _all_places_for_a_while(self) -> AsyncIterator[None]:
        """All places, or those that can be had in time; then one."""
        loop, held = asyncio.get_running_loop(), 0

        def leave(kept: int) -> None:
            nonlocal held
            while held > kept:
                held -= 1
                self._places.release()

        try:
            async with self._all_places:
                end = loop.time() + ALONE_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(end):
                        while held < self._most:
                            await self._places.acquire()
                            held += 1
            if not held:
                await self._places.acquire()
                held = 1
            limit = loop.call_at(end, leave, 1)
            try:
                yield
            finally:
                limit.cancel()
        finally:
            leave(0)

    async def _noted(self, task: Task) -> None:
        """Handle a task, so that it is known whose fault it is if the program ends meanwhile."""
        if self._deaths.is_hopeless(task.key):
            await self._gave_up(task, DiedError(), Metrics())
        else:
            self._deaths.begin(task.key)
            try:
                await self._one(task)
            except SystemExit:
                raise  # the handler ends the program: that is a death too
            except BaseException:
                self._deaths.end(task.key)
                raise
            self._deaths.end(task.key)
        if not self.closing:
            await self._chats.agent.lasting(partial(self._deaths.acquit, task.key))

    async def _one(self, task: Task) -> None:
        """Handle a task until it is done; one that keeps failing is reported and set aside."""
        attempt = 0
        while attempt < self._patience.attempts:
            counts = Metrics()
            try:
                await self._tried(task, counts)
                return
            except StateChangedError:
                await asyncio.sleep(0)
                continue
            except InactiveError:
                raise
            except StoreFailedError as error:
                log.error("the store takes nothing, trying again: %s", error)
                await asyncio.sleep(STORE_PAUSE_S)
                if self.closing:
                    return
                continue
            except asyncio.CancelledError as error:
                failure: Exception = let_through(error)
            except Exception as error:
                failure = error
            self._metrics.retried += 1
            log.warning(
                "a handler failed, attempt %d of %d", attempt + 1, self._patience.attempts, exc_info=failure
            )
            attempt += 1
            if attempt < self._patience.attempts:
                await asyncio.sleep(self._patience.pauses_s[attempt - 1])
                if self.closing:
                    return
        await self._gave_up(task, failure, counts)

    async def _tried(self, task: Task, counts: Metrics) -> None:
        draft = self._chats.draft()
        await self._handle(task, draft, counts)
        if await self._settle(task, draft):
            self._metrics.add(replace(counts, handled=1))

    async def _settle(self, task: Task, draft: Draft) -> bool:
        """False: it was acknowledged before, with its answer, or the connection is gone."""
        try:
            await task.settle(draft)
        except ConnError as error:
            if error.code is not ConnectionCode.NOT_FOUND:
                raise
            return False
        self._settled()
        return True

    async def _gave_up(self, task: Task, failure: Exception, counts: Metrics) -> None:
        """Report, and set aside; if reporting fails too, only set aside. While the store takes nothing, that
        is tried again; what fails for another reason comes again after the next start and holds up nobody."""
        telling = True
        while not self.closing:
            draft = self._chats.draft()
            try:
                if telling:
                    await self._give_up(task, failure, draft)
                self._set_aside(task, failure, draft)
                if await self._settle(task, draft):
                    self._metrics.add(replace(counts, sent=0, jobs=0, set_aside=1))
                return
            except InactiveError:
                raise
            except asyncio.CancelledError as error:
                log.warning("could not tell of a failed handler", exc_info=let_through(error))
            except StoreFailedError as error:
                log.warning("could not tell of a failed handler", exc_info=error)
            except Exception as error:
                log.error("could not tell of a failed handler", exc_info=error)
                if not telling:
                    return
            if not telling:
                await asyncio.sleep(self._patience.pauses_s[-1] if self._patience.pauses_s else 1.0)
            telling = False

    async def drain(self, seconds: float) -> None:
        """Let running handlers end; waiting tasks are kept, and come again."""
        self.closing = True
        running = list(self._running.values())
        if running:
            _, late = await asyncio.wait(running, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


def let_through(cancelled: asyncio.CancelledError) -> HandlerCancelledError:
    """The failure of a handler that waited for something which was cancelled. If this task itself is being
    cancelled, that is raised instead."""
    task = asyncio.current_task()
    if task is None or task.cancelling() > 0:
        raise cancelled
    failure = HandlerCancelledError("what the handler waited for was cancelled")
    failure.__cause__ = cancelled
    return failure
