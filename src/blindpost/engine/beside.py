"""Deciding beside a commit: a call that only takes need not wait for an unrelated commit.

Taking changes memory and nothing in the store, so its answer is the same whether or not the commit succeeds.
An event never overtakes an earlier one about the same subject or from the same source.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from blindpost.engine.containment import contained
from blindpost.engine.inbox import Source
from blindpost.engine.undo import Undo

E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)
T = TypeVar("T")

log = logging.getLogger(__name__)

BESIDE = "beside"
"""The reason for holding a source while one of its events is decided beside a commit."""


class Taker(Protocol[E_contra, T]):
    """What a plan adds to have some of its events decided beside a commit."""

    def subject(self, event: E_contra) -> Hashable | None:
        """What an event is about, so that others about the same wait for it."""

    def takes(self, event: E_contra) -> Hashable | None:
        """The subject of an event that changes nothing in the store; None for all others."""

    @property
    def busy(self) -> Container[Hashable]:
        """The subjects of the turn being committed."""

    async def prepare_beside(self, events: Sequence[E_contra]) -> T:
        """Load what the events need, without using the committing connection."""

    def take(self, prepared: T, event: E_contra) -> bool:
        """Decide one event; False if it must wait for a turn after all."""

    def failed(self, event: E_contra) -> None: ...

    def release_beside(self, prepared: T) -> None:
        """Send what was decided."""


class Beside(Generic[E, T]):
    """Which events are decided beside the commit in progress."""

    def __init__(self, taker: Taker[E, T], undo: Undo) -> None:
        self._taker = taker
        self._undo = undo
        self._commit: object | None = None
        self._coming: dict[Hashable, set[int]] = {}
        self._takes: list[tuple[Source | None, E]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.put: Callable[[Source | None, E], None]
        """Receives what must wait for a turn; set by the engine."""

    @property
    def at_work(self) -> bool:
        return bool(self._tasks)

    async def done(self) -> None:
        """Wait until everything begun is decided or handed back to the engine."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Held during a commit. One in doubt counts as ended: later takes wait for its outcome."""
        self._commit = object()
        try:
            yield
        finally:
            self._commit = None

    def offer(self, source: Source | None, event: E) -> bool:
        """Whether an event is decided beside the commit; if not, it waits for a turn from now on."""
        taker = self._taker
        subject = taker.takes(event)
        if subject is None or self._commit is None or subject in taker.busy or subject in self._coming:
            self._arrived(event)
            return False
        if source is not None:
            source.hold(BESIDE)
        if not self._takes:
            task = asyncio.get_running_loop().create_task(self._take())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._takes.append((source, event))
        return True

    def collected(self, batch: Sequence[E]) -> None:
        """These events no longer wait."""
        for event in batch:
            subject = self._taker.subject(event)
            waiting = None if subject is None else self._coming.get(subject)
            if waiting is not None:
                waiting.discard(id(event))
                if not waiting:
                    del self._coming[subject]

    def _arrived(self, event: E) -> None:
        subject = self._taker.subject(event)
        if subject is not None:
            self._coming.setdefault(subject, set()).add(id(event))

    async def _take(self) -> None:
        commit, taker = self._commit, self._taker
        takes, self._takes = self._takes, []
        try:
            prepared = await taker.prepare_beside([event for _, event in takes])
        except Exception:
            # Whatever it is, a turn fails the same way and tells the callers.
            left = takes
        else:
            left = takes
            if commit is not None and commit is self._commit:
                left = [one for one in takes if not self._taken(prepared, one[1])]
                contained("what was decided beside a commit", taker.release_beside, prepared)
        for source, event in left:
            self._arrived(event)
            self.put(source, event)
        for source, _ in takes:
            if source is not None:
                source.let_go(BESIDE)

    def _taken(self, prepared: T, event: E) -> bool:
        mark = self._undo.mark()
        try:
            is_done = self._taker.take(prepared, event)
        except Exception:
            # As in the engine: a bug in one event rolls back only that event.
            log.exception("deciding an event failed; it changed nothing")
            self._undo.rollback(mark)
            contained("answering a failed event", self._taker.failed, event)
            is_done = True
        # The commit in progress must not roll back unrelated changes.
        self._undo.forget(mark)
        return is_done
