"""Bounded, fair collection: accounts take turns, and within an account its sources do.

An account is what a source is counted under, such as an address; a source that names none is its own account.
A source (a connection) whose queue is full is paused, which stops reading its socket and affects nobody else.
An account that asked for more work than it has commands is in debt, and is served after the others until the
debt has decayed. The engine's own events (timers, results of effects) are never refused: each was asked for,
so their number is bounded by what the engine asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

from blindpost.wire.frozen import dataclass

E = TypeVar("E")

FULL = "inbox"
"""The reason for holding a source whose queue is full."""
DEBT_MAX = 1024.0
"""Above this an account is served after the others."""
DEBT_CAP = 16 * DEBT_MAX
"""The largest debt, which decays within seconds."""
DEBT_PER_S = 1024.0
"""How much debt decays per second."""


class Source(Protocol):
    """Something that brings events and can be paused."""

    def __hash__(self) -> int: ...

    @property
    def account(self) -> Hashable:
        """The account its work is counted under; None if it is its own."""

    def hold(self, reason: str) -> None:
        """Pause for this reason."""

    def let_go(self, reason: str) -> None:
        """Remove this reason; resume if there is no other."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one batch may hold, and how much one source may have waiting."""

    batch_commands: int = 1024
    batch_bytes: int = 512 << 10
    """What fits a processor's cache, with its copies: larger batches save commits and lose more than that."""
    source_commands: int = 512
    source_bytes: int = 128 << 10


Brought = tuple[E, int, int]
"""An event, how many commands it stands for, and how many bytes."""


class _Account(Generic[E]):
    """The sources of one account that have something waiting."""

    __slots__ = ("key", "turns")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.turns: deque[_Waiting[E]] = deque()


class _Waiting(Generic[E]):
    __slots__ = ("account", "commands", "events", "paused", "size", "source")

    def __init__(self, source: Source, account: _Account[E]) -> None:
        self.source = source
        self.account = account
        self.events: deque[Brought[E]] = deque()
        self.commands = 0
        self.size = 0
        self.paused = False


