"""What is in memory: who waits for which queue, and which payloads are handed out.

Nothing here is needed to find a payload again: after a restart all of it is empty, and what was handed out is
still in its place in its queue.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass, replace

from blindpost.ds.model import Entry
from blindpost.engine.undo import Table, Undo
from blindpost.wire.capnp.node import Fetch, FetchWait, Lease
from blindpost.wire.value import Value

TakeRequest = Fetch | FetchWait | Lease


class Peer:
    """A connection, as the decisions know it."""

    __slots__ = ("account", "answered", "holds", "is_gone", "number", "waits")

    def __init__(self, number: int, undo: Undo) -> None:
        self.number = number
        self.account: Hashable = None
        """The account that what it stores is counted under. Set by the shell."""
        self.is_gone = False
        """Set by the shell when the stream ends, before the corresponding event."""
        self.holds: Table[int, Hold] = Table(undo)
        """By their own numbers."""
        self.answered: Table[int, int] = Table(undo)
        """The hold of an answer that is not finished yet, by question."""
        self.waits: Table[int, Wait] = Table(undo)
        """By question."""


@dataclass(frozen=True, slots=True, repr=False)
class Hold(Value):
    """Payloads that were handed out and are still in the store.

    Those of a fetch leave with its Finish; until `until` nobody else gets them, after it only another
    connection that asks. Those of a lease leave with their acknowledgement; after `until` anybody gets
    them who asks.
    """

    number: int
    peer: Peer
    queue: bytes
    entries: tuple[Entry, ...]
    """Without their payloads."""
    until: float
    request: TakeRequest
    """The call that they were handed out to."""

    @property
    def is_lease(self) -> bool:
        return isinstance(self.request, Lease)

    def keeps_from(self, peer: Peer, now: float) -> bool:
        """Whether this connection may not take its payloads yet, nor any behind them."""
        return now < self.until and self.peer is not peer

    def is_passed_by(self, peer: Peer, now: float) -> bool:
        """Whether its payloads are this connection's own, which gets those behind them."""
        return self.peer is peer and (now < self.until or not self.is_lease)


@dataclass(frozen=True, slots=True, repr=False)
class Wait(Value):
    """A call that waits for a payload, or until its deadline."""

    peer: Peer
    question: int
    request: FetchWait | Lease
    queue: bytes
    started: float
    deadline: float


class Reach:
    """How far the connections that ask for payloads of one queue come in it."""

    def __init__(self, state: DsState, queue: bytes, askers: Set[Peer], now: float) -> None:
        self._held = state.held
        self._queue = queue
        self._askers = askers
        self._now = now

    @property
    def is_over(self) -> bool:
        """Whether none of them comes further."""
        return not self._askers

    def may_take(self, number: int) -> bool:
        """Whether one of them may take this payload. They are looked at in order, and none is left out."""
        hold = self._held.get((self._queue, number))
        if hold is None:
            return bool(self._askers)
        if self._now < hold.until:
            self._askers = self._askers & {hold.peer}
        return any(not hold.is_passed_by(peer, self._now) for peer in self._askers)


class DsState:
    """All of it; every change can be rolled back."""

    def __init__(self, undo: Undo) -> None:
        self.held: Table[tuple[bytes, int], Hold] = Table(undo)
        """By queue and number: who holds it."""
        self.waiters: Table[bytes, tuple[Wait, ...]] = Table(undo)
        self.waiting: Table[tuple[int, int], Wait] = Table(undo)
        """By connection and question."""
        self._numbers = itertools.count(1)

    def add_wait(self, wait: Wait) -> None:
        self.waiters.put(wait.queue, (*(self.waiters.get(wait.queue) or ()), wait))
        self.waiting.put((wait.peer.number, wait.question), wait)
        wait.peer.waits.put(wait.question, wait)

    def end_wait(self, wait: Wait) -> None:
        left = tuple(other for other in self.waiters.get(wait.queue) or () if other is not wait)
        if left:
            self.waiters.put(wait.queue, left)
        else:
            self.waiters.pop(wait.queue)
        self.waiting.pop((wait.peer.number, wait.question))
        wait.peer.waits.pop(wait.question)

    def hold(
        self,
        peer: Peer,
        question: int,
        queue: bytes,
        entries: Sequence[Entry],
        until: float,
        request: TakeRequest,
    ) -> None:
        """Hand payloads to a connection, by the answer to this question."""
        light = tuple(replace(entry, payload=None) for entry in entries)
        hold = Hold(next(self._numbers), peer, queue, light, until, request)
        peer.holds.put(hold.number, hold)
        peer.answered.put(question, hold.number)
        for entry in light:
            self.held.put((queue, entry.number), hold)

    def take_away(self, queue: bytes, number: int) -> Hold | None:
        """Release a payload from its hold; an empty hold ends."""
        hold = self.held.pop((queue, number))
        if hold is not None and not self.in_hand(hold):
            hold.peer.holds.pop(hold.number)
        return hold

    def let_go(self, hold: Hold) -> tuple[Entry, ...]:
        """End a hold; returns what was still in it."""
        hold.peer.holds.pop(hold.number)
        entries = self.in_hand(hold)
        for entry in entries:
            self.held.pop((hold.queue, entry.number))
        return entries

    def in_hand(self, hold: Hold) -> tuple[Entry, ...]:
        return tuple(entry for entry in hold.entries if self.held.get((hold.queue, entry.number)) is hold)
