"""Bounded, fair collection: each source has its own short queue, and all take turns.

A source (a connection) whose queue is full is told to pause, which stops reading its socket; nobody
else notices. The engine's own events (timers, results of effects) are never refused: each of them was
asked for, so their number is bounded by what the engine asked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

E = TypeVar("E")


class Source(Protocol):
    """Something that brings events and can be told to wait."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one batch may hold, and how much one source may have waiting."""

    batch_commands: int = 1024
    batch_bytes: int = 512 << 10
    """What a processor's cache holds, with its copies: larger batches save commits and lose more."""
    source_commands: int = 512
    source_bytes: int = 128 << 10


@dataclass(slots=True)
class _Waiting(Generic[E]):
    events: deque[tuple[E, int, int]]
    commands: int = 0
    size: int = 0
    paused: bool = False


class Inbox(Generic[E]):
    """Events that wait for the next batch."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._own: deque[E] = deque()
        self._turns: deque[Source] = deque()
        self._waiting: dict[Source, _Waiting[E]] = {}

    def __bool__(self) -> bool:
        return bool(self._own or self._turns)

    def __len__(self) -> int:
        return len(self._own) + sum(len(waiting.events) for waiting in self._waiting.values())

    def put_own(self, event: E) -> None:
        """An event of the engine itself."""
        self._own.append(event)

    def put(self, source: Source, event: E, commands: int, size: int) -> None:
        """An event of `source` that stands for so many commands and bytes."""
        waiting = self._waiting.get(source)
        if waiting is None:
            waiting = self._waiting[source] = _Waiting(deque())
        if not waiting.events:
            self._turns.append(source)
        waiting.events.append((event, commands, size))
        waiting.commands += commands
        waiting.size += size
        budget = self._budget
        full = waiting.commands >= budget.source_commands or waiting.size >= budget.source_bytes
        if full and not waiting.paused:
            waiting.paused = True
            source.pause()

    def forget(self, source: Source) -> None:
        """The source is gone. What it had already brought is still collected."""
        waiting = self._waiting.get(source)
        if waiting is not None and not waiting.events:
            del self._waiting[source]

    def collect(self) -> list[E]:
        """The next batch: the engine's own events first, then one event of each source in turn."""
        budget = self._budget
        batch: list[E] = []
        while self._own and len(batch) < budget.batch_commands:
            batch.append(self._own.popleft())
        commands, size = len(batch), 0
        while self._turns and commands < budget.batch_commands and size < budget.batch_bytes:
            source = self._turns.popleft()
            waiting = self._waiting[source]
            event, event_commands, event_size = waiting.events.popleft()
            waiting.commands -= event_commands
            waiting.size -= event_size
            commands += event_commands
            size += event_size
            batch.append(event)
            if waiting.events:
                self._turns.append(source)
            self._settle(source, waiting)
        return batch

    def _settle(self, source: Source, waiting: _Waiting[E]) -> None:
        budget = self._budget
        if (
            waiting.paused
            and waiting.commands <= budget.source_commands // 2
            and waiting.size <= budget.source_bytes // 2
        ):
            waiting.paused = False
            source.resume()
        if not waiting.events and not waiting.paused:
            self._waiting.pop(source, None)