class Inbox(Generic[E]):
    """Events that wait for the next batch."""

    def __init__(self, budget: Budget, now: Callable[[], float] | None = None) -> None:
        self._budget = budget
        self._now = now or (lambda: 0.0)
        self._own: deque[E] = deque()
        self._turns: deque[_Account[E]] = deque()
        self._indebted: deque[_Account[E]] = deque()
        self._accounts: dict[Hashable, _Account[E]] = {}
        self._waiting: dict[Source, _Waiting[E]] = {}
        self._debts: dict[Hashable, tuple[float, float]] = {}
        self._collected: list[tuple[_Waiting[E], int, int] | None] = []

    def __bool__(self) -> bool:
        return bool(self._own or self._turns or self._indebted)

    def __len__(self) -> int:
        return len(self._own) + sum(len(waiting.events) for waiting in self._waiting.values())

    def put_own(self, event: E) -> None:
        """An event of the engine itself."""
        self._own.append(event)

    def put(self, source: Source, event: E, commands: int, size: int) -> None:
        """An event of `source` that stands for this many commands and bytes."""
        waiting = self._waiting.get(source)
        if waiting is None:
            waiting = self._waiting[source] = _Waiting(source, self._account_of(source))
        if not waiting.events:
            self._line_up(waiting)
        waiting.events.append((event, commands, size))
        waiting.commands += commands
        waiting.size += size
        self._pause_if_full(waiting)

    def put_back(self, events: Sequence[tuple[int, E]]) -> None:
        """Return events of the last batch, by their places in it, ahead of all others of their sources.

        An event may be a part of the one that was collected; the rest of it was decided.
        """
        for place, event in reversed(events):
            brought = self._collected[place]
            if brought is None:
                self._own.appendleft(event)
                continue
            waiting, commands, size = brought
            # It may have brought more since, and so be registered again.
            waiting = self._waiting.setdefault(waiting.source, waiting)
            if not waiting.events:
                self._line_up(waiting)
            waiting.events.appendleft((event, commands, size))
            waiting.commands += commands
            waiting.size += size
            self._pause_if_full(waiting)

    def charge(self, place: int, work: float) -> None:
        """An event of the last batch asked for more work than it stands for."""
        brought = self._collected[place]
        if brought is not None:
            key, now = brought[0].account.key, self._now()
            self._debts[key] = (min(DEBT_CAP, self._debt(key, now) + work), now)

    def _debt(self, key: Hashable, now: float) -> float:
        debt, since = self._debts.get(key, (0.0, now))
        return max(0.0, debt - (now - since) * DEBT_PER_S)

    @property
    def in_debt(self) -> int:
        """How many accounts are served after the others now."""
        now = self._now()
        return sum(self._debt(key, now) > DEBT_MAX for key in self._debts)

    def collect(self) -> list[E]:
        """The next batch: the engine's own events first, then one event of each account in turn."""
        budget = self._budget
        batch: list[E] = []
        self._collected = []
        while self._own and len(batch) < budget.batch_commands:
            batch.append(self._own.popleft())
            self._collected.append(None)
        if self._debts:
            self._forgive()
        commands, size = len(batch), 0
        while self._turns and commands < budget.batch_commands and size < budget.batch_bytes:
            event, event_commands, event_size = self._take(self._turns)
            batch.append(event)
            commands += event_commands
            size += event_size
        is_first = True
        while self._indebted and (
            is_first or (commands < budget.batch_commands and size < budget.batch_bytes)
        ):
            is_first = False
            event, event_commands, event_size = self._take(self._indebted)
            batch.append(event)
            commands += event_commands
            size += event_size
        return batch

    def _take(self, turns: deque[_Account[E]]) -> Brought[E]:
        account = turns.popleft()
        waiting = account.turns.popleft()
        brought = waiting.events.popleft()
        _, commands, size = brought
        waiting.commands -= commands
        waiting.size -= size
        self._collected.append((waiting, commands, size))
        if waiting.events:
            account.turns.append(waiting)
        if account.turns:
            turns.append(account)
        else:
            del self._accounts[account.key]
        self._settle(waiting)
        return brought

    def _account_of(self, source: Source) -> _Account[E]:
        key = source.account
        return _Account(source if key is None else key)

    def _line_up(self, waiting: _Waiting[E]) -> None:
        """A source has its first waiting event: its account takes turns."""
        account = waiting.account
        account = waiting.account = self._accounts.setdefault(account.key, account)
        account.turns.append(waiting)
        if len(account.turns) == 1:
            owes = self._debts and self._debt(account.key, self._now()) > DEBT_MAX
            (self._indebted if owes else self._turns).append(account)

    def _forgive(self) -> None:
        """Accounts whose debt has decayed take turns again; the rest wait until others had theirs."""
        now = self._now()
        self._debts = {key: debt for key, debt in self._debts.items() if self._debt(key, now) > 0}
        waiting = [*self._turns, *self._indebted]
        owing = {id(account) for account in waiting if self._debt(account.key, now) > DEBT_MAX}
        self._turns = deque(account for account in waiting if id(account) not in owing)
        self._indebted = deque(account for account in waiting if id(account) in owing)

    def _pause_if_full(self, waiting: _Waiting[E]) -> None:
        budget = self._budget
        full = waiting.commands >= budget.source_commands or waiting.size >= budget.source_bytes
        if full and not waiting.paused:
            waiting.paused = True
            waiting.source.hold(FULL)

    def _settle(self, waiting: _Waiting[E]) -> None:
        budget = self._budget
        if (
            waiting.paused
            and waiting.commands <= budget.source_commands // 2
            and waiting.size <= budget.source_bytes // 2
        ):
            waiting.paused = False
            waiting.source.let_go(FULL)
        if not waiting.events:
            self._waiting.pop(waiting.source, None)
