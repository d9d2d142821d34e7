"""One turn after another: collect, load, verify, decide, commit, release.

The loop owns the order of these steps and what happens when one of them fails; what they mean is up to the
server. Nothing is answered OK before the commit has returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Generic, Protocol, TypeVar

from blindpost.engine.beside import Beside
from blindpost.engine.containment import contained
from blindpost.engine.histogram import Histogram
from blindpost.engine.inbox import Budget, Inbox, Source
from blindpost.engine.undo import Undo
from blindpost.wire.frozen import dataclass

E = TypeVar("E")

log = logging.getLogger(__name__)

GATHER_S = 0.001
"""How long a turn waits for more events, if commits are slow and the last turn had several."""
GATHER_COMMIT_S = 0.0003
"""Above this a commit is slow: it waits for a disk or for another machine."""

SETTLED_TRIES, SETTLED_S = 100, 0.01

OUTCOME_AT_STOP_S = 5.0
"""How long a stopping engine waits to learn whether its last commit succeeded."""


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class StoreFailedError(Exception):
    """The store could not read or commit a batch. Nothing of it was written."""


class OutcomeUnknownError(StoreFailedError):
    """The store was lost during a commit: `outcome` will tell whether the writes were made."""

    def __init__(self, message: str, outcome: asyncio.Future[bool]) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Cut(Generic[E]):
    """A batch that would make everybody wait is decided in parts."""

    now: Sequence[E]
    """What this turn decides."""
    later: Sequence[tuple[int, E]]
    """What it does not, by its place in the batch: whole events, or what is left of one."""
    debts: Sequence[tuple[int, float]] = ()
    """Which events asked for more than their share, and by how much."""


class Plan(Protocol[E]):
    """What a server does in each step of a turn.

    `prepare` loads what the batch names in one read, verifies authorizations, and loads what the verified
    commands may reach. A batch that asks for too much work is cut: what it returns then is decided later.
    `decide` is synchronous and pure apart from the state and the turn it fills; it is
    called once for each event, and an exception in it rolls back only that event. Whatever it changes,
    replies to be released included, leaves its inverse in the engine's `Undo`. `commit` makes the writes of
    the whole turn durable or raises `StoreFailedError`; then everything is taken back and `refuse` answers.
    `refuse` touches no state and answers at once: it is also called for what arrives while a commit that
    raised `OutcomeUnknownError` is in doubt.
    """

    async def prepare(self, batch: Sequence[E]) -> Cut[E] | None: ...

    def decide(self, event: E) -> None: ...

    def failed(self, event: E) -> None: ...

    async def commit(self) -> None: ...

    def release(self) -> None: ...

    def refuse(self, batch: Sequence[E], error: StoreFailedError) -> None: ...


@dataclass(slots=True)
class EngineMeters:
    """What the loop counts about itself."""

    turns: int = 0
    events: int = 0
    events_failed: int = 0
    turns_refused: int = 0
    turns_cut: int = 0
    """Turns that left part of their batch to later ones because it was too much work."""
    releases_failed: int = 0
    """Turns after which something could not be sent or done."""
    batch_events_max: int = 0
    turn_s: Histogram = field(default_factory=Histogram)
    """From the start of a turn until its answers are released."""
    commit_s: Histogram = field(default_factory=Histogram)


class Engine(Generic[E]):
    """The loop of one server."""

    def __init__(
        self,
        plan: Plan[E],
        undo: Undo,
        budget: Budget | None = None,
        beside: Beside[E, Any] | None = None,
    ) -> None:
        self.meters = EngineMeters()
        self._beside = beside
        if beside is not None:
            beside.put = self._put_left
        self._plan = plan
        self._undo = undo
        self._inbox: Inbox[E] = Inbox(budget or Budget(), _loop_time)
        self._sleeping: asyncio.Future[None] | None = None
        self._stopping = False
        self._last_events = 0
        self._last_commit_s = 0.0
        self._timers: set[asyncio.TimerHandle] = set()

    @property
    def waiting(self) -> int:
        """How many events wait for the next turns."""
        return len(self._inbox)

    @property
    def in_debt(self) -> int:
        """How many accounts are served after the others because of the work they asked for."""
        return self._inbox.in_debt

    async def settled(self) -> None:
        """Wait until nothing that was decided still waits to be committed, but not forever."""
        for _ in range(SETTLED_TRIES):
            if not self._undo:
                return
            await asyncio.sleep(SETTLED_S)

    def put(self, source: Source, event: E, commands: int = 1, size: int = 0) -> None:
        """An event that came from `source`."""
        if self._beside is not None and self._beside.offer(source, event):
            return
        self._inbox.put(source, event, commands, size)
        if self._sleeping is not None:
            self._wake()

    def put_own(self, event: E) -> None:
        """An event of the engine itself: a disconnect, a drained buffer, the result of an effect."""
        if self._beside is None or not self._beside.offer(None, event):
            self._inbox.put_own(event)
            self._wake()

    def _put_left(self, source: Source | None, event: E) -> None:
        """What could not be decided beside a commit."""
        if source is None:
            self._inbox.put_own(event)
        else:
            self._inbox.put(source, event, 1, 0)
        self._wake()

    def after(self, delay_s: float, event: E) -> None:
        """Put `event` as the engine's own once `delay_s` have passed, unless the engine stops before."""

        def due() -> None:
            self._timers.discard(handle)
            self.put_own(event)

        handle = asyncio.get_running_loop().call_later(delay_s, due)
        self._timers.add(handle)

    async def run(self) -> None:
        """Turn after turn until `stop`; then decide and commit what was accepted, and return."""
        try:
            while True:
                if not self._inbox:
                    if self._stopping:
                        if self._beside is not None and self._beside.at_work:
                            await self._beside.done()
                            continue
                        return
                    await self._sleep()
                    await self._gather()
                    continue
                await self._turn(self._inbox.collect())
                if self._inbox:
                    await asyncio.sleep(0)
        finally:
            for handle in self._timers:
                handle.cancel()
            self._timers.clear()

    def stop(self) -> None:
        """Let `run` return once nothing that was accepted is left undecided."""
        self._stopping = True
        self._wake()

    async def _sleep(self) -> None:
        """Wait until something comes. An `asyncio.Event` costs more, and every turn ends here."""
        self._sleeping = asyncio.get_running_loop().create_future()
        try:
            await self._sleeping
        finally:
            self._sleeping = None

    async def _gather(self) -> None:
        """Let clients that were answered together come back together.

        Otherwise the first of them would get a turn and a commit to itself, and all others would wait for it:
        a commit costs the same for one and for many. A single client does not wait.
        """
        if self._last_events > 1 and self._last_commit_s >= GATHER_COMMIT_S and not self._stopping:
            await asyncio.sleep(GATHER_S)

    def _wake(self) -> None:
        sleeping, self._sleeping = self._sleeping, None
        if sleeping is not None and not sleeping.done():
            sleeping.set_result(None)

    async def _turn(self, batch: list[E]) -> None:
        plan, meters = self._plan, self.meters
        meters.turns += 1
        meters.events += len(batch)
        meters.batch_events_max = max(meters.batch_events_max, len(batch))
        if self._beside is not None:
            self._beside.collected(batch)
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            batch = await self._prepared(batch)
            for event in batch:
                self._decide(event)
            committing = clock()
            await self._commit()
            self._last_events, self._last_commit_s = len(batch), clock() - committing
            meters.commit_s.observe(self._last_commit_s)
        except StoreFailedError as error:
            log.error("the store refused a batch of %d events: %s", len(batch), error)
            meters.turns_refused += 1
            self._undo.rollback()
            if not isinstance(error, OutcomeUnknownError):
                self._contained("refusing a batch", plan.refuse, batch, error)
        except Exception:
            # A bug in the shared work of a batch must not end the server for everybody.
            log.exception("a batch of %d events failed", len(batch))
            meters.turns_refused += 1
            self._undo.rollback()
            self._contained("refusing a batch", plan.refuse, batch, StoreFailedError("the batch failed"))
        self._undo.forget()
        self._contained("releasing a batch", plan.release)
        meters.turn_s.observe(clock() - started)

    async def _prepared(self, batch: list[E]) -> list[E]:
        """What is decided now of a batch; what cannot be prepared is isolated by halving the batch."""
        while True:
            try:
                cut = await self._plan.prepare(batch)
                return batch if cut is None else self._cut(cut)
            except StoreFailedError:
                raise
            except Exception:
                if len(batch) == 1:
                    raise
                half = len(batch) // 2
                log.warning("a batch of %d events cannot be prepared; trying it in parts", len(batch))
                self._undo.rollback()
                self._inbox.put_back(list(enumerate(batch))[half:])
                del batch[half:]

    def _cut(self, cut: Cut[E]) -> list[E]:
        """Put back the rest of a batch. Its sources are served after those that asked for less."""
        self.meters.turns_cut += 1
        for place, debt in cut.debts:
            self._inbox.charge(place, debt)
        self._inbox.put_back(cut.later)
        return list(cut.now)

    async def _commit(self) -> None:
        """Commit the turn. One that stays in doubt until the engine stops is not answered at all."""
        try:
            if self._beside is None:
                await self._plan.commit()
            else:
                with self._beside.commit():
                    await self._plan.commit()
        except OutcomeUnknownError as error:
            if not await self._outcome(error):
                raise StoreFailedError(str(error)) from error

    async def _outcome(self, error: OutcomeUnknownError) -> bool:
        """Whether a commit succeeded, once the store can tell; what arrives meanwhile is refused at once."""
        outcome = error.outcome
        outcome.add_done_callback(lambda _: self._wake())
        while not outcome.done():
            if self._inbox:
                self.meters.turns_refused += 1
                batch = self._inbox.collect()
                if self._beside is not None:
                    self._beside.collected(batch)
                self._contained("refusing a batch", self._plan.refuse, batch, error)
                await asyncio.sleep(0)
            elif self._stopping:
                await asyncio.wait((outcome,), timeout=OUTCOME_AT_STOP_S)
                if not outcome.done():
                    raise error
            else:
                await self._sleep()
        return outcome.result()

    def _decide(self, event: E) -> None:
        undo = self._undo
        mark = undo.mark()
        try:
            self._plan.decide(event)
        except Exception:
            # A bug in one command must not poison the batch: undo it and continue.
            log.exception("deciding an event failed; it changed nothing")
            self.meters.events_failed += 1
            undo.rollback(mark)
            self._contained("answering a failed event", self._plan.failed, event)

    def _contained(self, what: str, work: Callable[..., object], *arguments: object) -> None:
        """Effects of a turn concern many connections: a failure there must not end the loop."""
        if not contained(what, work, *arguments):
            self.meters.releases_failed += 1
